package daemon

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestFlowLogHangsAtTheEnd: the end of the gateway waits for a flow log whose disk hangs for a
// bounded time, and says that lines are lost.
func TestFlowLogHangsAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		began, asked := time.Now(), false
		f := flowLog{cancel: func() { asked = true }, done: make(chan struct{})}
		f.end(slog.New(slog.NewTextHandler(&out, nil)))
		if d := time.Since(began); d > 10*time.Second || !asked || !strings.Contains(out.String(), "disk hangs") {
			t.Errorf("after %v, asked %v: %s", d, asked, out.String())
		}
		f.end(slog.New(slog.DiscardHandler)) // it has ended
	})
}
