package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/host/hostlink"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/xdpprog"
)

// TestProcessName: an operator cannot end process 0, so it is not named by its number.
func TestProcessName(t *testing.T) {
	for pid, want := range map[int]string{0: "a process of another container", 7: "process 7"} {
		if got := processName(pid); got != want {
			t.Errorf("process %d is %q, want %q", pid, got, want)
		}
	}
}

// TestRetryInUse: while the kernel ends the predecessor, a process that has waited for it also
// waits for its other files. The error of the pins' table is that of a flow table. A process that
// did not wait fails at once, and so does a process with another error.
func TestRetryInUse(t *testing.T) {
	other := errors.New("another error")
	for _, c := range []struct {
		err    error
		waited bool
		steps  int
	}{
		{flowtable.ErrInUse, true, 3}, {xdpprog.ErrInUse, true, 3}, {hostlink.ErrInUse, true, 3},
		{status.ErrInUse, true, 3}, {flowtable.ErrInUse, false, 1}, {other, true, 1},
	} {
		steps := 0
		err := (&Daemon{handOver: handOver{waited: c.waited}}).retryInUse(func() error {
			if steps++; steps < 3 {
				return fmt.Errorf("pins: %w", c.err)
			}
			return nil
		})
		if steps != c.steps || (err == nil) != (c.steps == 3) {
			t.Errorf("%v, waited %v: %d steps, %v; want %d steps", c.err, c.waited, steps, err, c.steps)
		}
	}
}

// TestSocketOfThird: a process that waits gets the socket of waiting processes once the process
// that has it ends.
func TestSocketOfThird(t *testing.T) {
	c := config.Default()
	c.StateDir = t.TempDir()
	third, err := status.Listen(c.WaitingSocket())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s := &standby{d: &Daemon{settings: &settings{inForce: c}, log: slog.New(slog.DiscardHandler)}, cancel: cancel}
	s.serve(ctx)
	client := status.NewClient(c.WaitingSocket())
	asked, end := context.WithTimeout(ctx, 10*time.Millisecond)
	defer end()
	if _, err := client.Stats(asked); err == nil { // the third one listens, and does not answer
		t.Error("there are two on the socket")
	}
	if err := third.Close(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if _, err = client.Stats(ctx); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("it does not answer after the third one's end: %v", err)
		}
	}
	s.stop()
	if _, err := os.Stat(c.WaitingSocket()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
}
