//go:build root

package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/bench/demo/console"
	"sluice.dev/sluice/test/bed/launch"
)

// buildSluice builds the gateway from the tree, so that no stale binary is tested.
func buildSluice(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("needs root: network namespaces, XDP and AF_XDP")
	}
	path, err := launch.Build(t.TempDir(), false)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// run performs a demo and checks that nothing of it is left on disk.
func run(t *testing.T, ctx context.Context, c Config) (string, error) {
	t.Helper()
	var out strings.Builder
	c.Out = &out
	err := Run(ctx, c)
	pattern := fmt.Sprintf("/dev/shm/sluice-gate-%d-*", os.Getpid())
	if left, _ := filepath.Glob(pattern); len(left) > 0 { // the pattern is valid
		t.Errorf("left over: %v", left)
	}
	return out.String(), err
}

func TestShortDemo(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := run(t, ctx, Config{Sluice: buildSluice(t), Short: true})
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	for _, want := range []string{"1. Network and addresses", "9. SIGTERM", "All 24 expectations met"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

// The exit status must be right after each kind of failure.
func TestDemoFails(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root: network namespaces, XDP and AF_XDP")
	}
	out, err := run(t, t.Context(), Config{Sluice: "/bin/false"})
	if !errors.Is(err, console.ErrExpectation) || !strings.Contains(out, "1 FAILED, 0 met") {
		t.Errorf("a gateway that does not start: %v\n%s", err, out)
	}
	if _, err := run(t, t.Context(), Config{Sluice: "/nonexistent"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no binary: %v", err)
	}
}

func TestInterruptedDemoLeavesNothing(t *testing.T) {
	binary := buildSluice(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	out, err := run(t, ctx, Config{Sluice: binary})
	if err == nil || !strings.Contains(out, "interrupted") || strings.Contains(out, "FAILED") {
		t.Errorf("%v\n%s", err, out)
	}
}
