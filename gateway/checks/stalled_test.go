package checks

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/endpointhealth"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/internal/heartbeat"
)

// TestStalledChecks: the goroutine that makes checks is late when what it reports to blocks, and
// not while nothing is checked; nor is the one that connects.
func TestStalledChecks(t *testing.T) {
	before := heartbeat.DefaultBounds
	heartbeat.DefaultBounds = heartbeat.Bounds{Unready: 4 * endpointhealth.SampleEvery, Restart: time.Minute}
	t.Cleanup(func() { heartbeat.DefaultBounds = before })
	var beats heartbeat.Set
	until, reported := make(chan struct{}), make(chan struct{}, 1)
	r, err := New(Config{Log: slog.New(slog.DiscardHandler), Beats: &beats,
		Settings: endpointhealth.Config{ChecksPerSecond: 1000}, Own: func(netip.Addr) bool { return false },
		Apply:    func(context.Context, []compiler.EndpointHealth) error { return nil },
		Snapshot: func() *services.Snapshot { return nil },
		Report:   func([]objects.Problem) { reported <- struct{}{}; <-until }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.Run(ctx) }()
	time.Sleep(2 * heartbeat.DefaultBounds.Unready)
	if late := beats.Unready(); len(late) > 0 {
		t.Errorf("nothing is checked: %q", late)
	}
	r.SetCheckedPorts(nil)
	<-reported
	time.Sleep(2 * heartbeat.DefaultBounds.Unready)
	if late := beats.Unready(); len(late) != 1 || !strings.HasPrefix(late[0], "health checks: stalled") {
		t.Errorf("blocked: %q", late)
	}
	close(until)
	cancel()
	<-done
	if late := beats.Unready(); len(late) > 0 {
		t.Errorf("ended: %q", late)
	}
}
