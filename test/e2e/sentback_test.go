//go:build root

package e2e

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/test/bed/topo"
)

// TestNothingGoesRound: a router routes VIPs to the gateway, and is the gateway's default route.
// One packet of each kind goes to a VIP. No frame to a VIP comes back to the router: with the
// default policy, with `drop`, and while the daemon is dead. Pings are answered at every size.
func TestNothingGoesRound(t *testing.T) {
	t.Parallel()
	l := newLab(t, labConfig{Config: topo.Config{Queues: 2, Router: true}, damaging: true,
		options: "flows: {ipv4: 65536, ipv6: 65536}\ntuning: {affinityClients: 4096, passAfter: 3s}\n",
		prepare: routesVIPs})
	client := l.Clients[0]
	w := openWire(t, client, l.Router.Interfaces[1].MAC)
	back := watchReturns(t, l.Router)
	round := func(when string) {
		t.Helper()
		for name, frame := range strays(client) {
			if err := w.send(frame); err != nil {
				t.Fatal(err)
			}
			if n := back.count(100 * time.Millisecond); n != 0 {
				t.Errorf("%s: %s came back %d times", when, name, n)
			}
		}
	}
	pings := func(sizes ...int) {
		t.Helper()
		for _, size := range sizes {
			for _, c := range []struct {
				vip                string
				domain, proto, req int
			}{{vip4, unix.AF_INET, unix.IPPROTO_ICMP, 8}, {vip6, unix.AF_INET6, unix.IPPROTO_ICMPV6, 128}} {
				if err := ping(client, c.vip, c.domain, c.proto, byte(c.req), size); err != nil {
					t.Errorf("%s, %d bytes: %v", c.vip, size, err)
				}
			}
		}
		if n := back.count(100 * time.Millisecond); n != 0 {
			t.Errorf("pings: %d frames came back", n)
		}
	}
	round("by default")
	pings(8, 1472, 1473, 9000, 65507)
	for _, reason := range []string{"protocol", "icmp_type", "frontend_rejected"} {
		if l.counted(reason) == 0 {
			t.Errorf("nothing was dropped as %s", reason)
		}
	}
	if err := l.gate.Kill(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(4500 * time.Millisecond) // the heartbeat is older than passAfter by then
	round("daemon dead")
	if err := l.gate.Start(l.ctx); err != nil {
		t.Fatal(err)
	}
	s, err := l.gate.Client.Stats(l.ctx)
	if err != nil || s.Steering["sent_back_dropped"] == 0 {
		t.Errorf("sent_back_dropped is %d: %v", s.Steering["sent_back_dropped"], err)
	}
	if err := l.gate.WriteConfiguration(l.gate.Configuration() + "unservedVIPPort: drop\n"); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	round("policy drop")
	pings(65507)
	l.errorsComeFromNoHostLink(w)
}

// routesVIPs makes each of router and gateway the other one's way to VIPs and to everything else.
func routesVIPs(l *lab) {
	gw4, gw6 := l.Gateway.Addr4(), l.Gateway.Addr6()
	for _, vip := range []string{"203.0.113.0/24", "2001:db8:f::/64"} {
		to, gw, via := netip.MustParsePrefix(vip), gw4, l.Router.Addr4()
		if to.Addr().Is6() {
			gw, via = gw6, l.Router.Addr6()
		}
		unspecified := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if to.Addr().Is6() {
			unspecified = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
		if err := l.Router.Route(to, gw); err != nil {
			l.t.Fatal(err)
		}
		if err := l.Gateway.Route(unspecified, via); err != nil {
			l.t.Fatal(err)
		}
	}
	if err := l.Gateway.Forward(true); err != nil {
		l.t.Fatal(err)
	}
}

// strays are packets to the VIPs that no Service is for, by name.
func strays(from *topo.Host) map[string][]byte {
	all := map[string][]byte{}
	add := func(name string, p *headertest.Packet) {
		p.TTL = 255
		all[name] = p.Bytes()
	}
	src4, src6 := from.Addr4().String(), from.Addr6().String()
	to := func(src, dst string, proto uint8, more ...headertest.Extension) *headertest.Packet {
		return &headertest.Packet{Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr(dst), Proto: proto,
			Payload: make([]byte, 40), Extensions: more}
	}
	for name, proto := range map[string]uint8{"IGMP": 2, "IPIP": 4, "DCCP": 33, "6in4": 41, "GRE": 47, "ESP": 50,
		"AH": 51, "UDP-Lite": 136} {
		add(name, to(src4, vip4, proto))
		if proto > 4 {
			add(name+" v6", to(src6, vip6, proto))
		}
	}
	options := headertest.Extension{Type: headertest.Destination, Data: make([]byte, 6)}
	add("destination options", to(src6, vip6, 253, options))
	add("routing header", to(src6, vip6, 6, headertest.Extension{Type: headertest.Routing, Data: []byte{4, 1, 0, 0, 0,
		0}}))
	add("no next header", to(src6, vip6, 59))
	for _, icmpType := range []uint8{0, 5, 9, 13, 17} {
		p := headertest.Echo(src4, vip4, 1, 1, false)
		p.ICMPType = icmpType
		add(fmt.Sprintf("ICMP type %d", icmpType), p)
	}
	for _, icmpType := range []uint8{100, 129, 135, 137, 139} {
		p := headertest.Echo(src6, vip6, 1, 1, false)
		p.ICMPType = icmpType
		add(fmt.Sprintf("ICMPv6 type %d", icmpType), p)
	}
	sent := headertest.UDP(netip.AddrPortFrom(netip.MustParseAddr(vip4), 99).String(), src4+":9", "answer").Bytes()
	add("ICMP error about no flow", headertest.ICMPError(src4, vip4, 3, 3, 0, sent, -1))
	add("TCP", headertest.TCP(src4+":9999", vip4+":81", headertest.SYN))
	add("UDP v6", headertest.UDP("["+src6+"]:9999", "["+vip6+"]:81", "x"))
	add("SCTP", headertest.SCTP(src4+":9999", vip4+":81", header.SCTPInit))
	all["later fragment of GRE"] = headertest.Split(to(src4, vip4, 47).Bytes(), 16, 7)[1]
	all["later fragment of a ping"] = headertest.Split(headertest.Echo(src6, vip6, 1, 1, false).Bytes(), 16, 7)[1]
	return all
}

// returns counts frames to a VIP that come to a router from its gateway.
type returns struct{ fd int }

func watchReturns(t *testing.T, router *topo.Host) *returns {
	t.Helper()
	r := &returns{}
	err := router.Run(func() error {
		ifi, err := net.InterfaceByName(router.Interfaces[0].Name)
		if err != nil {
			return err
		}
		const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8
		r.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, all)
		if err != nil {
			return err
		}
		return unix.Bind(r.fd, &unix.SockaddrLinklayer{Ifindex: ifi.Index, Protocol: all})
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(r.fd) })
	return r
}

// count waits and returns how many such frames have come since the last call.
func (r *returns) count(wait time.Duration) (n int) {
	time.Sleep(wait)
	b := make([]byte, 1<<16)
	for {
		size, from, err := unix.Recvfrom(r.fd, b, 0)
		if err != nil {
			return n
		}
		if at, ok := from.(*unix.SockaddrLinklayer); !ok || at.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		ip := headertest.IP(b[:size])
		if ip == nil {
			continue
		}
		dst := netip.AddrFrom4([4]byte(ip[16:20]))
		if ip[0]>>4 == 6 {
			dst = netip.AddrFrom16([16]byte(ip[24:40]))
		}
		if dst == netip.MustParseAddr(vip4) || dst == netip.MustParseAddr(vip6) {
			n++
		}
	}
}

// errorsComeFromNoHostLink: with the policy pass a worker returns a fragment by the host link, and
// its hop limit ends in the kernel. The error has an address that the client can know.
func (l *lab) errorsComeFromNoHostLink(w *wire) {
	l.t.Helper()
	if err := l.gate.WriteConfiguration(l.gate.Configuration() + "unservedVIPPort: pass\n"); err != nil {
		l.t.Fatal(err)
	}
	time.Sleep(time.Second)
	client := l.Clients[0]
	raw, err := client.ListenPacket("ip6:ipv6-icmp", client.Addr6().String())
	if err != nil {
		l.t.Fatal(err)
	}
	defer raw.Close()
	p := headertest.UDP(netip.AddrPortFrom(client.Addr6(), 9999).String(), "["+vip6+"]:81", string(make([]byte, 64)))
	p.TTL = 2 // the router takes one
	if err := w.send(headertest.Split(p.Bytes(), 32, 9)[0]); err != nil {
		l.t.Fatal(err)
	}
	_ = raw.SetReadDeadline(time.Now().Add(5 * time.Second))
	b := make([]byte, 2048)
	for {
		n, from, err := raw.ReadFrom(b)
		if err != nil {
			l.t.Errorf("no error about a hop limit: %v", err)
			return
		}
		if n == 0 || b[0] != header.ICMPv6TimeExceeded {
			continue
		}
		if a := netip.MustParseAddr(from.String()); netip.MustParsePrefix("fd73:6c75:6963:6500::/64").Contains(a) {
			l.t.Errorf("the error comes from %v, an address of the host link", a)
		}
		return
	}
}

// TestNothingGoesRoundWhileConnectionsLast: a Service loses its VIP, and the network goes on to
// route that here. As long as a connection through it lives, the address stays steered, and nothing
// else that comes for it is sent back.
func TestNothingGoesRoundWhileConnectionsLast(t *testing.T) {
	t.Parallel()
	l := newLab(t, labConfig{Config: topo.Config{Queues: 2, Router: true}, damaging: true, small: true,
		prepare: routesVIPs})
	client := l.Clients[0]
	w := openWire(t, client, l.Router.Interfaces[1].MAC)
	back := watchReturns(t, l.Router)
	flows, err := client.OpenTCP(l.ctx, topo.FlowLoad{Targets: []netip.AddrPort{at(vip4, webPort), at(vip6, webPort)},
		Flows: 2, Interval: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	web := l.web(l.Backends...)
	web.VIPs = []string{"203.0.113.90"}
	dns := l.dns(l.Backends...)
	dns.VIPs = []string{"203.0.113.90"}
	l.apply(web, dns)
	l.applied()
	l.answered(flows, 5)
	for name, frame := range strays(client) {
		if err := w.send(frame); err != nil {
			t.Fatal(err)
		}
		if n := back.count(100 * time.Millisecond); n != 0 {
			t.Errorf("%s came back %d times", name, n)
		}
	}
	l.wantUnbroken(flows, 2, "the VIP went")
}
