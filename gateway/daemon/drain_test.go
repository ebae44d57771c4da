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

// TestKeepsState: a process that forwards keeps the state if drain.handOver is set, also if it has
// taken over and has opened nothing yet. A process that does not forward keeps a predecessor's
// state.
func TestKeepsState(t *testing.T) {
	for _, c := range []struct{ received, open, handOver, want bool }{
		{false, false, false, true}, {true, false, false, false}, {true, false, true, true}, {true, true, false, false},
	} {
		s := &config.Configuration{}
		s.Drain.HandOver = c.handOver
		d := &Daemon{settings: &settings{inForce: s}, flows: flowState{file: &flowtable.File{}},
			open: make(chan struct{})}
		if c.received {
			d.handOver.receive(&offer{})
			d.handOver.enter(owning)
		}
		if c.open {
			close(d.open)
		}
		if got := d.keepsState(); got != c.want {
			t.Errorf("%+v: keeps %v", c, got)
		}
	}
}
