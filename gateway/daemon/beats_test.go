package daemon

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sluice.dev/sluice/announce/pulse"
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
