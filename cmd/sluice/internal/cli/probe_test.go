package cli

import (
	"strings"
	"testing"

	"sluice.dev/sluice/control/metrics"
	"sluice.dev/sluice/control/status"
	"sluice.dev/sluice/control/status/statustest"
)

// TestProbe: what the kubelet hears.
func TestProbe(t *testing.T) {
	for _, c := range []struct {
		name, probe string
		change      func(*statustest.Gateway)
		code        int
		says        string
	}{
		{"ready", "ready", func(*statustest.Gateway) {}, 0, ""},
		{"not ready", "ready", func(g *statustest.Gateway) {
			g.StatusView.Ready, g.StatusView.NotReady = false, []string{"draining", "eth0"}
		}, 1, "not ready: draining; eth0"},
		{"live", "live", func(*statustest.Gateway) {}, 0, ""},
		{"live though not ready", "live", func(g *statustest.Gateway) { g.StatusView.Ready = false }, 0, ""},
		{"no worker yet", "live", func(g *statustest.Gateway) { g.StatsView.Workers = nil }, 0, ""},
		{"workers that have not begun", "live", func(g *statustest.Gateway) { workers(g, -1) }, 0, ""},
		{"slow", "live", func(g *statustest.Gateway) { workers(g, metrics.DefaultStale.Nanoseconds()) }, 0, ""},
		{"a worker stands still", "live", func(g *statustest.Gateway) {
			workers(g, metrics.DefaultStale.Nanoseconds()+
				1e9)
		}, 1, "stands still for 11s"},
		{"a loop has stalled", "live", func(g *statustest.Gateway) {
			g.StatsView.Stalled = []string{"control loop: stalled since 10:00:00"}
		}, 1, "control loop: stalled since 10:00:00"},
		{"another word", "healthy", func(*statustest.Gateway) {}, 2, "healthy"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := statustest.New()
			c.change(g)
			code, _, errs := sluice(t, "--socket", daemon(t, g), "probe", c.probe)
			if code != c.code || !strings.Contains(errs, c.says) {
				t.Errorf("code %d, %q; want %d and %q", code, errs, c.code, c.says)
			}
		})
	}
	if code, _, errs := sluice(t, "--socket", t.TempDir()+"/none", "probe", "live"); code == 0 {
		t.Errorf("without a daemon: code %d, %q", code, errs)
	}
}

// workers sets every worker's last pass to an age.
func workers(g *statustest.Gateway, nanos int64) {
	list := append([]status.WorkerView(nil), g.StatsView.Workers...)
	for i := range list {
		list[i].PulseNanos = nanos
	}
	g.StatsView.Workers = list
}
