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
}

const (
	tunnelNodes  = 512 // that are examined
	tunnelProbes = 64  // at the same time
	tunnelWait   = 300 * time.Millisecond
)

// readTunnel probes the nodes of Services with direct return: it sends each a VXLAN header without
// a valid VNI, which a VXLAN device discards (drivers/net/vxlan, vxlan_rcv).
func (f *Facts) readTunnel(ctx context.Context, socket string) {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	nodes, err := directNodes(ctx, status.NewClient(socket))
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
			f.Tunnel[i] = TunnelNode{a, closed(ctx, netip.AddrPortFrom(a, port)), routeMTU(a)}
		})
	}
	wait.Wait()
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
	var closed, narrow []string
	least := &e.f.Tunnel[0]
	for i := range e.f.Tunnel {
		n := &e.f.Tunnel[i]
		if n.Closed {
			closed = append(closed, n.Addr.String())
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
	if len(narrow) > 0 {
		e.add(Warn, check, some(narrow),
			fmt.Sprintf("the MTU towards %v is %d: clients' packets of more than %d bytes are answered with ICMP "+
				"too big, or fragmented", least.Addr, least.MTU, least.room()),
			fmt.Sprintf("set it to %d if clients may not receive ICMP", clientMTU+vxlan.MaxBytes))
	}
	if len(closed)+len(narrow) == 0 {
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
