// Package stateful is a generator of connections, modelled on TRex's ASTF: a client engine opens
// connections to a server engine through the system under test, plays templates of real exchanges
// over them, and records the result of each.
//
//	profile.yaml                client engine                     server engine
//	  templates ──► Plan ──►  ┌──────────────┐                  ┌──────────────┐
//	  shares, rates           │ conns, table │ ── Link ══ Link ─│ conns, table │
//	  pools                   │ wheel, stats │   (system under   │ wheel, stats │
//	                          └──────────────┘    test)         └──────────────┘
//
// A Template is a list of steps: the sending side, the number of bytes (TCP) or datagrams (UDP),
// and the think time before sending. Both engines identify the template by the server's port, so
// the protocol needs no signalling, and the far end can check every byte. A step begins when
// everything of the previous step has arrived, or, if the same side sent it, has been acknowledged.
//
// # Profiles
//
// A profile is YAML; unknown fields are errors with file and line. Reports use the profiles in
// bench/profiles.
//
//	name: http
//	duration: 20s
//	connectionsPerSecond: 10000       # all templates together; 0: as many as possible
//	concurrency: 20000                # connections at a time, at most
//	clients: {addresses: 10.81.0.1-10.81.0.16, ports: 10000-59999}
//	servers: {addresses: 10.82.0.1-10.82.0.8}
//	vip: 10.83.0.1                    # address that clients connect to through a gateway
//	ramp:                             # linear from 0; then connectionsPerSecond
//	- {until: 3s, cps: 10000}
//	tcp: {mss: 1460, window: 65535, firstRTO: 1s, minRTO: 200ms, timeWait: 1s, retries: 6}
//	templates:
//	- name: page
//	  protocol: tcp                   # or udp
//	  port: 80                        # of the server; each template has its own
//	  share: 70                       # of the sum of all shares
//	  timeout: 5s                     # for an answer, without the peer's think time
//	  retries: 0                      # UDP: how often a request is repeated
//	  close: server                   # TCP: the side that sends FIN first; default client
//	  steps:
//	  - {from: client, text: "GET / HTTP/1.1\r\n\r\n"}   # or hex: "00ff", or size: 100
//	  - repeat: 10
//	    steps:
//	    - {from: server, size: 1200, after: 20ms}       # UDP: count: 16 datagrams
//	    - {from: client, size: 50}
//
// # Systems under test
//
// `--through none` is one veth pair, `--through sluice` a gateway process with a Service for each
// template, whose endpoints `--churn` removes and adds meanwhile; nftables and iptables are
// kube-proxy with the same Services, from a control plane that is stopped while packets flow. All
// systems exist at the same time and run in turn at each of `--rates`, in an order that rotates.
// With `--client` and `--server` it is the network between two interfaces; while the benchmark
// runs, the engines receive all their packets. `--memory` leaves the kernel out. The exit status is
// 1 if a connection met two servers, received bytes other than those sent, or was reset although
// its server had not given it up. A UDP exchange may move when its server was removed; such moves
// are counted separately.
//
// # Detection of wrong servers
//
// A server writes a tag into the first bytes of each of its messages: the number of its address in
// the pool, and a hash of the client's address and port as the server sees them. The client stores
// the first tag of a connection and compares every later one. A connection that meets two servers
// is a Violation. If its server sees a different client address than before, the translator has
// created a new mapping for it; such connections are counted.
//
// # Memory
//
// A connection is a record of 128 bytes in one array without pointers. It is found through an
// open-addressing table with eight bytes per slot, and has one timer, on a wheel of intrusive
// lists. Packets and connections allocate nothing.
//
// # TCP features
//
// Implemented: handshake, MSS option, cumulative acknowledgement, a fixed window, one
// retransmission timer with backoff (RFC 6298), probes of a closed window (RFC 9293, section
// 3.8.6.1), which are not counted as retransmissions, FIN both ways, TIME_WAIT that a newer
// connection may take over (RFC 9293, section 3.6.1; RFC 6191), RST. Not implemented: SACK,
// timestamps, window scale, fast retransmit, congestion control, reassembly (a segment out of order
// is dropped and acknowledged at once; the sender retransmits from there), delayed acknowledgement
// (one is sent per connection and received batch), urgent data, path MTU discovery, IP options and
// fragments.
//
// An engine has one Link, which is one queue: a NIC must be set to one combined channel while the
// benchmark uses it. The engine answers ARP and neighbour solicitations for its pool, and resolves
// the one gateway to which it sends all packets. While it runs it owns the interface: the kernel
// sees none of the interface's packets.
package stateful
