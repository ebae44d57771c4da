// Package layer2 announces VIPs to the neighbours of a link: it answers ARP and neighbour
// solicitations for them, and tells everybody when it gets one. Of the gateways on a link one has
// each VIP (package members).
//
//	World, interfaces ── NewPlan (pure) ──▶ VIPs of each link
//	                                          │
//	                          link ── members ┴─▶ owned VIPs ── answers, announcements
//	                           ▲▼ three packet sockets: ARP, neighbour discovery, hellos
//
// # What is on the wire
//
// The kernel program of the gateway passes ARP, neighbour discovery and frames to groups to the
// kernel, where packet sockets get them; the VIPs are no addresses of the host, so the kernel
// itself does not answer. Filters in the kernel keep all other frames from the sockets.
//
// Who gets a VIP tells everybody (RFC 5227, section 3; RFC 4861, section 7.2.6), several times, as
// such frames get lost, and no more than so many in a second. A claim of somebody else for a VIP
// that is here is counted, shown and contradicted, not more often than RFC 5227, section 2.4, says.
//
// # Goroutines
//
// A link has one goroutine that says hello and announces, and one for each socket, which answers.
// A mutex guards what they share. Apply hands them a plan, and waits for nobody.
package layer2
