// Package layer2 announces VIPs to the hosts of a link: it answers ARP requests and neighbour
// solicitations for them, and sends unsolicited announcements when it gets a VIP. Each VIP is owned
// by one of the gateways on the link (package members).
//
//	World, interfaces ── NewPlan (pure) ──▶ VIPs of each link
//	                                          │
//	                          link ── members ┴─▶ owned VIPs ── answers, announcements
//	                           ▲▼ three packet sockets: ARP, neighbour discovery, hellos
//
// # Frames
//
// The gateway's kernel program passes ARP, neighbour discovery and multicast frames to the kernel,
// where packet sockets receive them. VIPs are not addresses of the host, so the kernel itself does
// not answer. Socket filters drop all other frames.
//
// A gateway that gets a VIP announces it (RFC 5227, section 3; RFC 4861, section 7.2.6), several
// times because such frames get lost, with a limit per second. If another host claims a VIP that
// this gateway owns, the claim is counted, shown and answered by an announcement, at most as often
// as RFC 5227, section 2.4, allows.
//
// # Goroutines
//
// A link has one goroutine that sends hellos and announcements, and one for each socket, which
// answers. A mutex guards their shared state. Apply sets a plan and does not wait.
package layer2
