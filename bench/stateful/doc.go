// Package stateful is a generator of connections, in the manner of TRex's ASTF: a
// client engine opens connections to a server engine and plays templates of real
// exchanges over them, through the system between the ends, and records the result of each.
//
//	profile.yaml                client engine                     server engine
//	  templates ──► Plan ──►  ┌──────────────┐                  ┌──────────────┐
//	  shares, rates           │ conns, table │ ── Link ══ Link ─│ conns, table │
//	  pools                   │ wheel, stats │   (what is tested)│ wheel, stats │
//	                          └──────────────┘                  └──────────────┘
//
// A Template is a list of steps: who sends how many bytes (TCP) or datagrams (UDP),
// after how long a think. Both engines know the template by the server's port, so
// nothing needs to be said on the wire, and every byte can be checked at the far end.
// A step begins when everything of the step before has arrived, or, if the same side
// sent it, been acknowledged.
//
// # Profiles
//
// A profile is YAML; what it does not know it refuses, with file and line. Those in
// bench/profiles are the ones that reports use.
//
//	name: http
//	duration: 20s
//	connectionsPerSecond: 10000       # all templates together; 0: as many as go
//	concurrency: 20000                # connections at a time, at most
//	clients: {addresses: 10.81.0.1-10.81.0.16, ports: 10000-59999}
//	servers: {addresses: 10.82.0.1-10.82.0.8}
//	vip: 10.83.0.1                    # what clients connect to when a gateway is between
//	ramp:                             # straight lines from 0; then connectionsPerSecond
//	- {until: 3s, cps: 10000}
//	tcp: {mss: 1460, window: 65535, firstRTO: 1s, minRTO: 200ms, timeWait: 1s, retries: 6}
//	templates:
//	- name: page
//	  protocol: tcp                   # or udp
//	  port: 80                        # of the server; each template has its own
//	  share: 70                       # of the sum of all shares
//	  timeout: 5s                     # for an answer, the peer's think not counted
//	  retries: 0                      # UDP: how often a question is repeated
//	  close: server                   # TCP: who sends FIN first; client if not given
//	  steps:
//	  - {from: client, text: "GET / HTTP/1.1\r\n\r\n"}   # or hex: "00ff", or size: 100
//	  - repeat: 10
//	    steps:
//	    - {from: server, size: 1200, after: 20ms}       # UDP: count: 16 datagrams
//	    - {from: client, size: 50}
//
// `sluice-bench stateful template FILE.pcap` makes one of a capture's conversations.
//
// # What may be between
//
// `--through none` is one veth pair, `--through sluice` a gateway process with a Service
// for each template, whose endpoints `--churn` removes and adds meanwhile. With
// `--client` and `--server` it is the network between two interfaces: their packets
// are the engines' while it runs. `--memory` leaves the kernel out. The exit status is 1
// if a connection met two servers, got other bytes than were sent, or was reset by a
// server that had not given it up. Over UDP an exchange may move when its server was
// removed; such moves are counted apart.
//
// # Who met whom
//
// A server writes a tag into the first bytes of each of its messages: the number of
// its address in the pool, and a hash of the client's address and port as it sees
// them. The client remembers the first tag of a connection and compares every later
// one. A connection that meets two servers is a Violation; one whose server sees
// another client address than before was translated anew, and is counted.
//
// # Memory
//
// A connection is a record of 128 bytes in one array without pointers, found by
// an open-addressing table of eight bytes a slot, and on one timer, on a wheel of
// intrusive lists. Nothing is allocated by a packet or a connection.
//
// # What of TCP is here
//
// Handshake, MSS option, cumulative acknowledgement, a fixed window, one retransmission
// timer with backoff (RFC 6298), probes of a closed window (RFC 9293, section 3.8.6.1),
// which are not counted as retransmissions, FIN both ways, TIME_WAIT that a younger connection
// may take over (RFC 9293, section 3.6.1; RFC 6191), RST. What is not: SACK, timestamps,
// window scale, fast retransmit, congestion control, reassembly (a segment out of order is
// dropped and acknowledged at once; the sender goes back to it), delayed acknowledgement
// (one is sent per connection and batch received), urgent data, path MTU discovery,
// IP options and fragments.
//
// An engine has one Link, which is one queue: a NIC must be set to one combined
// channel while it is used. It answers ARP and neighbour solicitations for its pool,
// and resolves the one gateway that all its packets go to. The interface belongs to
// it while it runs: the kernel sees none of its packets.
package stateful
