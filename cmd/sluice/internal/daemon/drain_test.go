package daemon

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
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
