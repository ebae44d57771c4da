//go:build root

package announce

import (
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/topo"
)

// TestHandOvers: processes of the gateway take over from each other, one after another, under a
// load of numbered datagrams that reach the VIP only by the announced route. BGP and BFD at 3 x 100
// ms stay up and no hold is used: no session ends, the route stays, no datagram is lost or
// duplicated.
func TestHandOvers(t *testing.T) {
	timed(t, func(t *testing.T, kind string) {
		h := newHandOvers(t, kind, false)
		h.run(few(50, 3))
		h.report()
	})
}

// The announcer is also replaced between hand-overs, by graceful restart: only then do its sessions
// begin again.
func TestHandOversAndAnnouncerRestarts(t *testing.T) {
	onlyFull(t)
	h := newHandOvers(t, "bird", true)
	h.run(10)
	h.replaceAnnouncer()
	h.run(10)
	h.report()
}

// handOvers is a lab with sessions, a load, and counts of both.
type handOvers struct {
	*lab
	load     *topo.Numbered
	sessions string // the router's counts of sessions
	gone     *atomic.Int64
	gaps     []time.Duration
}

func newHandOvers(t *testing.T, kind string, restart bool) *handOvers {
	t.Helper()
	l := withSession(t, kind, true, restart, "--hold", "0s")
	l.apply(launch.Service{Name: "echo", Port: port, UDP: true, VIPs: []string{vip4}})
	_, err := l.gate.Applied(l.ctx)
	must(t, err)
	h := &handOvers{lab: l, gone: l.deletions(vip)}
	h.load, err = l.Clients[0].Number(topo.NumberedLoad{From: l.Clients[0].Addr4(), Rate: 2000,
		To: netip.AddrPortFrom(netip.MustParseAddr(vip4), port)})
	must(t, err)
	h.sessions = h.state()
	return h
}

// run hands over several times, and checks the sessions after each.
func (h *handOvers) run(times int) {
	h.t.Helper()
	for range times {
		must(h.t, h.gate.LaunchNext())
		must(h.t, h.gate.TakenOver(h.ctx))
		v, err := h.gate.Applied(h.ctx)
		must(h.t, err)
		if v.TakeOver == nil || v.TakeOver.At.IsZero() {
			h.t.Fatalf("it did not take over: %+v\n%s", v.TakeOver, h.gate.Log())
		}
		h.gaps = append(h.gaps, time.Duration(v.TakeOver.GapMicros)*time.Microsecond)
		want := h.load.Answered() + 500
		h.within(20*time.Second, "more datagrams are answered", func() (bool, error) {
			return h.load.Answered() >= want, nil
		})
		if now := h.state(); now != h.sessions {
			h.t.Fatalf("hand-over %d: sessions were\n%sand are\n%s", len(h.gaps), h.sessions, now)
		}
	}
}

// replaceAnnouncer ends the announcer as an update would, and starts the next one.
func (h *handOvers) replaceAnnouncer() {
	h.t.Helper()
	must(h.t, h.ours.Stop())
	h.start()
	h.within(20*time.Second, "the session", func() (bool, error) {
		v, err := h.ours.Ask(h.ctx)
		return err == nil && len(v.Peers) == 1 && v.Peers[0].Up, err
	})
	h.stays(endOfRIB, "started")
	h.bfdUp()
	h.sessions = h.state()
}

// report ends the load and prints the counts.
func (h *handOvers) report() {
	h.t.Helper()
	sent, lost, repeated, err := h.load.Finish()
	slices.Sort(h.gaps)
	h.t.Logf("%d hand-overs: packets waited %v (median), %v (most); of %d datagrams each way %d lost, %d repeated; "+
		"the route went %d times; sessions:\n%s", len(h.gaps), h.gaps[len(h.gaps)/2], h.gaps[len(h.gaps)-1], sent, lost,
		repeated, h.gone.Load(), h.sessions)
	if lost > 0 || repeated > 0 || sent == 0 || err != nil {
		h.t.Errorf("of %d datagrams %d lost, %d repeated, %v", sent, lost, repeated, err)
	}
	if n := h.gone.Load(); n > 0 {
		h.t.Errorf("the route went %d times", n)
	}
}

// state returns the router's counts of its sessions: BIRD logs each change of state, FRR counts ups
// and downs.
func (h *handOvers) state() string {
	h.t.Helper()
	var lines []string
	if h.kind == "bird" {
		for line := range strings.Lines(h.router.Log()) {
			if strings.Contains(line, "changed state from") || strings.Contains(line, "four: State changed to") ||
				strings.Contains(line, "four: BGP session") {
				lines = append(lines, line)
			}
		}
	} else {
		for command, word := range map[string]string{"show bgp neighbors": "Connections established",
			"show bfd peers counters": "Session "} {
			out, err := h.router.Ask(h.ctx, command)
			must(h.t, err)
			for line := range strings.Lines(out) {
				if strings.Contains(line, word) {
					lines = append(lines, strings.TrimSpace(line)+"\n")
				}
			}
		}
		slices.Sort(lines)
	}
	if len(lines) < 2 {
		h.t.Fatalf("the router says nothing of its sessions:\n%s", h.router.Log())
	}
	return strings.Join(lines, "")
}

// deletions counts how often the router's kernel loses a route from now on.
func (l *lab) deletions(prefix string) *atomic.Int64 {
	l.t.Helper()
	updates, done := make(chan netlink.RouteUpdate, 64), make(chan struct{})
	var n atomic.Int64
	must(l.t, l.router.Host.Run(func() error { return netlink.RouteSubscribe(updates, done) }))
	l.t.Cleanup(func() { close(done) })
	go func() {
		for u := range updates {
			if u.Type == unix.RTM_DELROUTE && u.Dst != nil && u.Dst.String() == prefix {
				n.Add(1)
			}
		}
	}()
	return &n
}
