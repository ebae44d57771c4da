package daemon

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/flowtable"
)

// TestLastLogLine: the last line contains "clean" only if the node was restored, and counts the
// connections that broke.
func TestLastLogLine(t *testing.T) {
	for _, c := range []struct {
		keep bool
		err  error
		want []string
	}{
		{false, nil, []string{"level=INFO", "the node is clean", "brokenConnections=3"}},
		{true, nil, []string{"level=INFO", "wait for the next process", "openConnections=3"}},
		{false, errors.New("busy"), []string{"level=ERROR", "the node is not clean", "error=busy",
			"openConnections=3"}},
		{true, errors.New("busy"), []string{"level=ERROR", "the node is not clean", "error=busy"}},
	} {
		var log bytes.Buffer
		logStopped(slog.New(slog.NewTextHandler(&log, nil)), c.keep, 3, c.err)
		for _, want := range c.want {
			if !strings.Contains(log.String(), want) {
				t.Errorf("keep %v, error %v: no %q in %s", c.keep, c.err, want, log.String())
			}
		}
	}
}

// TestKeepsWhatItForwards: a process that has taken over, and has opened nothing yet, leaves what
// drain.handOver says, as one that is open; one that has not even that leaves a predecessor's.
func TestKeepsWhatItForwards(t *testing.T) {
	for _, c := range []struct{ took, open, handOver, want bool }{
		{false, false, false, true}, {true, false, false, false}, {true, false, true, true}, {true, true, false, false},
	} {
		d := &Daemon{config: &config.Configuration{}, flows: &flowtable.File{}, open: make(chan struct{})}
		d.config.Drain.HandOver = c.handOver
		d.took.Store(c.took)
		if c.open {
			close(d.open)
		}
		if got := d.keeps(); got != c.want {
			t.Errorf("%+v: keeps %v", c, got)
		}
	}
}
