//go:build root

package ports

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/fastpath/xsk/xsktest"
	"sluice.dev/sluice/test/bed/machine"
)

// TestLinks: a device that passed packets is read again when the kernel tells of a link, when all
// is read, and when the caller wants that.
func TestLinks(t *testing.T) {
	xsktest.EnterNamespace(t)
	addNIC(t, 1)
	l := newPortLab(t, smallConfig())
	want := func(when string, anew bool, why string) {
		t.Helper()
		links := l.s.Links(anew)
		if len(links) != 1 || !strings.Contains(links[0].Why, why) || why == "" && links[0].Why != "" {
			t.Errorf("%s: %+v, want %q", when, links, why)
		}
	}
	peer, err := netlink.LinkByName("peer0")
	must(t, err)
	up := func(up bool) {
		t.Helper()
		if up {
			must(t, netlink.LinkSetUp(peer))
		} else {
			must(t, netlink.LinkSetDown(peer))
		}
	}
	want("at first", false, "")
	up(false)
	want("while nobody is told", false, "no carrier")
	up(true)
	want("up again", false, "")

	l.s.notified.Store(true) // as if there were no news
	up(false)
	want("without news", false, "")
	want("anew", true, "no carrier")
	up(true)
	want("one that was blocked", false, "")
	up(false)
	l.s.look(t.Context(), true, nil)
	want("after all was read", false, "no carrier")
	up(true)
	want("up at last", false, "")

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	l.s.watchLinks(ctx)
	want("told from now on", false, "")
	news := l.s.linkNews.Load()
	up(false)
	for deadline := time.Now().Add(machine.Slower(5 * time.Second)); l.s.linkNews.Load() == news; {
		if time.Now().After(deadline) {
			t.Fatal("the kernel told nothing")
		}
		time.Sleep(time.Millisecond)
	}
	want("what the kernel told", false, "no carrier")
}
