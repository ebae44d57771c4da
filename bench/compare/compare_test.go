//go:build root

package compare

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/bench/paired"
	"sluice.dev/sluice/bench/results"
	"sluice.dev/sluice/test/bed/cluster"
	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/stateless"
	"sluice.dev/sluice/test/bed/topo"
)

var sluiceBinary, benchBinary string // built once

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "sluice-compare-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if sluiceBinary, err = launch.Build(dir, false); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if benchBinary, err = launch.BuildCommand(dir, "sluice-bench"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// testConfig is a short comparison.
func testConfig(systems ...string) Config {
	c := Defaults()
	c.Systems, c.Sluice, c.Bench = systems, sluiceBinary, benchBinary
	c.Services, c.Flows, c.Repeat, c.Rows = []int{20}, 200, 1, []Senders{twoQueues()}
	c.Duration, c.Trial, c.Settle = 200*time.Millisecond, 50*time.Millisecond, 0
	c.Out, c.Progress = io.Discard, io.Discard
	return c
}

// openStage makes the stage that Run would make.
func openStage(t *testing.T, c Config) *stage {
	t.Helper()
	if err := c.check(); err != nil {
		t.Fatal(err)
	}
	older, err := c.findBefore(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s := newStage(&c)
	s.before = older
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
		if left, err := filepath.Glob(fmt.Sprintf("/dev/shm/sluice-*-%d-*", os.Getpid())); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	})
	if err := s.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.prepare(t.Context(), c.Services[0], c.Rows[0]); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestSystemsForward sends a thousand packets through every system and checks the packets that
