package daemon

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"sluice.dev/sluice/flowtable"
)

// TestConnections: only open TCP keeps a daemon that was asked to stop.
func TestConnections(t *testing.T) {
	var c flowtable.Counts
	for s, n := range map[flowtable.State]uint64{
		flowtable.TimeWaitClient: 1, flowtable.TimeWaitBackend: 1, flowtable.Closed: 1,
		flowtable.UDPNew: 100, flowtable.UDPReplied: 100, flowtable.UDPAssured: 100, flowtable.ICMPEcho: 100,
	} {
		c.Live[0] += n
		c.States[s] = n
	}
	if n := connections(&c); n != 0 {
		t.Errorf("%d of flows that are over, or of other protocols", n)
	}
	for s := flowtable.SynSeen; s <= flowtable.LastAckBackend; s++ {
		c.States[s] = 2
	}
	if n := connections(&c); n != 16 {
		t.Errorf("%d open, want 16", n)
	}
}

// TestFarewell: the last line says clean only where the node is, and counts what broke.
func TestFarewell(t *testing.T) {
	for _, c := range []struct {
		keep bool
		err  error
		want []string
	}{
		{false, nil, []string{"level=INFO", "the node is clean", "brokenConnections=3"}},
		{true, nil, []string{"level=INFO", "wait for the next process", "openConnections=3"}},
		{false, errors.New("busy"), []string{"level=ERROR", "the node is not clean", "error=busy", "openConnections=3"}},
		{true, errors.New("busy"), []string{"level=ERROR", "the node is not clean", "error=busy"}},
	} {
		var log bytes.Buffer
		farewell(slog.New(slog.NewTextHandler(&log, nil)), c.keep, 3, c.err)
		for _, want := range c.want {
			if !strings.Contains(log.String(), want) {
				t.Errorf("keep %v, error %v: no %q in %s", c.keep, c.err, want, log.String())
			}
		}
	}
}
