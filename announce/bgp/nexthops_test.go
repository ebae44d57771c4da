package bgp

import (
	"errors"
	"net/netip"
	"testing"

	"sluice.dev/sluice/announce/kinds"
	"sluice.dev/sluice/announce/links"
	"sluice.dev/sluice/test/bed/machine"
)

// TestNextHopsNotKnown: without free descriptors or memory the next hops are unknown. That must not
// count as missing, which would withdraw the VIPs of a family.
func TestNextHopsNotKnown(t *testing.T) {
	peer, address := &kinds.Peer{}, netip.MustParseAddr("127.0.0.1")
	if _, err := nextHops(peer, address); err != nil {
		t.Fatal(err)
	}
	for _, errno := range machine.Shortages {
		machine.Short(t, errno, func() {
			if hops, err := nextHops(peer, address); !errors.Is(err, errno) {
				t.Errorf("%v, %v, want %v", hops, err, errno)
			}
			if l, err := links.List(); !errors.Is(err, errno) {
				t.Errorf("%v, %v, want %v", l, err, errno)
			}
		})
	}
}
