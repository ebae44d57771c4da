// Package neigh mirrors the kernel's routes, neighbours and addresses into a nexthop.Table. So
// workers send packets to the same next hops as the kernel would, without a system call.
//
//	kernel ──events──▶ Mirror ──View (prefix → Route), Hop by ID──▶ workers
//	   ▲                  ▲                                            │
//	   └──"I need this───┘◀──────Table.Resolve(destination)────────────┘
//	      neighbour"
//
// # Two kinds of state
//
// Routes, interfaces and addresses are level-triggered: an event only triggers a reading of the
// whole state, which is compared with the published state. The kernel does not announce everything:
// it sends no event for IPv4 routes that are removed with their interface, source address or
// nexthop object, so a mirror that only applied events would drift. The time of a reading is
// proportional to the size of the tables. A burst of events leads to one reading, and readings
// never take more than a tenth of one core.
//
// Neighbours are edge-triggered: an event has the whole state of one neighbour and is applied at
// once, in place. A changed MAC address rewrites one Hop, and changes no flow and no View. Once a
// minute all neighbours are also read and compared.
//
// When the receive buffer overflows, the kernel reports it once (ENOBUFS), ahead of the queued
// events, and drops events without a report until the queue is empty. So the first such error ends
// the subscription: the mirror ignores its later events. As soon as pace allows (after 2 ms, or up
// to a second after a reading) it opens a new subscription and reads everything. It finds any other
// missed change within a minute.
//
// # Routes of destinations
//
//	via a gateway on a served link     Route{hop of the gateway, OnLink}
//	on a served link                   Route{0, OnLink} until a worker requests it
//	                                   and it answers; then a host route to its hop
//	an address of this node            Route{ViaKernel, Kernel}
//	on any other device                Route{hop of the host link, Kernel}; ViaKernel,
//	                                   unless the device or route limits the MTU
//	behind the host link itself        Unreachable: the gateway's own addresses, or a loop
//	blackhole, prohibit, throw, none   Unreachable
//	multicast, link-local IPv6         Unreachable: never forwarded (RFC 4291 section 2.5.6)
//
// A served link is an interface of the configuration (Config.Links). The lookup returns the same
// route as `ip route get` for a forwarded packet that no other policy rule matches: tables local,
// main and default, longest prefix, lowest metric, TOS zero. The mirror ignores other policy rules
// and reports them as warnings. Of a multipath route it uses the first usable nexthop; if the
// kernel would use several, it reports that as a warning. A VLAN sub-device (802.1Q or 802.1ad, up
// to two deep) of a served link is also served: its tags are part of the hop. A bridge, bond or
// macvlan on top of a link is not: the kernel sends for it. The kernel also sends for routes with
// an encapsulation.
//
// # Source addresses
//
// A Route on a served link has the source address that MASQUERADE would use: the primary address of
// the interface or, of several, the best match for the next hop (IPv4) or the destination (IPv6).
// As for the node's own packets, a preferred source of the route (`ip route ... src`) overrides it.
//
// # Neighbours
//
// The mirror tracks a neighbour from the moment a route names it as a gateway or a worker requests
// it. The kernel resolves it: a neighbour message with NTF_USE has the same effect as sending a
// packet (include/uapi/linux/neighbour.h), for ARP and for neighbour discovery. The same message,
// every ProbeInterval, keeps a tracked neighbour fresh; a stale neighbour stays in use meanwhile.
//
// The kernel does not see the packets of workers, and verifies a confirmed address again only after
// 15 s to 45 s. So the mirror verifies a neighbour that workers have sent to every VerifyInterval:
// by the state NUD_PROBE it makes the kernel send a request at once. If the neighbour does not
// answer three requests, a second apart, it is resolved again. So a neighbour that moves to another
// MAC address without an announcement is found in 9 s. A verification costs two netlink messages
// and one ARP or neighbour solicitation; there are at most 512 per second.
//
// A permanent entry is used and never changed. A hop is ready while it has a MAC address that has
// not failed: after the kernel has removed an entry, the last address stays in use until the kernel
// answers the new request.
//
// Senders with invented addresses cause packets to as many destinations on a link, and an author of
// EndpointSlices can invent as many endpoints. The kernel tries to resolve each for 3 s, cannot
// remove its entry meanwhile, and with 1024 entries (gc_thresh3) refuses every new neighbour of the
// node. So requests that have no answer yet have budgets, which together leave a quarter of that
// table. Workers have two queues of requests. First requests are for backends, for clients of
// established connections and for destinations that were resolved before; of destinations that have
// never answered, at most 4096 of this kind are tracked, and 192 requested at a time. Of all other
// destinations at most 1024 are tracked, and 384 requested at a time. A new one replaces the
// destination with the oldest request, here of the prefix (/24, /64) that has the most. One prefix
// may use half of a budget, a second one a quarter and so on; new requests may use three quarters,
// and repeated requests half. A request is repeated after 4 s, then every 8 s. An answer ends it,
// and makes room at once. Health checks send without the mirror, and have a budget of their own
// (Mirror.Unresolved).
//
// # Hops and generations
//
// Invariants:
//   - A hop's ID must keep its meaning while a worker may use a View of a generation that has it.
//     So an ID that no route uses any more is freed only after a new generation was published and
//     HopGrace has passed.
//   - A change of a neighbour, or of a link's MAC or MTU, must not change the generation; a change
//     of any route or its Source must.
//   - Generations start from the boot clock in milliseconds and advance more slowly than it. So a
//     flow that survived a restart of the daemon does not take an ID of the former process for an
//     ID of this one. Both are 32 bits wide and wrap after 49.7 days: a restart 49.7 days (or a
//     multiple) after the former start, within as many milliseconds as the former process made
//     generations, can repeat a generation.
package neigh
