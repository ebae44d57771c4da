//go:build root

package ports

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/bench/machine"
	"sluice.dev/sluice/fastpath/xsk/xsktest"
)

// TestLinks: a device is read again when the kernel tells of a link, and when all is read.
func TestLinks(t *testing.T) {
	xsktest.EnterNamespace(t)
	addNIC(t, 1)
	l := newPortLab(t, smallConfig())
	want := func(when, why string) {
		t.Helper()
		links := l.s.Links()
		if len(links) != 1 || !strings.Contains(links[0].Why, why) || why == "" && links[0].Why != "" {
			t.Errorf("%s: %+v, want %q", when, links, why)
		}
	}
	peer, err := netlink.LinkByName("peer0")
	must(t, err)
	want("at first", "")
	must(t, netlink.LinkSetDown(peer))
	want("without news", "")
	l.s.look(t.Context(), true, nil)
	want("after all was read", "no carrier")

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	l.s.watchLinks(ctx)
	must(t, netlink.LinkSetUp(peer))
	for deadline := time.Now().Add(machine.Slower(5 * time.Second)); l.s.Links()[0].Why != ""; {
		if time.Now().After(deadline) {
			t.Fatalf("after the kernel told: %+v", l.s.Links())
		}
		time.Sleep(time.Millisecond)
	}
}