// arrive.
func TestSystemsForward(t *testing.T) {
	for _, k := range kinds {
		if k.base() == withOffloads {
			continue // forwards TCP of both ends' kernels, as TestRunBulk tests
		}
		t.Run(k.name, func(t *testing.T) {
			if k.cluster && !cluster.Enabled() {
				t.Skipf("kube-proxy is measured where %s is set", cluster.EnableVariable)
			}
			c := testConfig(k.name)
			switch k.name {
			case paired.Before:
				c = testConfig()
				c.Before = sluiceBinary
			case withOptions:
				c.Options = "waiting: shared"
			}
			s := openStage(t, c)
			var net *topo.Net
			err := s.with(t.Context(), k, func(ctx context.Context, x *subject) error {
				net = x.place.net
				return forwards(ctx, s, x)
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := s.closeKept(); err != nil {
				t.Error(err)
			}
			if left, err := net.Leftovers(); err != nil || len(left) > 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
		})
	}
}

// TestSystemsForwardBothWays: each packet is answered, and the answers reach the clients from the
// VIP.
func TestSystemsForwardBothWays(t *testing.T) {
	for _, name := range []string{"sluice", "l2fwd", "xdp-nat", "nftables", "nftables-rps"} {
		t.Run(name, func(t *testing.T) {
			c := testConfig(name)
			c.BothWays = true
			s := openStage(t, c)
			err := s.with(t.Context(), mustKind(t, name), func(ctx context.Context, x *subject) error {
				return s.answering(x, func() error { return forwards(ctx, s, x) })
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestManyFlows: more flows than the defaults have room for arrive one way, from addresses other
// than the gateway's own.
func TestManyFlows(t *testing.T) {
	const flows = fewFlows + 20_000
	for _, name := range []string{"sluice", "xdp-nat", "nftables"} {
		t.Run(name, func(t *testing.T) {
			c := testConfig(name)
			c.Flows = flows
			s := openStage(t, c)
			f := &figures{}
			err := s.with(t.Context(), mustKind(t, name), func(ctx context.Context, x *subject) error {
				return s.generating(ctx, x, f, stateless.Count, func(lab *stateless.Lab) error {
					lost, err := readLosses(ctx, x.place, x.system)
					if n := lost["xdp-nat flows made"]; name == "xdp-nat" && n != flows {
						t.Errorf("%d flows made, want %d: some were evicted", n, flows)
					}
					return err
				})
			})
			if err != nil {
				t.Fatal(err)
			}
			if f.flows[0] != flows {
				t.Errorf("%d of %d flows arrive", f.flows[0], flows)
			}
		})
	}
}

func forwards(ctx context.Context, s *stage, x *subject) (err error) {
	lab, err := s.generator(ctx, x, stateless.Count, firstPort, s.Flows)
	if err != nil {
		return err
	}
	defer func() { err = joined(err, lab.Close()) }()
	flows, err := s.establish(ctx, x, lab)
	if err != nil {
		return err
	}
	// No system translates twice: if half of the flows are missing, they were lost.
	if flows != s.Flows && x.kind.base() != "asavie" {
		return fmt.Errorf("%d of %d flows arrived", flows, s.Flows)
	}
	mask, _ := s.mask(x.kind.rps)
	if v, err := x.place.gateway.Device(frontDev, "queues/rx-1/rps_cpus"); err != nil || v != fmt.Sprintf("%x", mask) {
		return fmt.Errorf("RPS of queue 1 is %q, want %x: %v", v, mask, err)
	}
	_, err = readLosses(ctx, x.place, x.system)
	return err
}

func joined(a, b error) error {
	if a == nil {
		return b
	}
	return a
}

// TestCheckFrameRefuses: untranslated packets must not pass as translated, and the other way round.
func TestCheckFrameRefuses(t *testing.T) {
	for _, test := range []struct{ runs, checkedAs, want string }{
		{"kernel", "nftables", "want it from [10.72.0.1] to port 8080"},
		{"nftables", "kernel", "want it as it was sent"},
	} {
		t.Run(test.runs, func(t *testing.T) {
			s := openStage(t, testConfig(test.runs))
			runs, checked := mustKind(t, test.runs), mustKind(t, test.checkedAs)
			err := s.with(t.Context(), runs, func(ctx context.Context, x *subject) error {
				x.kind = checked
				return forwards(ctx, s, x)
			})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}

func mustKind(t *testing.T, name string) kind {
	t.Helper()
	k, err := kindOf(name)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// TestRun compares two systems in full, in a short time, and a third that fails.
func TestRun(t *testing.T) {
	c := testConfig("sluice", "kernel", "l2fwd")
	var out bytes.Buffer
	c.LossBound = 0.9 // so that a no-drop rate exists, however busy the machine
	c.Out, c.JSON, c.Bench = &out, filepath.Join(t.TempDir(), "run.json"), "/bin/false"
	_, err := Run(t.Context(), c)
	if err == nil || !strings.Contains(err.Error(), "l2fwd: false ended") {
		t.Errorf("l2fwd is /bin/false, and the error is: %v", err)
	}
	run, err := results.Load(c.JSON)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]int{}
	for _, p := range run.Points {
		found[p.Experiment+" "+p.System+" "+p.Metric] += len(p.Samples)
		if p.Params["services"] != "20" || p.Params["flows"] != "200" {
			t.Errorf("%s %s: conditions %v", p.System, p.Metric, p.Params)
		}
		if m := p.Median(); m <= 0 && !strings.HasPrefix(p.Metric, "added") && p.Metric != "no_drop_rate" {
			t.Errorf("%s %s is %g", p.System, p.Metric, m)
		}
	}
	for name, samples := range map[string]int{
		"throughput sluice rate": 1, "throughput kernel rate": 1, "throughput sluice no_drop_rate": 1,
		"cpu sluice cpu_per_packet at the highest rate":  1,
		"latency sluice one-way, p99.9":                  len(loads),
		"latency sluice added to kernel forwarding, p50": len(loads),
	} {
		if found[name] != samples {
			t.Errorf("%s has %d samples, want %d", name, found[name], samples)
		}
	}
	for _, want := range []string{"FAILED: l2fwd", "one-way latency", "ns CPU/packet"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
}

// TestRunAt: only processor time and latency at the requested rates.
func TestRunAt(t *testing.T) {
	for _, both := range []bool{false, true} {
		t.Run(fmt.Sprintf("both ways %v", both), func(t *testing.T) { runsAt(t, both) })
	}
}

func runsAt(t *testing.T, both bool) {
	c := testConfig("sluice", "nftables")
	way := "one-way"
	if c.BothWays = both; both {
		way = "round trip"
	}
	var out bytes.Buffer
	c.At, c.Duration = []float64{20_000, 50_000}, time.Second // processor time is counted in ticks of 10 ms
	c.Settle = 100 * time.Millisecond
	c.Out, c.JSON = &out, filepath.Join(t.TempDir(), "run.json")
	if _, err := Run(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	run, err := results.Load(c.JSON)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]int{}
	for _, p := range run.Points {
		found[p.System+" "+p.Metric+" at "+p.Params["rate"]] += len(p.Samples)
		if p.Median() <= 0 || (p.Params["ways"] == "both") != both {
			t.Errorf("%s %s is %g, target %v, %v", p.System, p.Metric, p.Median(), p.Target, p.Params)
		}
	}
	want := map[string]int{}
	for _, rate := range []string{"20000", "50000"} {
		for _, metric := range []string{
			"cpu_per_packet", way + ", p50", way + ", p99", way + ", p99.9", way + ", max",
		} {
			for _, system := range c.Systems {
				want[system+" "+metric+" at "+rate] = 1
			}
			want["sluice ratio of "+metric+" at "+rate] = 1
		}
	}
	if !maps.Equal(found, want) {
		t.Errorf("samples %v, want %v", found, want)
	}
	// The ratio is of the medians at the same rate: nftables' own is 1.
	if n := strings.Count(out.String(), " 1.00 "); n < 2 {
		t.Errorf("%d of 2 lines of nftables have a ratio of 1.00:\n%s", n, &out)
	}
}

// TestRunAtShares: the no-drop rate of nftables is searched once, and all systems are measured at
// its shares.
func TestRunAtShares(t *testing.T) {
	c := testConfig("sluice", "nftables")
	c.AtShares, c.Repeat = []float64{0.05}, 2
	c.LossBound = 0.5 // the machine may be busy
	c.Out, c.JSON = io.Discard, filepath.Join(t.TempDir(), "run.json")
	run, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	rates := map[string]int{}
	for _, p := range run.Points {
		if p.Metric == "one-way, p50" {
			rates[p.Params["rate"]] += len(p.Samples)
		}
	}
	if len(rates) != 1 {
		t.Fatalf("samples by rate %v, want one rate", rates)
	}
	for rate, samples := range rates {
		pps, err := strconv.ParseFloat(rate, 64)
		if err != nil || pps < 1000 || math.Mod(pps, 1000) != 0 || samples != 2*len(c.Systems) {
			t.Errorf("%d samples at %s packets a second, %v", samples, rate, err)
		}
	}
}

func TestConfigRefuses(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"system":      func(c *Config) { c.Systems = []string{"ipvs"} },
		"services":    func(c *Config) { c.Services = []int{0} },
		"no services": func(c *Config) { c.Services = nil },
		"flows":       func(c *Config) { c.Flows = maxFlows + 1 },
		"frame":       func(c *Config) { c.Frame = 60 },
		"queues":      func(c *Config) { c.Rows = []Senders{{[]int{0}, 17}} },
		"idle CPU":    func(c *Config) { c.Rows = []Senders{{[]int{0, 0}, 1}} },
		"loss":        func(c *Config) { c.LossBound = 1 },
		"rounds":      func(c *Config) { c.Repeat = 0 },
		"CPU":         func(c *Config) { c.Rows = []Senders{{[]int{4096}, 1}} },
		"many flows":  func(c *Config) { c.Systems, c.Flows = []string{"kube-proxy-nftables"}, fewFlows+1 },
		"options":     func(c *Config) { c.Systems = []string{withOptions} },
		"no rate":     func(c *Config) { c.At = []float64{50_000, 0} },
		"share":       func(c *Config) { c.Systems, c.AtShares = []string{"nftables"}, []float64{1.1} },
		"share of":    func(c *Config) { c.AtShares = []float64{0.5} },
		"settle":      func(c *Config) { c.Settle = -time.Second },
		"rate, twice": func(c *Config) { c.At = []float64{50_000, 10_000, 50_000} },
		"together":    func(c *Config) { c.Together = -time.Second },
		"older build": func(c *Config) { c.Systems = []string{"sluice", paired.Before} },
		"no sluice":   func(c *Config) { c.Systems, c.Before = []string{"kernel"}, sluiceBinary },
		"no verdict":  func(c *Config) { c.FailSlower = true },
		"binary":      func(c *Config) { c.Sluice = "/nonexistent/sluice" },
	} {
		t.Run(name, func(t *testing.T) {
			c := testConfig("sluice")
			if err := c.check(); err != nil {
				t.Fatal(err)
			}
			if change(&c); c.check() == nil {
				t.Error("no error")
			}
		})
	}
}
