//go:build root

package xdpprog

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestSocketsOfTheNode: a frontend at an address of the node, or a node port in the range of the
// node's own connections, does not take packets for which the node has a connected or listening TCP
// or UDP socket.
func TestSocketsOfTheNode(t *testing.T) {
	isolate(t)
	sysctl(t, "ipv6/conf/lo/disable_ipv6", "0")
	lo, err := netlink.LinkByName("lo")
	must(t, err)
	must(t, netlink.LinkSetUp(lo))
	for _, a := range []string{local4 + "/32", client4 + "/32", local6 + "/128", client6 + "/128"} {
		at, err := netlink.ParseAddr(a)
		must(t, err)
		at.Flags = unix.IFA_F_NODAD
		must(t, netlink.AddrAdd(lo, at))
	}
	const own, listening, free, nodePort = 40000, 179, 80, 40001
	rules := fixture()
	for _, a := range []string{local4, local6, vip4, vip6} {
		for _, port := range []uint16{own, listening, free} {
			rules.Frontends = append(rules.Frontends, key(a, tcp, port), key(a, udp, port))
		}
	}
	for _, v6 := range []bool{false, true} {
		rules.NodePorts = append(rules.NodePorts, NodePort{v6, tcp, nodePort}, NodePort{v6, udp, nodePort})
	}
	b := newRig(t, Settings{LocalFirst: 32768, LocalCount: 60999 - 32768 + 1}, rules)
	b.beat(time.Second)

	sockets(t, own, listening, nodePort, 30080)
	for _, f := range []struct{ name, client, local, vip, node string }{
		{"v4", client4, local4, vip4, node4}, {"v6", client6, local6, vip6, node6},
	} {
		p := func(dst string, proto uint8, sport, dport uint16) pkt {
			return pkt{src: f.client, dst: dst, proto: proto, sport: sport, dport: dport}
		}
		quoted := p(f.client, tcp, own, 6443)
		quoted.src = f.local
		icmp := pkt{src: f.client, dst: f.local, proto: icmp4, icmpType: 3, quote: &quoted}
		if icmp.v6() {
			icmp.proto, icmp.icmpType = icmp6, 1
		}
		for _, c := range []verdictCase{
			{"connection", p(f.local, tcp, 6443, own), kernel},
			{"another client at the connection's port", p(f.local, tcp, 6444, own), steers},
			{"ICMP error about the connection", icmp, kernel},
			{"TCP listener", p(f.local, tcp, 999, listening), kernel},
			{"UDP listener", p(f.local, udp, 999, listening), kernel},
			{"connected UDP", p(f.local, udp, 53, own), kernel},
			{"connected UDP, another sender", p(f.local, udp, 54, own), steers},
			{"no TCP socket", p(f.local, tcp, 999, free), steers},
			{"no UDP socket", p(f.local, udp, 999, free), steers},
			{"VIP, TCP listener at any address", p(f.vip, tcp, 999, listening), steers},
			{"VIP, UDP listener at any address", p(f.vip, udp, 999, listening), steers},
			{"node port in the range of connections, listener", p(f.node, tcp, 999, nodePort), kernel},
			{"node port in the range of connections, UDP", p(f.node, udp, 999, nodePort), kernel},
			{"node port of the cluster's range, listener", p(f.node, tcp, 999, 30080), steers},
		} {
			if got := b.verdict(t, c.p.frame()) & steers; got != c.want {
				t.Errorf("%s %s: verdict %d, want %d", f.name, c.name, got, c.want)
			}
		}
		// The address becomes the node's, and then is not any more.
		at := p(f.vip, tcp, 999, listening)
		must(t, b.OpenAddr(addr(f.vip), AddrLocal))
		if got := b.verdict(t, at.frame()); got != kernel {
			t.Errorf("%s VIP that became the node's: verdict %d, want the listener's", f.name, got)
		}
		must(t, b.CloseAddr(addr(f.vip), AddrLocal))
		if got := b.verdict(t, at.frame()); got != steers {
			t.Errorf("%s VIP that is no longer the node's: verdict %d, want steered", f.name, got)
		}
	}
}

// sockets opens, at port own of each local address, a TCP connection to port 6443 of the client and
// a UDP socket connected to port 53 of it; and listeners at any address.
func sockets(t *testing.T, own int, listening ...uint16) {
	t.Helper()
	ctx := context.Background()
	for _, port := range append(listening, 6443) {
		at := netip.AddrPortFrom(netip.IPv6Unspecified(), port).String()
		l, err := net.Listen("tcp", at)
		must(t, err)
		t.Cleanup(func() { l.Close() })
		u, err := net.ListenPacket("udp", at)
		must(t, err)
		t.Cleanup(func() { u.Close() })
	}
	for _, ends := range [][2]string{{local4, client4}, {local6, client6}} {
		local, client := netip.MustParseAddr(ends[0]).AsSlice(), ends[1]
		conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: local, Port: own}}).DialContext(ctx, "tcp",
			net.JoinHostPort(client, "6443"))
		must(t, err)
		t.Cleanup(func() { conn.Close() })
		u, err := (&net.Dialer{LocalAddr: &net.UDPAddr{IP: local, Port: own}}).DialContext(ctx, "udp",
			net.JoinHostPort(client, "53"))
		must(t, err)
		t.Cleanup(func() { u.Close() })
	}
}
