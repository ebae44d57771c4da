//go:build root

package launch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/test/bed/topo"
)

// lab is a gateway's host, without traffic.
func lab(t *testing.T, binary string) *Gateway {
	t.Helper()
	n, err := topo.New(topo.Config{Queues: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	g, err := New(Config{Sluice: binary, Host: n.Gateway})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(g.dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the directory after Close: %v", err)
		}
	})
	return g
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("needs root: network namespaces, XDP and AF_XDP")
	}
}

// What a gateway that was stopped must have left nothing of is found where it is:
// after a kill.
func TestLeftoversAreFound(t *testing.T) {
	needRoot(t)
	binary, err := Build(t.TempDir(), false)
	if err != nil {
		t.Fatal(err)
	}
	g := lab(t, binary)
	if left, err := g.Leftovers(); err != nil || len(left) != 0 {
		t.Fatalf("before the start: %v, %v", left, err)
	}
	if err := g.Start(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, g.Log())
	}
	if left, err := g.Leftovers(); err != nil || !slices.Contains(left, fmt.Sprintf("process %d", g.PID())) {
		t.Errorf("while it runs: %v, %v", left, err)
	}
	if err := g.Kill(); err != nil {
		t.Fatal(err)
	}
	left, err := g.Leftovers()
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Join(left, "\n")
	for _, want := range []string{
		"interface sluice0", "interface sluice1", "XDP program on front0", "XDP program on back0",
		"TCXEgress program on front0", "a mount under", "file " + stateDir,
	} {
		if !strings.Contains(all, want) {
			t.Errorf("not found: %s, in\n%s", want, all)
		}
	}
	if err := g.Start(t.Context()); err != nil {
		t.Fatalf("after the kill: %v\n%s", err, g.Log())
	}
	if err := g.Stop(); err != nil {
		t.Errorf("stop: %v\n%s", err, g.Log())
	}
	if left, err := g.Leftovers(); err != nil || len(left) != 0 {
		t.Errorf("after the stop: %v, %v", left, err)
	}
}

// The caller learns how a daemon ended, once.
func TestStopReturnsExitStatus(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	script := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, tc := range []struct{ name, text, want string }{
		{"well", "trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done", ""},
		{"badly", "trap 'exit 3' TERM; echo ready; while :; do sleep 0.01; done", "exit status 3"},
		{"before it was asked to", "echo ready; exit 4", "ended before SIGTERM: exit status 4"},
		{"well, before it was asked to", "echo ready; exit 0", "ended before SIGTERM: exit status 0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := lab(t, script(strings.ReplaceAll(tc.name, " ", "-"), tc.text))
			if err := g.Launch(); err != nil {
				t.Fatal(err)
			}
			within(t, func() bool { return strings.Contains(g.Log(), "ready") })
			if strings.Contains(tc.want, "before") {
				within(t, func() bool { return !g.Running() })
			}
			if err := g.Stop(); (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(),
				tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
			if err := g.Stop(); err != nil {
				t.Errorf("asked again: %v", err)
			}
		})
	}
	t.Run("at the start", func(t *testing.T) {
		g := lab(t, script("false", "exit 5"))
		if err := g.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "exit status 5") {
			t.Errorf("start: %v", err)
		}
		if err := g.Stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
}

func within(t *testing.T, yes func() bool) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); !yes(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not within 5 s")
		}
	}
}
