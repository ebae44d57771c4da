package cli

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/wake"
	"sluice.dev/sluice/serve/status/statustest"
)

// pipe returns the ends of a pipe, which are closed after the test.
func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

// TestNobodyReads: commands without an end stop when the reader of their output has gone, though
// they write nothing.
func TestNobodyReads(t *testing.T) {
	socket := daemon(t, statustest.New())
	for _, args := range []string{
		"ui --listen 127.0.0.1:0", "events -f --since 1ns", "capture -w -", "stats --watch=1h",
	} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			r, w := pipe(t)
			var errs bytes.Buffer
			done := make(chan int, 1)
			go func() {
				app := App{Out: w, Err: &errs}
				done <- app.Main(t.Context(), append(strings.Fields(args), "--socket", socket))
			}()
			select {
			case code := <-done:
				t.Fatalf("exit %d with a reader: %s", code, errs.String())
			case <-time.After(attachedEvery + time.Second/2):
			}
			r.Close()
			select {
			case code := <-done:
				if code != exitOK {
					t.Errorf("exit %d: %s", code, errs.String())
				}
			case <-time.After(30 * time.Second):
				t.Error("it goes on")
			}
		})
	}
}

// TestInputIsClosed: ui ends when its input is closed, but not because it was from the start.
func TestInputIsClosed(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	open, writer := pipe(t)
	closed, gone := pipe(t)
	gone.Close()
	for _, c := range []struct {
		name string
		in   *os.File
		end  func()
	}{
		{"closed later", open, func() { writer.Close() }},
		{"closed before", closed, nil},
		{"/dev/null", null, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := &session{app: &App{Out: new(bytes.Buffer)}}
			ctx, stop := s.attached(t.Context(), c.in)
			defer stop()
			if !wake.After(ctx, attachedEvery*5/2) {
				t.Fatal("it has ended")
			}
			if c.end != nil {
				c.end()
				if wake.After(ctx, 30*time.Second) {
					t.Error("it goes on")
				}
			}
		})
	}
}
