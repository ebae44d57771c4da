//go:build root

package vip

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/bench/demo/console"
	"sluice.dev/sluice/test/bed/cluster/clustertest"
	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/machine"
)

// programs builds the programs from the tree, so that no stale binary is tested.
func programs(t *testing.T) (c Config) {
	t.Helper()
	clustertest.Need(t)
	var errs [3]error
	dir := t.TempDir()
	c.Sluice, errs[0] = launch.Build(dir, false)
	c.Controller, errs[1] = launch.BuildCommand(dir, "sluice-controller")
	c.Announcer, errs[2] = launch.BuildCommand(dir, "sluice-announcer")
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	return c
}

// run runs the demo and checks that no file of it is left.
func run(t *testing.T, ctx context.Context, c Config, saw ...func(string)) (string, error) {
	t.Helper()
	var out strings.Builder
	c.Out = writer(func(text []byte) {
		out.Write(text)
		for _, f := range saw {
			f(string(text))
		}
	})
	err := Run(ctx, c)
	for _, pattern := range []string{"/dev/shm/sluice-gate-%d-*", "/dev/shm/sluice-cluster-%d-*", os.TempDir() +
		"/sluice-reach-%d-*"} {
		if left, _ := filepath.Glob(fmt.Sprintf(pattern, os.Getpid())); len(left) > 0 { // well-formed
			t.Errorf("left over: %v", left)
		}
	}
	return out.String(), err
}

// writer is called with each printed text.
type writer func([]byte)

func (w writer) Write(text []byte) (int, error) {
	w(text)
	return len(text), nil
}

// TestDemo: all expectations are met, within the documented minute.
func TestDemo(t *testing.T) {
	c := programs(t)
	ctx, cancel := context.WithTimeout(t.Context(), machine.Slower(time.Minute))
	defer cancel()
	out, err := run(t, ctx, c)
	t.Logf("%s", out)
	if err != nil || !strings.Contains(out, "All 11 expectations met") {
		t.Error(err)
	}
}

// TestDemoFails: a failed expectation sets the exit status.
func TestDemoFails(t *testing.T) {
	c := programs(t)
	c.Controller = "/bin/false" // no controller allocates addresses
	c.wait = 2 * time.Second
	out, err := run(t, t.Context(), c)
	if !errors.Is(err, console.ErrExpectation) || !strings.Contains(out, "part 5: addresses: ") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestInterrupted: nothing is left after an interruption in any part.
func TestInterrupted(t *testing.T) {
	c := programs(t)
	for _, at := range []string{"1. An API server", "4. A controller", "7. A gateway is lost"} {
		ctx, cancel := context.WithCancel(t.Context())
		out, err := run(t, ctx, c, func(text string) {
			if strings.Contains(text, at) {
				cancel()
			}
		})
		cancel()
		if !errors.Is(err, console.ErrInterrupted) || strings.Contains(out, "FAILED") {
			t.Errorf("%v\n%s", err, out)
		}
	}
}

// TestKeep: the network stays up until the interruption, with stable names, and is removed then.
func TestKeep(t *testing.T) {
	c := programs(t)
	c.Keep = true
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var curl string
	out, err := run(t, ctx, c, func(text string) {
		if _, command, is := strings.Cut(text, "  ip netns exec "); is && strings.Contains(text, " curl ") {
			curl = "ip netns exec " + strings.TrimSpace(command)
		}
		if !strings.Contains(text, "To remove everything") {
			return
		}
		if answer, err := exec.Command("sh", "-c", "exec "+curl+" -sS --max-time 5").CombinedOutput(); err != nil ||
			!strings.Contains(string(answer), "backend") {
			t.Errorf("%s: %v: %s", curl, err, answer)
		}
		cancel()
	})
	if err != nil || !strings.Contains(out, "All 8 expectations met") {
		t.Errorf("%v\n%s", err, out)
	}
}
