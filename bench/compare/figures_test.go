package compare

import (
	"slices"
	"testing"
)

// TestTargets: ratios are of the same round, and of the right systems.
func TestTargets(t *testing.T) {
	c := &comparison{Config: &Config{SenderCPUs: []int{0}}, services: 5000}
	for _, s := range []struct {
		name string
		rate []float64
		cpu  []float64
	}{
		{"sluice", []float64{1e6, 2e6, 3e6}, []float64{missing, 90, 90}},   // nothing arrived in the first round
		{"l2fwd", []float64{1e6, 1e6, 2e6}, nil},                           // 1, 2, 1.5
		{"nftables-rps", []float64{1e6, 2e6, 3e6}, []float64{10, 60, 100}}, // 1.5, 0.9
	} {
		f := &figures{rate: s.rate, cpu: s.cpu}
		f.kind, _ = kindOf(s.name)
		c.systems = append(c.systems, f)
	}
	type row struct {
		median, target float64
		met            bool
	}
	want := map[string]row{
		"throughput l2fwd": {1.5, 0.95, true}, "throughput nftables-rps": {1, 1.15, false}, "cpu nftables-rps": {1.2, 1, false},
	}
	for _, p := range c.points() {
		if p.Target == nil {
			continue
		}
		name := p.Experiment + " " + p.Params["against"]
		if got := (row{p.Median(), *p.Target, p.Met()}); got != want[name] {
			t.Errorf("%s: %+v, want %+v", name, got, want[name])
		}
		delete(want, name)
	}
	if len(want) > 0 {
		t.Errorf("missing: %v", want)
	}
}

// TestTurn: every round has all systems, and begins with another one.
func TestTurn(t *testing.T) {
	a, b, c := new(figures), new(figures), new(figures)
	for round, want := range [][]*figures{{a, b, c}, {b, c, a}, {c, a, b}, {a, b, c}} {
		if got := turn([]*figures{a, b, c}, round); !slices.Equal(got, want) {
			t.Errorf("round %d: %v, want %v", round, got, want)
		}
	}
	if got := turn(nil, 1); len(got) != 0 {
		t.Error(got)
	}
}

// TestChooseRate: half of the slowest that translates, whoever else is slower.
func TestChooseRate(t *testing.T) {
	c := &comparison{Config: &Config{Progress: discard{}}}
	for name, rate := range map[string]float64{"sluice": 900, "nftables": 600, "asavie": 100} {
		f := &figures{rate: []float64{rate}}
		f.kind, _ = kindOf(name)
		c.systems = append(c.systems, f)
	}
	if c.chooseRate(); c.cpuRate != 300 {
		t.Errorf("rate %g, want 300", c.cpuRate)
	}
}

type discard struct{}

func (discard) Write(b []byte) (int, error) { return len(b), nil }

// TestPlaces: what is lost is divided without counting anything twice.
func TestPlaces(t *testing.T) {
	f := &figures{sent: 1000, received: 400, lost: losses{
		"front0 rx_dropped": 300, "tx eth0 tx_dropped": 300, "back0 tx_dropped": 100, "sluice no_backend": 200,
	}}
	if before, in, behind := f.places(); before != 300 || in != 200 || behind != 100 {
		t.Errorf("before %d, in %d, behind %d", before, in, behind)
	}
}

// TestObjects: addresses of 10,000 Services do not meet.
func TestObjects(t *testing.T) {
	seen := map[string]string{}
	used := 0
	for _, o := range objects(10_000) {
		list := []string{o.service.Name, o.service.Spec.ClusterIP, o.service.Status.LoadBalancer.Ingress[0].IP}
		for _, e := range o.slice.Endpoints {
			list = append(list, e.Addresses...)
		}
		if list[2] == serviceVIP.String() {
			used++
		}
		for _, a := range list {
			if seen[a] != "" {
				t.Fatalf("%s is of %s and %s", a, seen[a], o.service.Name)
			}
			seen[a] = o.service.Name
		}
	}
	if used != 1 {
		t.Errorf("%d Services are in use", used)
	}
}
