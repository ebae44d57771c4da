package bgp

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/announce/kinds"
	"sluice.dev/sluice/test/bed/machine"
)

// TestNextHopsNotKnown: without free descriptors the next hops are unknown. That must not count as
// missing, which would withdraw the VIPs of a family.
func TestNextHopsNotKnown(t *testing.T) {
	peer, address := &kinds.Peer{}, netip.MustParseAddr("127.0.0.1")
	if _, err := nextHops(peer, address); err != nil {
		t.Fatal(err)
	}
	restore := machine.LimitDescriptors(t, 0, 0)
	hops, err := nextHops(peer, address)
	restore()
	if !errors.Is(err, unix.EMFILE) {
		t.Errorf("%v, %v, want EMFILE", hops, err)
	}
}
