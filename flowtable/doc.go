// Package flowtable is the table of flows that all workers share.
//
// NAT changes both ends of a packet, so a flow has two tuples: its client's packets carry one, its
// backend's replies the other. One record holds both, and a lookup of either finds it:
//
//	client ──(client, frontend)──> [ flow record ] <──(backend, source)── backend
//	           key 1, ClientSide     one object        key 2, ReplySide
//
// The two keys live and die together, because one word of the record decides whether the flow is
// live. A packet that matches one key leaves with the reverse of the other (Outgoing).
//
// # One table, no owner
//
// A reply may arrive at any worker. So any worker may look up, create, refresh and end any flow,
// without locks: a worker that the kernel stops at any instruction blocks no other. The doc of each
// type explains its mechanism and why it is correct:
//
//	bucket (index.go)   the index: which record has a key, and how it is committed
//	meta   (flow.go)    the word that makes refresh and expiry exclude each other
//	limbo  (pool.go)    when a dead record may be used again
//	counted (loads.go)  how many connections each backend has, exactly
//	ring   (evict_ring.go)  hints at which flows to shed first
//
// A source port is allocated by making the reply key unique: Create commits the reply key first,
// and tries the next port if another flow has that key. So a port can be in use once per source
// address and backend.
//
// # The shape in memory
//
// The table lives in memory that the caller provides: a mapped file (OpenFile), so that the flows
// outlive the process, or the heap (NewHeap). It contains no pointers.
//
//	head | IPv4 records, 64 B | IPv4 index | IPv6 records, 128 B | IPv6 index
//
// At 5 keys to an index bucket of 64 bytes and with the reserve of records, an IPv4 flow takes 92
// bytes and an IPv6 flow 158. Below 740,000 flows the size of the reserve follows from MaxHandles:
// 1.5 MB, 3 MB for IPv6. After a crash Recover does not trust the index and rebuilds it from the
// records. The rings are on the heap. All handles that make flows share rings of 0.8 bytes per flow
// (ShareRings); each of these handles also has rings of up to 2 bytes per flow, depending on the
// half-open cap.
//
// # Backends that do not answer
//
// Repeated detects that a client has sent its SYN for the third time and got no answer: then the
// flow should have another backend. Abandon ends the flow, and Abandoned distinguishes a later
// answer from a stray packet. Package affinity stores which backend a client's next flows go to, in
// a file of the same kind (package mapped).
//
// # Handles
//
// A worker or reader has a Handle and calls Enter once per batch. Each Ref that it gets stays valid
// until its next Enter or Leave. It must call Leave before it blocks: otherwise no handle can reuse
// a record meanwhile.
//
// # Other gateways
//
// In a group of gateways the table also has copies of other gateways' flows, and ended flows whose
// source port another gateway may still have a record of (group.go, docs/adr/0037).
//
// # Packets that may be forged
//
// Observe updates the flow with each of its packets (Segment). A TCP or SCTP segment that changes
// more than the flow's last-seen time must have a good checksum: Changes reports whether a segment
// would. A TCP flow keeps the backend's initial sequence number until the client has acknowledged
// it: before that no packet of the client moves the flow out of the half-open states. The state
// machine's doc lists which packets prove which state (conn/moves.go).
//
// # Pressure
//
// The table never grows. When it is full, Create sheds a flow to make room for a new one: expired,
// closed, reset, one-sided (direct return), unreplied UDP, half-open, unconfirmed, idle UDP, in
// this order (Shed). Create never sheds an established flow: if there are no others, it fails. It
// sheds flows in the same order when the source ports towards one backend run short, and when the
// few buckets that may hold a client's key happen to be full.
//
// Create finds the flow to shed by age, in rings of the flows that each handle made or changed
// (ring), and by probes of random records if no ring has one (evictor). One Create examines a
// bounded number of records (maxExamined), wherever in the table these flows are; so does Sweep.
//
// For each second in which an assured UDP flow had packets, it is protected for four seconds of
// silence (protection). Among idle UDP flows that hold a port, the least used one is shed first,
// then one of the client prefix that holds most of the ports tried. A UDP flow whose backend may
// still answer keeps its port (resting.go).
package flowtable
