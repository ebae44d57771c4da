//go:build root

package e2e

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/test/bed/topo"
)

// TestForgedPathMTU: a client announces path MTUs for its own flow. The backend's kernel believes
// those of a real tunnel, and has nothing below the floor for the gateway's address, which it knows
// all clients by.
func TestForgedPathMTU(t *testing.T) {
	t.Parallel()
	l := newLab(t, labConfig{Config: topo.Config{Queues: 2}, small: true})
	client, backend := l.Clients[0], l.Backends[0]
	for _, f := range []struct {
		vip, network  string
		from, gateway netip.Addr
	}{
		{vip4, "ip4:icmp", client.Addr4(), l.Gateway.Interfaces[1].Addr4.Addr()},
		{vip6, "ip6:ipv6-icmp", client.Addr6(), l.Gateway.Interfaces[1].Addr6.Addr()},
	} {
		conn, err := client.Dial(l.ctx, "udp", at(f.vip, dnsPort).String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := ask(conn, []byte("a flow")); err != nil {
			t.Fatal(err)
		}
		raw, err := client.ListenPacket(f.network, f.from.String())
		if err != nil {
			t.Fatal(err)
		}
		defer raw.Close()
		announce := func(mtu uint32) {
			t.Helper()
			sent := headertest.UDP(at(f.vip, dnsPort).String(), conn.LocalAddr().String(),
				string(make([]byte, 1452)))
			sent.DF = true
			kind, code := uint8(header.ICMPUnreachable), uint8(header.ICMPFragmentationNeeded)
			headers := header.IPv4Bytes
			if f.from.Is6() {
				kind, code, headers = header.ICMPv6PacketTooBig, 0, header.IPv6Bytes
			}
			b := headertest.ICMPError(f.from.String(), f.vip, kind, code, mtu, sent.Bytes(), 200).Bytes()
			_, err := raw.WriteTo(b[header.EthernetBytes+headers:], &net.IPAddr{IP: net.ParseIP(f.vip)})
			if err != nil {
				t.Fatal(err)
			}
		}
		pathMTU := func() (mtu int) {
			err := backend.Run(func() error {
				routes, err := netlink.RouteGet(f.gateway.AsSlice())
				if err == nil {
					mtu = routes[0].MTU
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			return mtu
		}
		// The kernel never raises a path MTU that it has, so each is proof for those before it.
		for _, lie := range []uint32{68, 552, 1199} {
			announce(lie)
		}
		for _, tunnel := range []int{1400, 1280} {
			announce(uint32(tunnel))
			l.eventually(10*time.Second, fmt.Sprintf("%s: the backend knows of a tunnel of %d", f.vip, tunnel),
				func() bool { return pathMTU() <= tunnel && pathMTU() != 0 })
			if mtu := pathMTU(); mtu != tunnel {
				t.Errorf("%s: the backend's path MTU to %v is %d, want %d", f.vip, f.gateway, mtu, tunnel)
			}
		}
	}
	if n := l.counted("icmp_mtu_floor"); n != 6 {
		t.Errorf("%d were dropped as icmp_mtu_floor, want 6", n)
	}
}
