//go:build root

package announce

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"sluice.dev/sluice/announce/pulse"
)

// pulsing is a gateway that only reports its state.
type pulsing struct {
	t    *testing.T
	path string
	now  atomic.Pointer[pulse.State]
	end  func()
}

// report begins to report a state.
func (r *pulsing) report(s *pulse.State) {
	r.t.Helper()
	r.now.Store(s)
	if r.end != nil {
		return
	}
	l, err := net.Listen("unix", r.path)
	must(r.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		pulse.NewServer(r.now.Load, slog.New(slog.DiscardHandler)).Serve(ctx, l)
	}()
	r.end = func() { cancel(); <-done; r.end = nil }
}

// TestSourceAddresses: a router sends the packets of a source address to the first gateway that
// announces it, and to the next one as soon as that one's process has ended.
func TestSourceAddresses(t *testing.T) {
	t.Parallel()
	beside(t, func(t *testing.T, kind string) {
		s := newRouted(t, kind, 0)
		addresses := []netip.Addr{netip.MustParseAddr("198.18.0.1"), netip.MustParseAddr("2001:db8:18::1")}
		state := func(rank int) *pulse.State {
			st := &pulse.State{PID: 1, Phase: pulse.Serving, Copied: true}
			for _, a := range addresses {
				st.Sources = append(st.Sources, pulse.Source{Address: a, Rank: rank})
			}
			return st
		}
		var pulses []*pulsing
		for i, m := range s.gateways {
			must(t, m.ours.Stop())
			r := &pulsing{t: t, path: filepath.Join(s.dir, m.name+".sock")}
			r.report(state(i))
			t.Cleanup(func() {
				if r.end != nil {
					r.end()
				}
			})
			m.start("--gateway", r.path, "--hold", "30s")
			pulses = append(pulses, r)
		}
		one, other := s.gateways[0], s.gateways[1]
		leads := func(to *member, most time.Duration) {
			t.Helper()
			for _, a := range addresses {
				s.by(a, most, to)
			}
		}
		leads(one, 30*time.Second)
		pulses[0].report(state(8)) // its copies are stale
		leads(other, 3*time.Second)
		pulses[0].report(state(0))
		leads(one, 3*time.Second)
		began := time.Now()
		pulses[0].end()
		leads(other, 3*time.Second)
		t.Logf("the other gateway has the addresses after %v", time.Since(began))
		pulses[0].report(state(0))
		leads(one, 3*time.Second)
	})
}
