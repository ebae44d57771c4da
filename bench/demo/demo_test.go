package demo

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/bench/topo"
)

// buildSluice builds the gateway from the tree, so that no stale binary is judged.
func buildSluice(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces, XDP and AF_XDP need root")
	}
	path := filepath.Join(t.TempDir(), "sluice")
	c := exec.Command("go", "build", "-o", path, "sluice.dev/sluice/cmd/sluice")
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

// run performs a demo and checks that nothing of it is left on disk.
func run(t *testing.T, ctx context.Context, c Config) (string, error) {
	t.Helper()
	var out strings.Builder
	c.Out = &out
	before, _ := filepath.Glob("/dev/shm/sluice-demo-*") // the pattern is well-formed
	err := Run(ctx, c)
	after, _ := filepath.Glob("/dev/shm/sluice-demo-*")
	if len(after) > len(before) {
		t.Errorf("left over: %v", after)
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
	for _, want := range []string{"1. What", "9. SIGTERM", "All 24 expectations met"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

// The exit status must tell the truth, whatever goes wrong.
func TestDemoFails(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("network namespaces, XDP and AF_XDP need root")
	}
	out, err := run(t, t.Context(), Config{Sluice: "/bin/false"})
	if !errors.Is(err, ErrExpectation) || !strings.Contains(out, "1 FAILED, 0 met") {
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

// What act 9 finds nothing of must be found where it is: after a kill.
func TestLeftoversAreFound(t *testing.T) {
	binary := buildSluice(t)
	n, err := topo.New(topo.Config{Queues: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	dir, err := makeDirectory()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Gateway.SetSysctl("net.ipv4.ip_local_port_range", "32768 60999"); err != nil {
		t.Fatal(err)
	}
	g, err := newGateway(n.Gateway, binary, dir)
	if err != nil {
		t.Fatal(err)
	}
	d := &demo{net: n, gw: g}
	defer func() {
		if err := d.remove(dir); err != nil {
			t.Error(err)
		}
	}()
	if left, err := g.leftovers(); err != nil || len(left) != 0 {
		t.Fatalf("before the start: %v, %v", left, err)
	}
	if err := g.start(); err != nil {
		t.Fatal(err)
	}
	if _, err := g.applied(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, strings.Join(g.logTail(tailLines), "\n"))
	}
	if err := g.kill(); err != nil {
		t.Fatal(err)
	}
	left, err := g.leftovers()
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Join(left, "\n")
	for _, want := range []string{
		"interface sluice0", "interface sluice1", "XDP program on front0", "XDP program on back0",
		"TCXEgress program on front0", "a mount under", "file " + stateDir, "file " + socketFile,
	} {
		if !strings.Contains(all, want) {
			t.Errorf("not found: %s, in\n%s", want, all)
		}
	}
}
