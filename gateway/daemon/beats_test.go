package daemon

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sluice.dev/sluice/announce/pulse"
	"sluice.dev/sluice/config"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/gateway/reach"
	"sluice.dev/sluice/gateway/workers"
	"sluice.dev/sluice/internal/heartbeat"
	"sluice.dev/sluice/serve/health"
)

// TestStalledLoop: from 15 s on a stalled loop makes a gateway not ready and impairs every VIP, so
// that another gateway is preferred and the last one keeps its routes. From a minute on it asks for
// a restart.
func TestStalledLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &Daemon{open: make(chan struct{})}
		d.beats.Add("control loop", heartbeat.DefaultBounds).Beat()
		asks := func(f health.Failure) bool { return f.Restart && strings.Contains(f.Reason, "control loop") }
		time.Sleep(14 * time.Second)
		if late := d.beats.Unready(); len(late) != 0 {
			t.Fatalf("after 14 s: %q", late)
		}
		time.Sleep(time.Second)
		stalled := d.beats.Unready()
		if len(stalled) != 1 || !slices.Contains(d.notReady(), stalled[0]) {
			t.Fatalf("after 15 s: stalled %q, not ready %q", stalled, d.notReady())
		}
		if slices.ContainsFunc(d.failures(), asks) || len(d.beats.Dead()) != 0 {
			t.Error("after 15 s it asks for a restart")
		}
		vips := []pulse.VIP{{Services: []pulse.Service{{Name: "a"}, {Name: "b", Impaired: "no route"}}}}
		if impair(vips, nil); vips[0].Services[0].Impaired != "" {
			t.Errorf("%+v", vips)
		}
		impair(vips, stalled)
		if got := vips[0].Services; got[0].Impaired != stalled[0] || got[1].Impaired != "no route" {
			t.Errorf("%+v", got)
		}
		time.Sleep(45 * time.Second)
		if !slices.ContainsFunc(d.failures(), asks) || !slices.Equal(d.beats.Dead(), stalled) {
			t.Errorf("after a minute it does not ask for a restart: %+v", d.failures())
		}
	})
}

// TestPulseReadsOnce: no pulse of a serving gateway has a failure while loops turn late and move
// again and draining begins and ends, although both are reasons for not being ready.
func TestPulseReadsOnce(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(d *Daemon) func(){
		"loops": func(d *Daemon) func() {
			loop := d.beats.Add("control loop", heartbeat.Bounds{Unready: time.Nanosecond})
			return func() { loop.Beat(); loop.Rest() }
		},
		"draining": func(d *Daemon) func() {
			return func() { d.shutdown.draining.Store(!d.shutdown.draining.Load()) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := &Daemon{open: make(chan struct{}), workers: &workers.Group{},
				settings: &settings{atStart: config.Default()}}
			close(d.open)
			d.reach.last.Store(&reached{why: []string{reach.NoRoute}})
			step, ended := change(d), make(chan struct{})
			var changes sync.WaitGroup
			changes.Go(func() {
				for {
					select {
					case <-ended:
						return
					default:
						step()
					}
				}
			})
			defer changes.Wait()
			defer close(ended)
			for range 20_000 {
				if p := d.pulse.next(d.pulseInput); len(p.Failures) > 0 {
					t.Fatalf("phase %s, failures %q", p.Phase, p.Failures)
				}
			}
		})
	}
}

// TestPulseFailures: a stalled worker and a link that passes no packets are failures of a serving
// gateway.
func TestPulseFailures(t *testing.T) {
	t.Parallel()
	in := pulseInput{phase: pulse.Serving, snapshot: &services.Snapshot{}, loops: []string{"a loop"},
		workers: []string{"worker 0"}, unreachable: []string{reach.NoRoute, "eth0 is down"}}
	var p pulseSource
	want := []string{"worker 0", "eth0 is down"}
	if got := p.next(func() pulseInput { return in }).Failures; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	in.phase = pulse.Draining
	if got := p.next(func() pulseInput { return in }).Failures; len(got) > 0 {
		t.Errorf("draining: %q", got)
	}
}
