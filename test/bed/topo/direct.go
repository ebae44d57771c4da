package topo

import "net/netip"

// buildDirect joins the hosts by veth pairs that lead from one to the other, without a bridge in
// between: the cost of a packet is then the gateway's and the wire's alone.
//
//	client0 [eth0] ═══ [front0] gateway [back0] ═══ [eth0] backend0
//
// A sender chooses the receive queue: it is the transmit queue that it uses.
func (n *Net) buildDirect(c *Config) error {
	var err error
	if n.Gateway, err = n.addHost(gatewayName); err != nil {
		return err
	}
	n.Gateways = []*Host{n.Gateway}
	for _, w := range [...]struct {
		kind, port  string
		net4, net6  netip.Prefix
		mtu, number int
		where       *[]*Host
	}{
		{"client0", "front0", front4, front6, c.MTU, firstClient, &n.Clients},
		{"backend0", "back0", back4, back6, c.BackendMTU, firstBackend, &n.Backends},
	} {
		h, err := n.addHost(w.kind)
		if err != nil {
			return err
		}
		err = n.Gateway.Run(func() error { return addVeth(w.port, h.ns, "eth0", c.Queues, w.mtu) })
		if err != nil {
			return err
		}
		for _, end := range [...]struct {
			host   *Host
			dev    string
			number int
		}{{n.Gateway, w.port, 1}, {h, "eth0", w.number}} {
			s := &segment{net4: w.net4, net6: w.net6}
			if err := end.host.address(end.dev, c.Offloads, s, end.number); err != nil {
				return err
			}
		}
		if err := h.routeVia(nth(w.net4, 1), nth(w.net6, 1)); err != nil {
			return err
		}
		*w.where = []*Host{h}
	}
	return nil
}
