//go:build root

package bgp

import (
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestSourceWithoutRoute: behind a route of a type by which no packet leaves, and behind no route,
// there is no source address, and that is no error.
func TestSourceWithoutRoute(t *testing.T) {
	for kind, to := range map[int]string{unix.RTN_BLACKHOLE: "198.18.0.0/24", unix.RTN_PROHIBIT: "198.18.1.0/24",
		unix.RTN_UNREACHABLE: "198.18.2.0/24", unix.RTN_THROW: "198.18.3.0/24"} {
		for _, text := range []string{to, "2001:db8:" + netip.MustParsePrefix(to).Addr().String()[7:8] + "::/48"} {
			_, network, err := net.ParseCIDR(text)
			if err != nil {
				t.Fatal(err)
			}
			route := &netlink.Route{Dst: network, Type: kind}
			if err := netlink.RouteAdd(route); err != nil {
				t.Fatal(text, err)
			}
			defer func() { _ = netlink.RouteDel(route) }()
			router := netip.MustParsePrefix(text).Addr().Next()
			if source, err := sourceTo(router); source.IsValid() || err != nil {
				t.Errorf("route of type %d: source %v, %v", kind, source, err)
			}
		}
	}
}
