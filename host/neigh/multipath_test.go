package neigh

import (
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestMultipathIsReported(t *testing.T) {
	path := func(index int, gw string, f int) *netlink.NexthopInfo {
		return &netlink.NexthopInfo{LinkIndex: index, Gw: net.ParseIP(gw), Flags: f}
	}
	two := paths(path(10, "10.0.0.1", 0), path(10, "10.0.0.2", 0))
	const says = "multipath route is not spread, its first next hop takes all: "
	var many []netlink.Route
	for i := range 9 {
		many = append(many, route(fmt.Sprintf("192.0.%d.0/24", 8-i), two))
	}
	for _, tc := range []struct {
		name   string
		routes []netlink.Route
		want   []string
	}{
		{"none", []netlink.Route{route("192.0.2.0/24", via("10.0.0.1"))}, nil},
		{"two next hops", []netlink.Route{route("192.0.2.0/24", two)}, []string{says + "192.0.2.0/24"}},
		{"one of two is dead", []netlink.Route{route("192.0.2.0/24", paths(path(10, "10.0.0.1", unix.RTNH_F_DEAD),
			path(10, "10.0.0.2", 0)))}, nil},
		{"the kernel sends",
			[]netlink.Route{route("192.0.2.0/24", paths(path(99, "10.0.0.1", 0), path(10, "10.0.0.2", 0)))}, nil},
		{"a better route", []netlink.Route{route("192.0.2.0/24", two, metric(9)),
			route("192.0.2.0/24", via("10.0.0.3"))}, nil},
		{"another table", []netlink.Route{route("192.0.2.0/24", two, table(100))}, nil},
		{"many", many, []string{
			says + "192.0.0.0/24", says + "192.0.1.0/24", says + "192.0.2.0/24", says + "192.0.3.0/24",
			says + "192.0.4.0/24",
			"multipath routes are not spread: 4 more",
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, Config{}, func(m *mirror, k *fakeKernel) {
				k.set(func() { k.top.routes = append(k.top.routes, tc.routes...) })
				k.ch <- []event{{kind: topologyChanged}}
				m.settle(2 * time.Second)
				if got := m.Status().Warnings; !slices.Equal(got, tc.want) {
					t.Errorf("got %q, want %q", got, tc.want)
				}
				k.set(func() { k.top.routes = k.top.routes[:1] })
				k.ch <- []event{{kind: topologyChanged}}
				m.settle(2 * time.Second)
				if got := m.Status().Warnings; len(got) != 0 {
					t.Errorf("removed and still reported: %q", got)
				}
			})
		})
	}
}
