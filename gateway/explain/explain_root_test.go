//go:build root

package explain

import (
	"net"
	"net/netip"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// TestFailedNeighbour: a neighbour that did not answer is distinguished from those that did, or
// that were not probed.
func TestFailedNeighbour(t *testing.T) {
	runtime.LockOSThread() // never unlocked: the thread ends with the test, and its namespace with it
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "near"}, PeerName: "far"}
	if err := netlink.LinkAdd(link); err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		t.Fatal(err)
	}
	for a, state := range map[string]int{
		"192.0.2.1": netlink.NUD_FAILED, "2001:db8::1": netlink.NUD_FAILED, "192.0.2.2": netlink.NUD_REACHABLE,
	} {
		n := netlink.Neigh{LinkIndex: link.Attrs().Index, IP: net.ParseIP(a), State: state,
			HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1}}
		if err := netlink.NeighSet(&n); err != nil {
			t.Fatal(err)
		}
	}
	for a, want := range map[string]bool{
		"192.0.2.1": true, "2001:db8::1": true, "192.0.2.2": false, "192.0.2.3": false,
	} {
		if got := failedNeighbour(netip.MustParseAddr(a)); got != want {
			t.Errorf("%s has failed: %v, want %v", a, got, want)
		}
	}
}
