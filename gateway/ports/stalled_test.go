package ports

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sluice.dev/sluice/internal/heartbeat"
)

// TestStalledWatch: the watch of interfaces is late when what it calls blocks, and not while a
// hand-over has paused the ports.
func TestStalledWatch(t *testing.T) {
	var beats heartbeat.Set
	synctest.Test(t, func(t *testing.T) {
		s := &Set{log: slog.New(slog.DiscardHandler), looking: make(chan struct{}, 1),
			beat: beats.Add("watch of interfaces", heartbeat.DefaultBounds)}
		ctx, cancel := context.WithCancel(t.Context())
		until, blocks, done := make(chan struct{}), false, make(chan struct{})
		look := func(context.Context) {
			if blocks {
				<-until
			}
		}
		if err := s.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		go func() { defer close(done); s.watch(ctx, nil, func() {}, look) }()
		time.Sleep(time.Minute)
		if late := beats.Unready(); len(late) > 0 {
			t.Errorf("paused: %q", late)
		}
		blocks = true
		s.Resume()
		time.Sleep(20 * time.Second)
		if late := beats.Unready(); len(late) != 1 || !strings.HasPrefix(late[0], "watch of interfaces: stalled") {
			t.Errorf("blocked: %q", late)
		}
		close(until)
		time.Sleep(time.Second)
		if late := beats.Unready(); len(late) > 0 {
			t.Errorf("goes on: %q", late)
		}
		cancel()
		<-done
	})
}
