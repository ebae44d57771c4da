package bgp

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/control/announce/kinds"
)

// TestNextHopsNotKnown: without descriptors the next hops are unknown. They are not missing, which
// would withdraw a family's VIPs.
func TestNextHopsNotKnown(t *testing.T) {
	peer, address := &kinds.Peer{}, netip.MustParseAddr("127.0.0.1")
	if _, err := nextHops(peer, address); err != nil {
		t.Fatal(err)
	}
	var before unix.Rlimit
	if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, nil, &before); err != nil {
		t.Fatal(err)
	}
	if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, &unix.Rlimit{Max: before.Max}, nil); err != nil {
		t.Fatal(err)
	}
	hops, err := nextHops(peer, address)
	if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, &before, nil); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(err, unix.EMFILE) {
		t.Errorf("%v, %v, want EMFILE", hops, err)
	}
}
