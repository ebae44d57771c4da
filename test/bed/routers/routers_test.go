//go:build root

package routers

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/test/bed/topo"
)

// Both start, answer, and leave nothing.
func TestRouters(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	p, err := Fetch(ctx, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	n, err := topo.New(topo.Config{Clients: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}()
	b, err := p.BIRD(n.Clients[0], t.TempDir(), "router id 192.0.2.1;\nprotocol device {}\n")
	if err != nil {
		t.Fatal(err)
	}
	defer b.Stop()
	f, err := p.FRR(n.Clients[1], t.TempDir(), "router bgp 64501\n")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Stop()
	for r, ask := range map[*Router][2]string{b: {"show protocols", "Device"}, f: {"show bgp summary", "BGP"}} {
		if err := topo.Until(ctx, 10*time.Second, 10*time.Millisecond, func(ctx context.Context) error {
			_, err := r.Ask(ctx, ask[0])
			return err
		}); err != nil {
			t.Fatalf("%v\n%s", err, r.Log())
		}
		out, _ := r.Ask(ctx, ask[0])
		t.Logf("%s", out)
		if !strings.Contains(out, ask[1]) {
			t.Errorf("%s: %s", r.Kind, out)
		}
	}
	for _, r := range []*Router{b, f} {
		if err := r.Stop(); err != nil {
			t.Error(err)
		}
	}
}
