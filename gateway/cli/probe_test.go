package cli

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/serve/metrics"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/serve/status/statustest"
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
		}, 1, "has made no progress for 11s"},
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

// TestNoAnswer: a daemon that takes connections and answers nothing, as one that is stopped, is
// named before the kubelet ends a probe, and after the wait of `status --wait`.
func TestNoAnswer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	for _, args := range []string{"probe ready", "probe live", "status --wait --timeout 10ms"} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			code, out, errs := sluice(t, append(strings.Fields(args), "--socket", path)...)
			if code != exitFailure || out != "" ||
				!strings.Contains(errs, "the sluice daemon does not answer on "+path) {
				t.Errorf("exit %d, %s%s", code, out, errs)
			}
			if took := time.Since(began); took > 4900*time.Millisecond {
				t.Errorf("it took %v", took)
			}
		})
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
