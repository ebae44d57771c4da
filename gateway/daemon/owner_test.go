package daemon

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/gateway/handover"
	"sluice.dev/sluice/gateway/owners"
)

// TestFollow: earlier pods are refused, and may be Ready while they wait. If the file cannot be
// read, one warning is logged, and the process starts as if there were none. Without a pod nothing
// is saved.
func TestFollow(t *testing.T) {
	for _, c := range []struct {
		name, pod, found string
		before           []string
		warnings         int
		saved            string
	}{
		{"none before", "c", "", nil, 0, `{"version":1,"owners":["c"]}` + "\n"},
		{"two before", "c", `{"version":1,"owners":["a","b"]}`, []string{"a", "b"}, 0,
			`{"version":1,"owners":["a","b","c"]}` + "\n"},
		{"not to be read", "c", `{"version":1,"own`, nil, 1, `{"version":1,"owners":["c"]}` + "\n"},
		{"no pod", "", `{"version":1,"owners":["a"]}`, nil, 0, `{"version":1,"owners":["a"]}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("POD_UID", c.pod)
			s := config.Default()
			s.StateDir = t.TempDir()
			file := filepath.Join(s.StateDir, owners.Name)
			if c.found != "" {
				if err := os.WriteFile(file, []byte(c.found), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			var log strings.Builder
			d := &Daemon{handOver: newHandOver(false, slog.New(slog.NewTextHandler(&log, nil)))}
			d.handOver.followLast(s)
			if !slices.Equal(d.handOver.predecessors, c.before) || strings.Count(log.String(), "\n") != c.warnings {
				t.Errorf("before it: %v, want %v; the log is %s", d.handOver.predecessors, c.before, &log)
			}
			if text, err := os.ReadFile(file); err != nil || string(text) != c.saved {
				t.Errorf("saved: %q, %v; want %q", text, err, c.saved)
			}
			for _, pod := range c.before {
				var barred *handover.BarredError
				_, err := (&predecessor{d: d}).Facts(&handover.Hello{Identity: pod})
				if err == nil || errors.As(err, &barred) || !strings.Contains(err.Error(), "is being deleted") {
					t.Errorf("%s asks: %v", pod, err)
				}
			}
		})
	}
}
