package guest

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/topo"
)

// VIPs are outside of every segment; clients reach them by their default route.
const (
	vip4, vip6         = "203.0.113.10", "2001:db8:f::10"
	keepVIP4, keepVIP6 = "203.0.113.30", "2001:db8:f::30"
	nearVIP4, nearVIP6 = "203.0.113.40", "2001:db8:f::40"

	webPort, echoPort, numberPort, webNodePort = 80, 7, 70, 30080
	// Of their own, since all Services of package launch have one ClusterIP.
	keepPort, nearPort = 81, 82

	backendPort, backendEchoPort, localPort = 8080, 8081, 8090

	gatewayNode = "gateway"

	leftTag, rightTag = 5, 7 // of segments whose packets have tags
)

// build makes the network and a gateway that does not run yet.
func (l *lab) build() (err error) {
	c := topo.Config{
		Backends: 2, MTU: l.MTU,
		Front: topo.Device{NIC: left, Port: left + "-peer"},
		Back:  topo.Device{NIC: right, Port: right + "-peer"},
	}
	if l.VLAN != Untagged {
		c.FrontVLANs, c.BackVLANs = []uint16{leftTag}, []uint16{rightTag}
	}
	if l.Net, err = topo.New(c); err != nil {
		return err
	}
	// A link that goes down for a moment, as under an XDP attach, would lose its IPv6 address for
	// good.
	for _, i := range l.Gateway.Interfaces {
		if err := l.Gateway.SetSysctl("net/ipv6/conf/"+cmp.Or(i.VLAN, i.Name)+"/keep_addr_on_down", "1"); err != nil {
			return err
		}
	}
	for _, h := range l.Backends {
		if _, err := h.Serve(backendPort); err != nil {
			return err
		}
		if err := serveEcho(h, backendEchoPort); err != nil {
			return err
		}
	}
	if _, err := l.Gateway.ServeOn("local", localPort, l.Gateway.Addr4(), l.Gateway.Addr6()); err != nil {
		return err
	}
	names := l.interfaces()
	l.gate, err = launch.New(launch.Config{
		Sluice: l.Sluice, Host: l.Gateway, NodeName: gatewayNode, Interfaces: names[:], Options: l.options(),
		Patience: l.Patience,
	})
	if err != nil {
		return err
	}
	if err := l.gate.Apply(l.services()...); err != nil {
		return err
	}
	return l.countDamage()
}

// options are the row's, and how long the kernel program waits for a daemon that starts again: a
// bound of time like others. An emulated processor that is shared takes longer than the default for
// a start, and after it the kernel resets unknown connections.
func (l *lab) options() string {
	return fmt.Sprintf("%stuning: {passAfter: %s}\n", l.Options, l.patience(30*time.Second))
}

// services are a web server, an echo server and one for numbered datagrams on both backends, and a
// web server on the gateway itself, behind the host link: once with the client's address kept, once
// translated.
func (l *lab) services() []launch.Service {
	var web, echo []launch.Endpoint
	for _, h := range l.Backends {
		for _, a := range []netip.Addr{h.Addr4(), h.Addr6()} {
			web = append(web, launch.Endpoint{Addr: a, Port: backendPort, Node: h.Name})
			echo = append(echo, launch.Endpoint{Addr: a, Port: backendEchoPort, Node: h.Name})
		}
	}
	local := []launch.Endpoint{
		{Addr: l.Gateway.Addr4(), Port: localPort, Node: gatewayNode},
		{Addr: l.Gateway.Addr6(), Port: localPort, Node: gatewayNode},
	}
	return []launch.Service{
		{Name: "web", Port: webPort, NodePort: webNodePort, VIPs: []string{vip4, vip6}, Endpoints: web},
		{Name: "echo", UDP: true, Port: echoPort, VIPs: []string{vip4, vip6}, Endpoints: echo},
		{Name: "numbers", UDP: true, Port: numberPort, VIPs: []string{vip4, vip6}, Endpoints: web},
		{Name: "keep", Port: keepPort, Local: true, VIPs: []string{keepVIP4, keepVIP6}, Endpoints: local},
		{Name: "near", Port: nearPort, VIPs: []string{nearVIP4, nearVIP6}, Endpoints: local},
	}
}

// interfaces are the gateway's interfaces: the NICs, or VLAN devices on top of them.
func (l *lab) interfaces() [2]string {
	if l.VLAN == Devices {
		return [2]string{fmt.Sprintf("%s.%d", left, leftTag), fmt.Sprintf("%s.%d", right, rightTag)}
	}
	return [2]string{left, right}
}

func (l *lab) hosts() []*topo.Host {
	return append(append([]*topo.Host{l.Gateway}, l.Clients...), l.Backends...)
}

func (l *lab) countDamage() error {
	for _, h := range l.hosts() {
		c, err := h.Counters()
		if err != nil {
			return err
		}
		l.damage[h] = c
	}
	return nil
}

// damaged says which host received a packet with a bad header or checksum.
func (l *lab) damaged() error {
	var errs []error
	for h, before := range l.damage {
		now, err := h.Counters()
		if err != nil {
			return err
		}
		if bad := now.Since(before).Damaged(); len(bad) > 0 {
			errs = append(errs, fmt.Errorf("%s received damaged packets: %v", h.Name, bad))
		}
	}
	return errors.Join(errs...)
}

func at(addr string, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(addr), port)
}
