//go:build root

package stateful

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/bench/results"
	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/topo"
)

// TestRates: connections through the daemon and over the wire are completed and timed at a rate,
// none fails, a table has a line for each, and both are saved.
func TestRates(t *testing.T) {
	c := Defaults()
	c.Profile, c.Through, c.Rates, c.Services = "answers", []string{ThroughSluice, ThroughNone}, []int{500}, 300
	c.Duration, c.JSON = 500*time.Millisecond, filepath.Join(t.TempDir(), "run.json")
	var err error
	if c.Sluice, err = launch.Build(t.TempDir(), false); err != nil {
		t.Fatal(err)
	}
	out := new(bytes.Buffer)
	c.Out, c.Progress = out, io.Discard
	if err := Run(t.Context(), c); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	run, err := results.Load(c.JSON)
	if err != nil {
		t.Fatal(err)
	}
	timed := 0
	for i := range run.Points {
		switch p := &run.Points[i]; {
		case p.Params["connections/s"] != "500" || p.Params["services"] != "300":
			t.Errorf("%s is at %v", p.Metric, p.Params)
		case p.Metric == "failed" && p.Median() != 0, p.Metric == "completed_per_second" && p.Median() < 250:
			t.Errorf("%s: %s is %v", p.System, p.Metric, p.Samples)
		case strings.HasSuffix(p.Metric, ", p50") && p.Params["template"] == "all":
			if timed++; p.Median() < 1 || p.Median() > 1e6 {
				t.Errorf("%s: %s is %v us", p.System, p.Metric, p.Samples)
			}
		}
	}
	if timed != 2*3 || strings.Count(out.String(), "\n| 500 ") != 2 {
		t.Errorf("%d medians of times, want 6:\n%s", timed, out)
	}
}

// TestLabRefuses: what cannot be measured is refused before anything is built.
func TestLabRefuses(t *testing.T) {
	for message, change := range map[string]func(*RunConfig){
		"each of none, sluice, nftables, iptables": func(c *RunConfig) { c.Through = []string{"ipvs"} },
		"is possible, once":                        func(c *RunConfig) { c.Through = []string{"none", "none"} },
		"add --through sluice":                     func(c *RunConfig) { c.Churn = 1 },
		"at most 20,000 are possible":              func(c *RunConfig) { c.Services = 20_001 },
	} {
		c := Defaults()
		change(&c)
		if err := c.checkLab(); err == nil || !strings.Contains(err.Error(), message) {
			t.Errorf("the error is %v, want %q", err, message)
		}
	}
}

// TestBackToBack runs the command over a wire, and checks table and file.
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
		if p.Metric == "completed_per_second" && p.Params["template"] == "all" && p.System == ThroughNone &&
			p.Median() > 100 {
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

// TestThroughSluice: endpoints are removed and added, and no connection meets two servers.
func TestThroughSluice(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root: network namespaces, XDP")
	}
	c := RunConfig{Churn: 10}
	var err error
	if c.Sluice, err = launch.Build(t.TempDir(), false); err != nil {
		t.Fatal(err)
	}
	p := load(t, "mix")
	p.Duration, p.CPS, p.Ramp = 2*time.Second, 300, nil
	// streams last longer
	p.Templates = slices.DeleteFunc(p.Templates, func(t Template) bool {
		return slices.ContainsFunc(t.Steps, func(s Step) bool { return s.After >= time.Second/2 })
	})
	b, err := c.build(ThroughSluice, p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.close(); err != nil {
			t.Error(err)
		}
	})
	if err := b.start(t.Context(), nil); err != nil {
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
	if r.Edits < 3 || len(servers) < 2 {
		t.Errorf("%d edits of %d servers: the endpoints hardly changed", r.Edits, len(servers))
	}
}

// TestCheckerFindsPerPacketBalancing: over real interfaces, the checker detects a router that
// chooses a server for each packet, with the kernel's own packet mangling, and accepts one that
// chooses for each connection.
func TestCheckerFindsPerPacketBalancing(t *testing.T) {
	if _, err := exec.LookPath("nft"); err != nil {
		t.Fatal("the translator is nft's, which is not installed: run .ci/test-tools, as make test does")
	}
	for _, c := range []struct {
		choose   string
		protocol Protocol
		broken   bool
	}{
		{"numgen inc mod 2", ProtocolUDP, true}, {"numgen inc mod 2", ProtocolTCP, true},
		{"jhash ip saddr . th sport mod 2", ProtocolUDP, false}, {"jhash ip saddr . th sport mod 2", ProtocolTCP,
			false},
	} {
		t.Run(fmt.Sprintf("%v by %s", c.protocol, c.choose), func(t *testing.T) {
			p := smallProfile(t, Template{Name: "talk", Protocol: c.protocol, Port: 90, Share: 1,
				Timeout: 300 * time.Millisecond, Steps: []Step{
					{From: Client, Size: 20}, {From: Server, Size: 20},
					{From: Client, Size: 20, After: 5 * time.Millisecond}, {From: Server, Size: 20},
				}})
			p.Duration, p.CPS, p.VIP = 500*time.Millisecond, 200, netip.MustParseAddr("203.0.113.1")
			n, err := topo.New(topo.Config{Direct: true, Queues: 1})
			if err != nil {
				t.Fatal(err)
			}
			b := &built{net: n}
			t.Cleanup(func() {
				if err := b.close(); err != nil {
					t.Error(err)
				}
			})
			translateEachPacket(t, b, p, c.choose)
			r, err := b.play(t.Context(), p, io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			if err := r.Broken(); (err != nil) != c.broken {
				t.Errorf("%v: %+v", err, r.Client.Total())
			}
			if v := r.Client.Total().Violations; c.protocol == ProtocolUDP && (v > 0) != c.broken {
				t.Errorf("%d violations", v)
			}
		})
	}
}

// translateEachPacket makes the gateway's kernel forward, and rewrite addresses without connection
// tracking.
func translateEachPacket(t *testing.T, b *built, p *Profile, choose string) {
	t.Helper()
	gateway := b.net.Gateway
	rules := fmt.Sprintf(`table ip translator { chain in { type filter hook prerouting priority raw
		ip daddr %[1]s ip daddr set %[2]s map { 0 : %[3]s, 1 : %[4]s }
		ip saddr %[3]s-%[4]s ip saddr set %[1]s
	}
	}`, p.VIP, choose, p.Servers.First, p.Servers.First.Next())
	err := errors.Join(b.between(p), gateway.Forward(true), gateway.NFT(t.Context(), rules))
	if err != nil {
		t.Fatal(err)
	}
}

// TestNoGatewayEndsTheRun: without a gateway the run ends with an error that says so.
func TestNoGatewayEndsTheRun(t *testing.T) {
	n := wired(t)
	p := againstLinux(t, false, "20-23", "50")
	l := &Lab{Client: Port{Interface: "eth0", Namespace: n.Clients[0]}, Server: Port{Interface: "eth0",
		Namespace: n.Backends[0]}, Targets: p.Servers}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if _, err := Play(ctx, l, p, io.Discard); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want the error of the timeout", err)
	}
}

// TestGuardRefusesDefaultRoute: an interface with a default route is rejected.
func TestGuardRefusesDefaultRoute(t *testing.T) {
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
