package announce

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sluice.dev/sluice/announce/pulse"
	"sluice.dev/sluice/internal/heartbeat"
)

// blocking is a Speaker whose Apply blocks until its channel is closed.
type blocking struct {
	noted
	until atomic.Pointer[chan struct{}]
}

func (b *blocking) Apply(*World) { <-*b.until.Load() }

// TestStalledLoop: an announcer whose speaker blocks is reported as stalled after 15 s and requests
// a restart after a minute. An idle one is not, and one that continues is not any more.
func TestStalledLoop(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		var beats heartbeat.Set
		speaker := &blocking{}
		open := make(chan struct{})
		close(open)
		speaker.until.Store(&open)
		l := New(Config{Log: slog.New(slog.DiscardHandler), Source: fixed{}, Speakers: []Speaker{speaker},
			State: filepath.Join(dir, "announced.json"), Gateway: filepath.Join(dir, "pulse.sock"), Beats: &beats})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); l.Run(ctx) }()
		want := func(what string, stalled, restart bool) {
			t.Helper()
			got := strings.Join(l.View().Stalled, "; ")
			if strings.HasPrefix(got, "announcement loop: stalled") != stalled || (got != "") != stalled ||
				len(beats.Dead()) > 0 != restart {
				t.Errorf("%s: stalled %q, restart for %q", what, got, beats.Dead())
			}
		}
		time.Sleep(time.Minute)
		want("idle", false, false)
		synctest.Wait()
		blocks := make(chan struct{})
		speaker.until.Store(&blocks)
		time.Sleep(14 * time.Second)
		want("blocked for 14 s", false, false)
		time.Sleep(3 * time.Second)
		want("blocked for 17 s", true, false)
		time.Sleep(45 * time.Second)
		want("blocked for 62 s", true, true)
		close(blocks)
		time.Sleep(2 * time.Second)
		want("goes on", false, false)
		cancel()
		<-ended
		time.Sleep(time.Hour)
		want("ended", false, false)
	})
}

// TestStalledPulseReader: routes are withdrawn after the hold if the reader of the gateway's pulse
// has stalled, because the gateway may have ended. They come back when the reader continues.
func TestStalledPulseReader(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		var beats heartbeat.Set
		speaker := &noted{}
		l := New(Config{Log: slog.New(slog.DiscardHandler), Source: pool{uid: "1", addresses: "192.0.2.0/24"},
			Speakers: []Speaker{speaker}, State: filepath.Join(dir, "announced.json"), Hold: DefaultHold,
			Beats: &beats})
		l.pulses.beat.Beat()
		l.pulses.waiting = []pulse.Sight{{State: &pulse.State{Phase: pulse.Serving}, At: time.Now()}}
		gateway := func() Grade {
			l.step(time.Now(), false)
			return speaker.worlds[len(speaker.worlds)-1].Gateway
		}
		if g := gateway(); g != Yes {
			t.Fatalf("heard: %v", g)
		}
		time.Sleep(heartbeat.DefaultBounds.Unready)
		if g := gateway(); g != Yes || !strings.Contains(l.verdict.Why, "pulse has stalled") {
			t.Errorf("stalled: %v, %q; want that it is held", g, l.verdict.Why)
		}
		time.Sleep(DefaultHold)
		if g := gateway(); g != No {
			t.Errorf("stalled, after the hold: %v", g)
		}
		l.pulses.beat.Beat()
		if g := gateway(); g == No {
			t.Errorf("the reader goes on: %v, %q", g, l.verdict.Why)
		}
	})
}
