package cli

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/gateway/nodetunnel"
)

// runNode runs `sluice node run` with an output, and a tunnel that changes so often that a pipe is
// full.
func runNode(t *testing.T, out io.Writer) (done chan int) {
	run := func(_ context.Context, _ *nodetunnel.Config, report func(string)) error {
		for range 3000 {
			report("applied: " + strings.Repeat("x", 100))
		}
		return nil
	}
	app := App{Out: out, Err: io.Discard, Node: NodeCommands{Run: run}}
	done = make(chan int, 1)
	go func() { done <- app.Main(t.Context(), []string{"node", "run", "--vni", "1", "--gateway", "10.0.0.1"}) }()
	return done
}

// TestNodeRunUnread: `sluice node run` keeps and removes its tunnel while nobody reads its output,
// and a reader gets all lines.
func TestNodeRunUnread(t *testing.T) {
	r, w := io.Pipe()
	defer r.Close()
	select {
	case code := <-runNode(t, w):
		if code != 0 {
			t.Errorf("exit %d", code)
		}
	case <-time.After(20 * time.Second):
		t.Error("it waits for the reader of its output")
	}
	var out bytes.Buffer
	if code := <-runNode(t, &out); code != 0 || strings.Count(out.String(), "applied: ") != 3000 {
		t.Errorf("exit %d, %d lines", code, strings.Count(out.String(), "applied: "))
	}
}
