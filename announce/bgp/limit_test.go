package bgp

import (
	"encoding/binary"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/osrg/gobgp/v4/pkg/apiutil"
	wire "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"sluice.dev/sluice/announce/kinds"
	"sluice.dev/sluice/announce/view"
)

// sends makes the router send n routes to all its peers.
func (r *router) sends(n int) {
	r.t.Helper()
	paths := make([]*apiutil.Path, 0, n)
	for i := range n {
		var a [4]byte
		binary.BigEndian.PutUint32(a[:], 10<<24+uint32(i))
		nlri, err := wire.NewIPAddrPrefix(netip.PrefixFrom(netip.AddrFrom4(a), 32))
		r.must(err)
		hop, err := wire.NewPathAttributeNextHop(addresses[0])
		r.must(err)
		paths = append(paths, &apiutil.Path{Family: wire.RF_IPv4_UC, Nlri: nlri,
			Attrs: []wire.PathAttributeInterface{wire.NewPathAttributeOrigin(0), hop}})
	}
	_, err := r.AddPath(apiutil.AddPathRequest{Paths: paths})
	r.must(err)
}

// TestPrefixLimit: a session whose peer sends too many routes is ended, also with graceful restart,
// and the peer's routes are dropped. Status and a Problem name the limit while the session waits,
// and it begins again after the wait, not before.
func TestPrefixLimit(t *testing.T) {
	for name, restart := range map[string]bool{"plain": false, "graceful restart": true} {
		t.Run(name, func(t *testing.T) {
			port := closedPort(t)
			r := newRouter(t, port, restart)
			s, w := newSpeaker(t, port, restart)
			r.until(2, s, w)
			r.sends(maxPrefixes + 1)
			limited := func(p view.Peer) bool { return !p.Up && strings.Contains(p.Why, "more than 10000 routes") }
			for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
				s.Apply(w)
				report := s.Report()
				told := slices.ContainsFunc(report.Problems, func(p kinds.Problem) bool {
					return p.Reason == kinds.PrefixLimit && strings.Contains(p.Note, "more than 10000 routes")
				})
				if !slices.ContainsFunc(report.Peers, func(p view.Peer) bool { return !limited(p) }) && told &&
					len(has(t, s)) == 0 {
					break
				}
				if time.Now().After(end) {
					t.Fatalf("GoBGP has %v; %+v", has(t, s), report)
				}
			}
			for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
				s.Apply(w)
				if list := has(t, s); len(list) != 0 {
					t.Fatalf("GoBGP has %v again, before the wait is over", list)
				}
			}
			s.mu.Lock()
			for _, session := range s.sessions {
				session.limit.retry = time.Now()
			}
			s.mu.Unlock()
			s.Apply(w)
			if list := has(t, s); !slices.Equal(list, addresses) {
				t.Errorf("after the wait GoBGP has %v, want %v", list, addresses)
			}
		})
	}
}

// TestPrefixLimitWaits: the wait doubles up to a bound, and is short again after a session that
// stayed up.
func TestPrefixLimitWaits(t *testing.T) {
	var l prefixLimit
	now := time.Unix(1_000_000, 0)
	for _, c := range []struct{ up, wait time.Duration }{
		{time.Hour, time.Minute}, {time.Second, 2 * time.Minute}, {time.Second, 4 * time.Minute},
		{retryForget - 1, 8 * time.Minute}, {0, 16 * time.Minute}, {0, 30 * time.Minute}, {0, 30 * time.Minute},
		{retryForget, time.Minute},
	} {
		l.ended(now.Add(-c.up), now)
		l.exceeded(now)
		if l.wait != c.wait || !l.waits(now.Add(c.wait-1)) || l.waits(now.Add(c.wait)) {
			t.Errorf("up for %v: it waits %v, want %v", c.up, l.wait, c.wait)
		}
	}
}

// TestPrefixLimitIsPast: a session exceeds the limit, stays up later, and then ends for another
// reason: the limit is not reported as a problem.
func TestPrefixLimitIsPast(t *testing.T) {
	s := New(Config{Log: slog.New(slog.DiscardHandler)})
	peer := &kinds.Peer{Name: "a", Address: netip.MustParseAddr("127.0.0.9")}
	session := newSession(peer)
	s.sessions["a"] = session
	now := time.Unix(1_000_000, 0)
	session.begun, session.up, session.since = now, true, now
	session.limit.exceeded(now)
	for _, c := range []struct {
		up   time.Duration
		told bool
	}{{retryForget - 1, true}, {retryForget, false}} {
		say(s, peer.Address, wire.BGP_FSM_ESTABLISHED, now)
		now = now.Add(c.up)
		say(s, peer.Address, wire.BGP_FSM_IDLE, now)
		if list := s.Report().Problems; (len(list) > 0) != c.told {
			t.Errorf("up for %v: %+v", c.up, list)
		}
	}
}
