// Package flowtable is the table of flows that all workers share.
//
// NAT changes both ends of a packet, so a flow is known by two tuples: the one its
// client's packets carry, and the one its backend's replies carry. One record
// holds both and is found by either:
//
//	client ──(client, frontend)──> [ flow record ] <──(backend, source)── backend
//	           key 1, ClientSide     one object        key 2, ReplySide
//
// The two keys live and die together, because what makes a flow live or dead is one word of
// its record. A packet that matches one key leaves with the reverse of the other
// (Outgoing).
//
// # One table, no owner
//
// A reply may arrive at any worker. So any worker may look up, create, refresh
// and end any flow, without locks: a worker that is stopped at any instruction
// blocks no other. Each mechanism, and why it is correct, is documented at its type:
//
//	bucket (index.go)   the index: which record has a key, and how it is committed
//	meta   (flow.go)    the word that makes refresh and expiry exclude each other
//	limbo  (pool.go)    when a dead record may be used again
//	counted (loads.go)  how many connections each backend has, exactly
//	ring   (ring.go)    what gives way first, as a hint
//
// The reply key's uniqueness is the allocation of the source port: Create
// commits the reply key first, and tries the next port if another flow has it.
// So a port can be in use once per source address and backend.
//
// # The shape in memory
//
// The table lives in memory that the caller gives: a mapped file (OpenFile), so that
// the flows outlive the process, or the heap (NewHeap). There are no pointers in it.
//
//	head | IPv4 records, 64 B | IPv4 index | IPv6 records, 128 B | IPv6 index
//
// At 5 keys to an index bucket of 64 bytes and with the reserve of records, an IPv4 flow takes 92
// bytes and an IPv6 flow 158. Below 740,000 flows the size of the reserve follows from
// MaxHandles: 1.5 MB, 3 MB for IPv6. After a crash the index is not trusted: Recover rebuilds it
// from the records. Beside it, on the heap, are rings: of 0.8 bytes per flow for all handles that
// make flows together (ShareRings), and of up to 2 bytes per flow for each of them, by the
// half-open cap.
//
// # Backends that do not answer
//
// Repeated detects that a client has sent its SYN for the third time and got no answer: then the
// flow should have another backend. Abandon ends it, and answers that come later are distinguished
// from strays (Abandoned). Package affinity stores which backend a client's next flows go to, in a
// file of the same kind (package mapped).
//
// # Handles
//
// A worker or reader has a Handle and calls Enter once per batch. Each Ref that it gets stays valid
// until its next Enter or Leave. It must call Leave before it blocks: otherwise no handle can reuse
// a record meanwhile.
//
// # Packets that may be forged
//
// Observe tells the flow of each of its packets (Segment). A segment of TCP or SCTP that changes
// more than the time at which the flow was last seen must have a good checksum: Changes reports
// whether one would. A TCP flow keeps the backend's initial sequence number until the client has
// acknowledged it: before that no packet of the client takes it past the half-open states. What
// proves what is written at the state machine (moves, state.go).
//
// # Pressure
//
// The table never grows. When it is full, Create sheds a flow to make a new one: expired, closed,
// reset, unreplied UDP, half-open, unconfirmed, idle UDP, in this order. Established flows are
// never shed: if there are no others, Create fails. Flows are shed in the same order where the
// source ports towards one backend run short, and where the few buckets that may hold a client's
// key are full by chance.
//
// The flow to shed is found by age, in rings of what each handle made or changed (ring), and by
// probes of random records where no ring has one (hunter). One Create examines a bounded number
// of records (maxExamined), wherever in the table these flows are; so does Sweep.
//
// An assured UDP flow is protected for four seconds of silence for each second in which it had
// packets (protection). Of idle UDP flows that hold a port, the one that was used least is shed
// first, then one of the prefix that holds most of the ports tried. A UDP flow whose backend may
// still answer keeps its port (datagram.go).
package flowtable
