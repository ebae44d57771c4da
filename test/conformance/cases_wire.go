package conformance

// wire adds the cases about the form of packets, which no field of a Service changes.
func (b *cases) wire() {
	// The node has no device of that VLAN: it is the kernel's, which drops it.
	c := b.add("On the wire/VLAN tags", "no-device")
	f := c.service().slice("", "b0")
	to := []dest{f.vip4(), f.vip6(), f.node4(), f.node6()}
	c.tagged(drop, "", []uint16{100}, to...).tagged(drop, "", []uint16{7, 100}, to...)

	// A frame that is tagged for its priority alone needs no VLAN device.
	c = b.add("On the wire/VLAN tags", "priority-alone")
	f = c.service().slice("", "b0")
	to = []dest{f.vip4(), f.vip6(), f.node4(), f.node6()}
	c.tagged(viaB0, "", []uint16{0}, to...).tagged(viaB0, "", []uint16{0, 0}, to...)

	c = b.add("On the wire/fragments", "in-order-and-reverse")
	f = c.service().slice("", "b0")
	g := c.service(local).slice("", "b1 @gateway")
	c.crafted(fragments, viaB0, f.vip4(), f.vip6(), f.node4(), f.node6()).
		crafted(fragments, "b1 from client", g.vip4(), g.vip6())

	c = b.add("On the wire/ICMP errors about flows", "port-unreachable")
	f = c.service().edit("", targetPort(closedPort), "b0")
	g = c.service(local).edit("", targetPort(closedPort), "b1 @gateway")
	const refused4, refused6 = "; client told ICMP 3/3 by the frontend", "; client told ICMP 1/4 by the frontend"
	c.crafted(unreachable, viaB0+refused4, f.vip4(), f.node4()).crafted(unreachable, viaB0+refused6, f.vip6(),
		f.node6()).
		crafted(unreachable, "b1 from client"+refused4, g.vip4()).crafted(unreachable, "b1 from client"+refused6,
		g.vip6())

	c = b.add("On the wire/ICMP errors about flows", "too-big")
	f = c.service().slice("", "b0")
	g = c.service(local).slice("", "b1 @gateway")
	const big4 = "; backend told ICMP 3/4 MTU 1400; client told ICMP 3/4 MTU 1400 by the frontend"
	const big6 = "; backend told ICMP 2/0 MTU 1400; client told ICMP 2/0 MTU 1400 by the frontend"
	c.crafted(tooBig, viaB0+big4, f.vip4(), f.node4()).crafted(tooBig, viaB0+big6, f.vip6(), f.node6()).
		crafted(tooBig, "b1 from client"+big4, g.vip4()).crafted(tooBig, "b1 from client"+big6, g.vip6())
}

// closedPort is one that no backend serves.
const closedPort = 8089
