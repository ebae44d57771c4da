package cli

import (
	"context"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/serve/status/statustest"
)

// lockedWriter is an output that a test reads while a command writes.
type lockedWriter struct {
	mu   sync.Mutex
	text strings.Builder
}

func (w *lockedWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(b)
}

func (w *lockedWriter) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

// TestEventsFollow: -f prints the events there are, and later ones, each once, in every format.
func TestEventsFollow(t *testing.T) {
	t.Parallel()
	for format, want := range map[string][]string{
		"table": {"2026-03-01T08:00:00.000Z  INFO   forwarding  took=12ms  workers=2\n",
			"2026-03-01T08:01:00.000Z  WARN   interface lost  interface=eth0  why=\"its link is down\"\n",
			"2026-03-01T10:00:00.000Z  ERROR  a   key=\"two\\nlines\"\n"},
		"json": {`"message":"forwarding","details":{"took":"12ms","workers":"2"}}` + "\n", `"message":"a\u001b"`},
		"yaml": {"---\ndetails:\n  took: 12ms\n", "message: forwarding\n", "why: its link is down\n"},
	} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			g := statustest.New()
			socket := daemon(t, g)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var out lockedWriter
			app := App{Out: &out, Err: io.Discard}
			done := make(chan int)
			go func() { done <- app.Main(ctx, []string{"events", "-f", "-o", format, "--socket", socket}) }()
			until := func(text string) {
				t.Helper()
				for end := time.Now().Add(10 * time.Second); !strings.Contains(out.String(), text); {
					if time.Now().After(end) {
						t.Fatalf("no %q in:\n%s", text, out.String())
					}
					time.Sleep(10 * time.Millisecond)
				}
			}
			until("no VIP is impaired")
			g.Add(status.EventView{Time: statustest.Start().Add(2 * time.Hour), Level: "ERROR", Message: "a\x1b",
				Details: map[string]string{"key": "two\nlines"}})
			until("ERROR")
			cancel()
			if code := <-done; code != exitOK {
				t.Errorf("exit %d", code)
			}
			for _, text := range want {
				if n := strings.Count(out.String(), text); n != 1 {
					t.Errorf("%q is printed %d times in:\n%s", text, n, out.String())
				}
			}
		})
	}
}

// TestEventsWithoutDaemon: -f ends if there is no daemon at its start.
func TestEventsWithoutDaemon(t *testing.T) {
	code, _, errs := sluice(t, "events", "-f", "--socket", t.TempDir()+"/none")
	if code != exitFailure || !strings.Contains(errs, "not running") {
		t.Errorf("exit %d, %s", code, errs)
	}
}
