package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/flowtable/conn"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/vxlan"
	"sluice.dev/sluice/serve/status"
)

// TunnelNode is a node that gets new flows of Services with direct return.
type TunnelNode struct {
	Addr netip.Addr
	// Closed: the node reports that nothing receives UDP at the tunnel's port. A node that reports
	// nothing may be ready, or its firewall drops the packets.
	Closed bool
	MTU    int // of the route to the node; 0 if it is not known
	// Unanswered is the number of connections to the node whose client has sent only SYNs. It is 0
	// if any other connection to the node has sent more within recentSeconds.
	Unanswered int
}

const (
	tunnelNodes   = 512 // that are examined
	tunnelProbes  = 64  // at the same time
	tunnelWait    = 300 * time.Millisecond
	minUnanswered = 10 // fewer can all be connections of clients that have gone
	// recentSeconds is how long half-open connections stay, about.
	recentSeconds = 60
)

// readTunnel probes the nodes of Services with direct return: it sends each a VXLAN header without
// a valid VNI, which a VXLAN device discards (drivers/net/vxlan, vxlan_rcv).
func (f *Facts) readTunnel(ctx context.Context, socket string) {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	client := status.NewClient(socket)
	nodes, err := directNodes(ctx, client)
	if err != nil || f.OtherNetNS != 0 {
		return
	}
	f.Tunnel = make([]TunnelNode, len(nodes))
	turn, wait := make(chan struct{}, tunnelProbes), sync.WaitGroup{}
	for i, a := range nodes {
		wait.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			port := uint16(f.Config.DirectReturn.Port)
			f.Tunnel[i] = TunnelNode{Addr: a, Closed: closed(ctx, netip.AddrPortFrom(a, port)), MTU: routeMTU(a)}
		})
	}
	wait.Wait()
	unanswered(ctx, client, f.Tunnel)
}

// unanswered sets Unanswered of nodes. The gateway sees no reply of a node, but a client sends more
// than SYNs only after it has received one.
func unanswered(ctx context.Context, c *status.Client, nodes []TunnelNode) {
	waiting := map[netip.Addr]int{}
	err := c.Flows(ctx, status.FlowFilter{State: conn.SynSeen.String()}, func(v *status.FlowView) error {
		if v.Forwarding == "direct" && v.IdleSeconds > 0 {
			waiting[v.Backend.Addr().Unmap()]++
		}
		return nil
	})
	if err != nil {
		return
	}
	errFound := errors.New("a connection has sent more")
	for i := range nodes {
		n := &nodes[i]
		if waiting[n.Addr] < minUnanswered {
			continue
		}
		to := status.FlowFilter{Backend: status.Endpoint{Prefix: netip.PrefixFrom(n.Addr, n.Addr.BitLen())}}
		err := c.Flows(ctx, to, func(v *status.FlowView) error {
			if v.Forwarding == "direct" && v.IdleSeconds <= recentSeconds && v.State != conn.SynSeen.String() &&
				v.State != conn.UDPNew.String() {
				return errFound
			}
			return nil
		})
		if err == nil {
			n.Unanswered = waiting[n.Addr]
		}
	}
}

// directNodes returns the addresses of the nodes that get new flows, in order.
func directNodes(ctx context.Context, c *status.Client) (nodes []netip.Addr, err error) {
	list, err := c.Services(ctx)
	if err != nil {
		return nil, err
	}
	direct := map[[3]string]bool{}
	for i := range list {
		s := &list[i]
		direct[[3]string{s.Namespace, s.Name, s.PortName}] = s.Forwarding == "direct"
	}
	backends, err := c.Backends(ctx)
	for i := range backends {
		b := &backends[i]
		if b.NewFlows && direct[[3]string{b.Namespace, b.Service, b.PortName}] {
			nodes = append(nodes, b.Address.Addr().Unmap())
		}
	}
	slices.SortFunc(nodes, netip.Addr.Compare)
	nodes = slices.Compact(nodes)
	return nodes[:min(len(nodes), tunnelNodes)], err
}

// closed reports whether a host answers that a UDP port is closed.
func closed(ctx context.Context, to netip.AddrPort) bool {
	var d net.Dialer
	c, err := d.DialContext(ctx, "udp", to.String())
	if err != nil {
		return false
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(tunnelWait))
	if _, err = c.Write(make([]byte, 8)); err == nil {
		_, err = c.Read(make([]byte, 1))
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

func routeMTU(a netip.Addr) int {
	routes, err := netlink.RouteGet(a.AsSlice())
	if err != nil || len(routes) == 0 {
		return 0
	}
	if routes[0].MTU != 0 {
		return routes[0].MTU
	}
	link, err := netlink.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return 0
	}
	return link.Attrs().MTU
}

// clientMTU is the MTU of most clients' links, in bytes.
const clientMTU = 1500

// tunnel checks the nodes of Services with direct return.
func (e *examination) tunnel() {
	const check = "tunnel"
	vni, port := e.f.Config.DirectReturn.VNI, e.f.Config.DirectReturn.Port
	if len(e.f.Tunnel) == 0 || vni == 0 {
		return
	}
	var closed, narrow, silent []string
	least := &e.f.Tunnel[0]
	for i := range e.f.Tunnel {
		n := &e.f.Tunnel[i]
		if n.Closed {
			closed = append(closed, n.Addr.String())
		}
		if n.Unanswered > 0 && !n.Closed {
			silent = append(silent, n.Addr.String())
		}
		if n.MTU != 0 && n.room() < clientMTU {
			narrow = append(narrow, n.Addr.String())
		}
		if n.MTU != 0 && (least.MTU == 0 || n.room() < least.room()) {
			least = n
		}
	}
	if len(closed) > 0 {
		e.add(Fail, check, some(closed),
			fmt.Sprintf("UDP port %d is closed: their share of new connections gets no answer", port),
			fmt.Sprintf("set nodeTunnel.gateways of the chart, or run `sluice node apply --vni %d --port %d --gateway "+
				"ADDRESS` there, with the address of each gateway; `sluice node check --vni %d --port %d` examines a "+
				"node", vni, port, vni, port))
	}
	if len(silent) > 0 {
		e.add(Warn, check, some(silent),
			fmt.Sprintf("of at least %d new connections to each, none has got an answer: clients send only SYNs",
				minUnanswered),
			fmt.Sprintf("run `sluice node check --vni %d --port %d --gateway ADDRESS` there; look at the node's firewall, "+
				"and for routers that drop packets with a VIP as their source", vni, port))
	}
	if len(narrow) > 0 {
		e.add(Warn, check, some(narrow),
			fmt.Sprintf("the MTU towards %v is %d: clients' packets of more than %d bytes are answered with ICMP "+
				"too big, or fragmented", least.Addr, least.MTU, least.room()),
			fmt.Sprintf("set it to %d if clients may not receive ICMP", clientMTU+vxlan.MaxBytes))
	}
	if len(closed)+len(narrow)+len(silent) == 0 {
		e.ok(check, fmt.Sprintf("%d nodes", len(e.f.Tunnel)), "none reports that the tunnel's port is closed")
	}
}

// room returns the longest packet that fits into the tunnel, in bytes.
func (n *TunnelNode) room() int {
	if n.Addr.Is4() {
		return n.MTU - vxlan.MaxBytes + header.IPv6Bytes - header.IPv4Bytes
	}
	return n.MTU - vxlan.MaxBytes
}

// some returns the first few of a list.
func some(list []string) string {
	const few = 5
	if len(list) <= few {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:few], ", "), len(list)-few)
}
