// Package neigh mirrors the kernel's routes, neighbours and addresses into a nexthop.Table, so that
// workers send packets where the kernel would have sent them, without a system call.
//
//	kernel ──events──▶ Mirror ──View (prefix → Route), Hop by ID──▶ workers
//	   ▲                  ▲                                            │
//	   └──"I need this───┘◀──────Table.Resolve(destination)────────────┘
//	      neighbour"
//
// # Two kinds of truth
//
// Routes, interfaces and addresses are level-triggered: an event only triggers a reading of the
// whole state, which is compared with what is published. The kernel does not announce everything:
// it sends no event for IPv4 routes that are removed with their interface, source address or
// nexthop object, so a mirror that applied events only would drift. The time of a reading is
// proportional to the size of the tables; a burst of events leads to one reading, and readings
// never take more than a tenth of one core.
//
// Neighbours are edge-triggered: an event carries the whole state of one
// neighbour and is applied at once, in place. A changed MAC address rewrites one
// Hop; no flow and no View notices. Once a minute neighbours too are read as a whole
// and compared.
//
// When the receive buffer overflows, the kernel reports it once (ENOBUFS), ahead of the queued
// events, and drops events without a report until the queue is empty. So the first such error ends
// the subscription: no further event of it is applied, and as soon as pace allows (2 ms after a
// rest, a second at most) a new one is opened and everything is read. Any other missed change is
// found within a minute.
//
// # What a destination becomes
//
//	via a gateway on a link of ours    Route{hop of the gateway, OnLink}
//	on a link of ours                  Route{0, OnLink} until a worker requests it
//	                                   and it answers; then a host route to its hop
//	an address of this node            Route{ViaKernel, Kernel}
//	on any other device                Route{hop of the host link, Kernel}; ViaKernel,
//	                                   unless the device or route limits the MTU
//	behind the host link itself        Unreachable: our own addresses, or a loop
//	blackhole, prohibit, throw, none   Unreachable
//	multicast, link-local IPv6         Unreachable: never forwarded (RFC 4291 section 2.5.6)
//
// The lookup returns what `ip route get` returns for a packet that is to be forwarded and that no
// other policy rule matches: tables local, main and default, longest prefix, lowest metric, TOS
// zero. Other policy rules are not honoured; they are reported as a warning. Of a multipath route
// the first usable nexthop is taken; where the kernel would spread over several this is reported
// too. A VLAN sub-device (802.1Q or 802.1ad, up to two deep) of one of our links counts as ours:
// its tags are part of the hop. A bridge, bond or macvlan on top of a link does not: the kernel
// sends for it. Routes with an encapsulation are the kernel's too.
//
// # Where a packet leaves from
//
// A Route on a link of ours has the source address that MASQUERADE would take:
// the primary address of the interface, or of several the one that suits the next
// hop (IPv4) or the destination (IPv6). A source that the route itself prefers
// (`ip route ... src`) comes first, as it does for the node's own packets.
//
// # Neighbours
//
// A neighbour is tracked from the moment a route names it as gateway or a worker requests it. The
// kernel resolves it: a neighbour message with NTF_USE does what sending a packet would do
// (include/uapi/linux/neighbour.h), for ARP and for neighbour discovery, and leaves nothing behind.
// The same message, every ProbeInterval, keeps a tracked neighbour fresh; meanwhile a stale one
// stays in use.
//
// The kernel does not see packets that workers send, and would doubt an address that it has
// confirmed only after 15 s to 45 s. So a neighbour that workers have sent to is verified every
// VerifyInterval: the kernel is told to ask it now, by the state NUD_PROBE. One that does not
// answer three requests, a second apart, is resolved anew. A neighbour that moves to another MAC
// address without an announcement is found in 9 s. A request to each costs two netlink messages and
// one ARP or neighbour solicitation; 512 in a second are the most.
//
// A permanent entry is used and never changed. A hop is ready while a MAC address is known that has
// not failed: after the kernel has removed an entry, the last address stays in use until the kernel
// answers the new request.
//
// Senders with invented addresses make packets for as many destinations on a link. So requests come
// in two queues. First ones are for backends, for clients of connections past their handshake and
// for what was resolved before: at most 1024 of these that have never answered are tracked, and
// each is requested again every second. Of all others at most 1024 are tracked, a new one replaces
// the one with the oldest request of the prefix (/24, /64) that has most, and the kernel gets 64
// requests a second for them, of which one prefix may take half, a second one a quarter and so on:
// they take a quarter of its neighbour table (gc_thresh3 is 1024 by default) at most.
//
// # Hops and generations
//
// Invariants:
//   - A hop's ID must keep its meaning while a View of the generation it was learned under can be
//     in a worker's hand. So an ID that no route uses any more is freed only after a new generation
//     was published and HopGrace has passed.
//   - A change of a neighbour, of a link's MAC or MTU must not change the
//     generation; a change of any route, its Source included, must.
//   - Generations start from the boot clock in milliseconds and are stepped more
//     slowly than it, so a flow that outlived a restart of the daemon does not take
//     an ID of the former process for one of this process. Both are 32 bits wide and
//     wrap after 49.7 days: a restart that long after the former start, or a multiple
//     of it, to within as many milliseconds as the former process made generations,
//     can meet a generation again.
package neigh
