package neigh

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/fastpath/nexthop"
)

// BenchmarkReading measures a reading without changes, and one with a changed route among many: the
// cost that pace bounds.
func BenchmarkReading(b *testing.B) {
	for _, n := range []int{100, 10_000, 100_000} {
		k := &fakeKernel{top: fakeTopology{links: []netlink.Link{dummy(10, "eth0")}}}
		for i := range n {
			k.top.routes = append(k.top.routes, route(fmt.Sprintf("10.%d.%d.%d/32", i>>16, i>>8&255, i&255),
				via("192.0.2.1")))
		}
		m, err := New(Config{Table: nexthop.NewTable(), Links: []LinkConfig{{"eth0"}}})
		if err != nil {
			b.Fatal(err)
		}
		m.kernel = silentKernel{k}
		if err := m.readTopology(true); err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprintf("same/routes=%d", n), func(b *testing.B) {
			for b.Loop() {
				if err := m.readTopology(false); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("changed/routes=%d", n), func(b *testing.B) {
			for b.Loop() {
				k.top.routes[0].MTU ^= 1400
				if err := m.readTopology(false); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkNewNeighbour measures a new neighbour on a link, with different numbers of routes.
func BenchmarkNewNeighbour(b *testing.B) {
	k := &fakeKernel{top: fakeTopology{links: []netlink.Link{dummy(10, "eth0")},
		routes: []netlink.Route{route("10.0.0.0/8")}}}
	for i := range 100_000 {
		k.top.routes = append(k.top.routes, route(fmt.Sprintf("11.%d.%d.%d/32", i>>16, i>>8&255, i&255),
			via("192.0.2.1")))
	}
	m, err := New(Config{Table: nexthop.NewTable(), Links: []LinkConfig{{"eth0"}}, HopGrace: time.Nanosecond})
	if err != nil {
		b.Fatal(err)
	}
	m.kernel = silentKernel{k}
	if err := m.readTopology(true); err != nil {
		b.Fatal(err)
	}
	n := neighbourEvent("10.0.0.7", netlink.NUD_REACHABLE, 2, 7, 7, 7, 7, 7)
	m.neighbourChanged(&n, false)
	before := m.routes
	b.ReportAllocs()
	for b.Loop() {
		m.resolve(addr("10.0.0.7"), false)
		m.tracked[neighKey{10, addr("10.0.0.7")}].hosted = false
		m.routes = before
	}
}

// silentKernel has no neighbours.
type silentKernel struct{ *fakeKernel }

func (silentKernel) use(int, netip.Addr) error    { return nil }
func (silentKernel) verify(int, netip.Addr) error { return nil }
