package stateful

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/bench/gate"
	"sluice.dev/sluice/bench/results"
)

// TestBackToBack is the command over a wire: a table and a file.
func TestBackToBack(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root: network namespaces, XDP")
	}
	c := Defaults()
	var out bytes.Buffer
	c.Out, c.Progress = &out, io.Discard
	c.Profile, c.Duration, c.CPS = "http", time.Second, 300
	c.JSON = filepath.Join(t.TempDir(), "run.json")
	if err := Run(t.Context(), c); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	for _, want := range []string{"page", "keepalive", "violations", "every connection met one server"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table has no %q:\n%s", want, &out)
		}
	}
	run, err := results.Load(c.JSON)
	if err != nil {
		t.Fatal(err)
	}
	rates := 0
	for i := range run.Points {
		p := &run.Points[i]
		if p.Metric == "completed_per_second" && p.Params["template"] == "all" && p.System == ThroughNone && p.Median() > 100 {
			rates++
		}
		if !p.Met() {
			t.Errorf("%s missed: %v", p.Metric, p.Samples)
		}
	}
	if rates != 1 {
		t.Errorf("%d rates among %d points", rates, len(run.Points))
	}
}

// TestThroughSluice: endpoints come and go, and no connection meets two servers.
func TestThroughSluice(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root: network namespaces, XDP")
	}
	sluice, err := gate.Build(t.TempDir(), false)
	if err != nil {
		t.Fatal(err)
	}
	p := load(t, "mix")
	p.Duration, p.CPS, p.Ramp = 2*time.Second, 300, nil
	p.Templates = slices.DeleteFunc(p.Templates, func(t Template) bool { return longestThink(t.Steps) >= time.Second/2 }) // streams last longer
	b, err := build(t.Context(), ThroughSluice, sluice, 10, p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.close(); err != nil {
			t.Error(err)
		}
	})
	if err := b.started(t.Context()); err != nil {
		t.Fatal(err)
	}
	r, err := b.play(t.Context(), p, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var table bytes.Buffer
	if err := errors.Join(r.Table(&table), r.Broken()); err != nil {
		t.Error(err)
	}
	t.Log("\n" + table.String())
	servers := map[uint32]bool{}
	for i := range b.churn.removed {
		servers[uint32(b.churn.removed[i].Load())] = true
	}
	if b.churn.edits < 3 || len(servers) < 2 {
		t.Errorf("%d edits of %d servers: the endpoints hardly changed", b.churn.edits, len(servers))
	}
}

// TestNobodyAnswers: without a gateway the run ends with a reason.
func TestNobodyAnswers(t *testing.T) {
	n := wired(t)
	p := againstLinux(t, false, "20-23", "50")
	l := &Lab{Client: Port{Interface: "eth0", Namespace: n.Clients[0]}, Server: Port{Interface: "eth0", Namespace: n.Backends[0]}, Targets: p.Servers}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if _, err := Play(ctx, l, p, io.Discard); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want to have waited in vain", err)
	}
}

// TestGuard: an interface with a default route is not taken.
func TestGuard(t *testing.T) {
	n := wired(t)
	p := Port{Interface: "eth0", Namespace: n.Clients[0]}
	if err := p.Guard(); err == nil || !strings.Contains(err.Error(), "--i-own-this-network") {
		t.Errorf("eth0 of a host with a default route: %v", err)
	}
	p = Port{Interface: n.Gateway.Interfaces[0].Name, Namespace: n.Gateway}
	if err := p.Guard(); err != nil {
		t.Errorf("an interface without one: %v", err)
	}
}
