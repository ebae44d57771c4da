package compare

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/bench/paired"
)

// onCPUs makes Senders see n CPUs until the test ends.
func onCPUs(t *testing.T, n int) {
	before := numCPU
	t.Cleanup(func() { numCPU = before })
	numCPU = n
}

// TestTargets: ratios are computed within a round, and between the right systems.
func TestTargets(t *testing.T) {
	onCPUs(t, 2)
	c := &comparison{Config: &Config{Flows: 1000}, Senders: twoQueues(), services: 5000}
	for _, s := range []struct {
		name string
		rate []float64
		cpu  []float64
	}{
		{"sluice", []float64{1e6, 2e6, 3e6}, []float64{missing, 90, 90}},   // nothing arrived in the first round
		{"l2fwd", []float64{1e6, 1e6, 2e6}, nil},                           // 1, 2, 1.5
		{"nftables-rps", []float64{1e6, 2e6, 3e6}, []float64{10, 60, 100}}, // 1.5, 0.9
		{"xdp-nat", []float64{1e6, 2.5e6, 2e6}, []float64{50, 45, 50}},     // 1, 0.8, 1.5; 2, 1.8
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
		"throughput l2fwd": {1.5, 0.95, true}, "throughput nftables": {1, 1.2, false}, "cpu nftables": {1.2, 1, false},
		"throughput xdp-nat": {1, 0.9, true},
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

// TestBulkPoints: ratios of a load are of that load, to the best twin in the figure.
func TestBulkPoints(t *testing.T) {
	onCPUs(t, 2)
	one, eight := bulkLoads[0], bulkLoads[3]
	c := &comparison{Config: &Config{Bulk: true, Systems: []string{ours, "l2fwd", "nftables", "nftables-rps"}},
		Senders: StandardSenders()[2], services: 1}
	for name, loads := range map[string]map[bulkLoad]*bulk{
		ours:           {one: {rate: []float64{6e9, 6e9}, cpu: []float64{3, 3}}, eight: {rate: []float64{8e9, 8e9}}},
		"l2fwd":        {one: {rate: []float64{5e9, 5e9}, cpu: []float64{3, 3}}},
		"nftables":     {one: {rate: []float64{6e9, 3e9}, cpu: []float64{2, 2}}, eight: {rate: []float64{4e9, 4e9}}},
		"nftables-rps": {one: {rate: []float64{8e9, 8e9}, cpu: []float64{4, 4}}, eight: {rate: []float64{2e9, 2e9}}},
	} {
		f := &figures{bulk: loads}
		f.kind, _ = kindOf(name)
		c.systems = append(c.systems, f)
	}
	got := map[string]float64{}
	for _, p := range c.bulkRatioPoints() {
		got[p.Params["streams"]+" "+p.Params["against"]+" "+p.Metric] = p.Median()
		if p.Target == nil || p.Params["way"] == "" || p.Params["queues"] != "2" {
			t.Errorf("%+v has no bound, or not all conditions", p)
		}
	}
	want := map[string]float64{
		"1 l2fwd ratio of rates": 1.2, "1 l2fwd ratio of cpu_per_gigabyte": 1,
		"1 nftables ratio of rates": 0.75, "1 nftables ratio of cpu_per_gigabyte": 1.5, "8 nftables ratio of rates": 2,
	}
	if !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestBulkIsRefused: with figures that it has not, and without it what only it has.
func TestBulkIsRefused(t *testing.T) {
	for _, c := range []Config{
		{Bulk: true, Rates: true}, {Bulk: true, BothWays: true}, {Bulk: true, At: []float64{1}},
		{Systems: []string{withOffloads + "-rps"}},
	} {
		if err := c.checkBulk(); err == nil {
			t.Errorf("%+v: no error", c)
		}
	}
	if err := (&Config{Bulk: true, Systems: bulkSystems}).checkBulk(); err != nil {
		t.Error(err)
	}
}

// TestBounds: the bounds that depend on senders and flows.
func TestBounds(t *testing.T) {
	every := StandardSenders()[2]
	for _, test := range []struct {
		flows           int
		from            Senders
		xdpNAT, against float64
	}{
		{1000, every, 0.9, 1.15}, {fewFlows, every, 0, 1.15}, {1_000_000, every, 1, 1.15}, {maxFlows, every, 1, 1.15},
	} {
		c := &comparison{Config: &Config{Flows: test.flows}, Senders: test.from}
		for _, x := range c.targets() {
			want := map[string]float64{"xdp-nat": test.xdpNAT, "nftables": test.against, placed: 0.95}[x.against]
			if x.of == ofRate && want != 0 && x.bound != want {
				t.Errorf("%d flows, %v: bound to %s is %g, want %g", test.flows, test.from, x.against, x.bound, want)
			}
		}
	}
}

// TestBestOfTwins: each ratio uses the variant that is best in its figure, and names that variant.
// A variant whose measurement failed is not chosen.
func TestBestOfTwins(t *testing.T) {
	onCPUs(t, 2)
	c := &comparison{Config: &Config{Flows: 1000, At: []float64{20_000}}, Senders: twoQueues(), services: 5000,
		rates: []float64{20_000}}
	at := func(cpu, p50 float64) map[float64]*latency {
		return map[float64]*latency{20_000: {cpu: []float64{cpu}, percentiles: map[string][]float64{"p50": {p50}}}}
	}
	for _, f := range []*figures{
		{kind: kind{name: ours}, rate: []float64{6e6, 6e6, 6e6}, cpu: []float64{90}, at: at(100, 12)},
		{kind: kind{name: "nftables"}, rate: []float64{3e6, 3e6, 3e6}, cpu: []float64{60}, at: at(50, 3)},
		{kind: kind{name: "nftables-rps"}, rate: []float64{9e6, 1e6, 4e6}, cpu: []float64{120}, at: at(40, 8)},
		{kind: kind{name: "nftables-rps-free"}, rate: []float64{5e6, 5e6, missing}, cpu: []float64{100}},
		{kind: kind{name: "kube-proxy-nftables"}, rate: []float64{2e6}},
		{kind: kind{name: "kube-proxy-nftables-rps"}, rate: []float64{8e6}, failed: errors.New("ended")},
	} {
		f.kind, _ = kindOf(f.kind.name)
		c.systems = append(c.systems, f)
	}
	const all = "nftables, nftables-rps, nftables-rps-free"
	want := map[string]struct {
		median float64
		bound  float64 // 0: none
		remark string
	}{
		"nftables " + ofRate:            {1.2, 1.2, "nftables-rps-free, the best of " + all},
		"nftables " + ofCPU:             {1.5, 1, "nftables, the best of " + all},
		"kube-proxy-nftables " + ofRate: {3, 1.5, "only kube-proxy-nftables was measured"},
		"nftables ratio of cpu_per_packet 20000": {2.5, 0,
			"nftables-rps, the best of nftables, nftables-rps"},
		"nftables with RPS ratio of one-way, p50 20000":    {1.5, 1.1, "only nftables-rps was measured"},
		"nftables without RPS ratio of one-way, p50 20000": {4, 1.4, "only nftables was measured"},
	}
	points := c.points()
	for _, p := range points {
		if p.Unit != "ratio" {
			continue
		}
		name := strings.TrimSpace(p.Params["against"] + " " + p.Metric + " " + p.Params["rate"])
		if w, ok := want[name]; !ok || p.System != ours || p.Median() != w.median || p.Remark != w.remark ||
			(p.Target == nil) != (w.bound == 0) || p.Target != nil && *p.Target != w.bound {
			t.Errorf("%s: %g, %q, target %v; want %+v", name, p.Median(), p.Remark, p.Target, w)
		}
		delete(want, name)
	}
	if len(want) > 0 {
		t.Errorf("missing: %v", want)
	}
	var out strings.Builder
	if err := c.print(&out, points); err != nil {
		t.Fatal(err)
	}
	if c.At = nil; !strings.Contains(out.String(), "the best of nftables, nftables-rps\n") {
		t.Errorf("the table of rates does not name the best variant:\n%s", &out)
	}
	out.Reset()
	if err := c.print(&out, points); err != nil ||
		!strings.Contains(out.String(), "  nftables-rps-free, the best of "+all) {
		t.Errorf("the table does not name the best variant: %v\n%s", err, &out)
	}
}

// TestAbsences: the wait of packets that come all the time, for given gaps of a CPU.
func TestAbsences(t *testing.T) {
	const us = time.Microsecond
	for _, x := range []struct {
		gaps             []time.Duration
		p50, p99, p9, pm time.Duration
	}{
		{nil, 0, 0, 0, 0},
		// 1 ms of 100: every hundredth packet waits, every thousandth longer than 900 us.
		{[]time.Duration{1000 * us}, 0, 0, 900 * us, 1000 * us},
		// Ten of 1 ms: a tenth waits, a hundredth longer than 900 us, a thousandth than 990.
		{slices.Repeat([]time.Duration{1000 * us}, 10), 0, 900 * us, 990 * us, 1000 * us},
		// 2000 - 1900 us and no more: the second gap is too short to count.
		{[]time.Duration{2000 * us, 500 * us}, 0, 1000 * us, 1900 * us, 2000 * us},
		{[]time.Duration{1000 * us, 950 * us}, 0, 475 * us, 925 * us, 1000 * us},
		{[]time.Duration{100_000 * us}, 50_000 * us, 99_000 * us, 99_900 * us, 100_000 * us},
	} {
		a := absences{gaps: x.gaps, of: 100_000 * us}
		got := [...]time.Duration{a.percentile(50), a.percentile(99), a.percentile(99.9), a.percentile(100)}
		if want := [...]time.Duration{x.p50, x.p99, x.p9, x.pm}; got != want {
			t.Errorf("%v: %v, want %v", x.gaps, got, want)
		}
	}
}

// TestWatch: gaps are shorter than the run of the loop, and a CPU that does not exist is an error.
func TestWatch(t *testing.T) {
	const d = 20 * time.Millisecond
	if a, err := watch(t.Context(), 0, d); err != nil || a.of < d || a.percentile(100) > a.of {
		t.Errorf("%v, %v", a, err)
	}
	if _, err := watch(t.Context(), 1<<9, d); err == nil {
		t.Error("no error of a CPU that is not there")
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := watch(over, 0, time.Hour); err == nil {
		t.Error("no error though it was cancelled")
	}
}

// TestSendersDecideWhereRPSGoes: packets are steered to all CPUs, or to CPUs on which none arrives;
// without such CPUs that variant is not measured.
func TestSendersDecideWhereRPSGoes(t *testing.T) {
	c := Config{Systems: []string{"nftables", "nftables-rps", "nftables-rps-free"}}
	for _, test := range []struct {
		cpus      int
		all, free uint64
		ways      int // of the three systems
	}{{1, 1, 0, 2}, {2, 3, 2, 3}, {4, 15, 14, 3}} {
		onCPUs(t, test.cpus)
		one, every := twoQueues(), StandardSenders()[2]
		all, _ := one.mask(rpsAll)
		free, ok := one.mask(rpsFree)
		if all != test.all || free != test.free || ok != (free != 0) {
			t.Errorf("%d CPUs: RPS over all is %x, over free ones %x, %v; want %x, %x", test.cpus, all, free, ok,
				test.all, test.free)
		}
		if got := len(c.kinds(one)); got != test.ways {
			t.Errorf("%d CPUs: %d of 3 systems are measured, want %d", test.cpus, got, test.ways)
		}
		if _, ok := every.mask(rpsFree); ok || len(c.kinds(every)) != 2 {
			t.Errorf("%d CPUs: packets arrive on all, and %v are measured", test.cpus, c.kinds(every))
		}
	}
	list, err := ParseSenders([]string{"every-cpu", "one-queue"})
	if err != nil || len(list) != 2 || list[1].Queues != 1 || len(list[0].CPUs) != list[0].Queues {
		t.Errorf("%v, %v", list, err)
	}
	if _, err := ParseSenders([]string{"two"}); err == nil {
		t.Error("senders that do not exist")
	}
}

// TestSluiceIsTheDefaults: the system sluice has the daemon's defaults. With placed workers or with
// options it has another name.
func TestSluiceIsTheDefaults(t *testing.T) {
	c := Config{Options: "waiting: shared", Systems: []string{ours}}
	if err := c.checkOptions(); err != nil || !slices.Equal(c.Systems, []string{ours, withOptions}) {
		t.Errorf("%v, %v", c.Systems, err)
	}
	s := newStage(&c)
	s.Senders, s.services = twoQueues(), 1
	for name, want := range map[string]sluice{
		ours: {}, "sluice-one": {}, placed: {cpus: s.fewCPUs()}, withOptions: {options: c.Options}, paired.Before: {},
	} {
		k, err := kindOf(name)
		if err != nil {
			t.Fatal(err)
		}
		x, err := s.newSystem(&k)
		if err != nil {
			t.Fatal(err)
		}
		if got := x.(*sluice); !slices.Equal(got.cpus, want.cpus) || got.options != want.options {
			t.Errorf("%s has workers on CPUs %v and options %q, want %v and %q", name, got.cpus, got.options, want.cpus,
				want.options)
		}
	}
}

// TestOrderOfSystemsRotates: every round contains all systems, and begins with another one.
func TestOrderOfSystemsRotates(t *testing.T) {
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

// TestOrderOfBuildsAlternates: an older build and this one stay side by side, and each comes first
// as often.
func TestOrderOfBuildsAlternates(t *testing.T) {
	named := func(name string) *figures { return &figures{kind: kind{name: name}} }
	now, old, l2fwd := named("sluice"), named(paired.Before), named("l2fwd")
	for round, want := range [][]*figures{{now, old, l2fwd}, {l2fwd, old, now}, {now, old, l2fwd}} {
		if got := turn([]*figures{now, old, l2fwd}, round); !slices.Equal(got, want) {
			t.Errorf("round %d: %v, want %v", round, got, want)
		}
	}
	for round, want := range [][]*figures{{now, old}, {old, now}, {now, old}, {old, now}} {
		if got := turn([]*figures{now, old}, round); !slices.Equal(got, want) {
			t.Errorf("round %d, nothing else: %v, want %v", round, got, want)
		}
	}
}

// TestBeforePoints: ratios are now/before of equal rounds, with a verdict by each figure's better
// direction. If one of the two builds failed, the other is not reported.
func TestBeforePoints(t *testing.T) {
	c := &comparison{Config: &Config{Before: "sluice", Services: []int{1}}, Senders: twoQueues(), services: 1}
	now := &figures{rate: []float64{2, 4, 2, 4, 2, 4, 9}, cpu: []float64{11, 11, 11, 11, 11, 11, missing}, limited: 1,
		noDrop:  []float64{1, 1},
		latency: map[int]*latency{50: {percentiles: map[string][]float64{"p50": {3, 3, 3, 3, 3, 3}}}}}
	old := &figures{rate: []float64{1, 2, 1, 2, 1, 2, missing}, cpu: []float64{10, 10, 10, 10, 10, 10, 10},
		noDrop:  []float64{1, 0},
		latency: map[int]*latency{50: {percentiles: map[string][]float64{"p50": {3, 3, 3, 3, 3, 3}}}}}
	now.kind, _ = kindOf("sluice")
	old.kind, _ = kindOf(paired.Before)
	c.systems = []*figures{now, old}
	want := map[string]struct {
		median  float64
		samples int
		verdict paired.Verdict
	}{
		"ratio of rates": {2, 6, paired.Faster}, "ratio of cpu_per_packet at the highest rate": {1.1, 6, paired.Slower},
		"ratio of no_drop_rates": {1, 1, paired.TooFew}, "ratio of one-way, p50": {1, 6, paired.Unchanged},
	}
	points := c.beforePoints()
	for i := range points {
		p := &points[i]
		w := want[p.Metric]
		if p.Median() != w.median || len(p.Samples) != w.samples || paired.VerdictOf(p) != w.verdict ||
			p.Params["against"] != paired.Before {
			t.Errorf("%s: %g of %d, %s; want %+v", p.Metric, p.Median(), len(p.Samples), p.Remark, w)
		}
		if p.Metric == "ratio of no_drop_rates" &&
			!strings.HasPrefix(p.Remark, "1 of 4 rates are the generator's limit; too few") {
			t.Errorf("remark %q", p.Remark)
		}
		delete(want, p.Metric)
	}
	if len(want) > 0 {
		t.Errorf("missing: %v", want)
	}
	rows := c.beforeRows()
	if r := rows[2]; len(rows) != len(points) || r.Before != "10 ns" || r.Now != "11 ns" ||
		r.What != "cpu_per_packet at the highest rate" {
		t.Errorf("rows %+v", rows)
	}
	if c.unpaired(now) || c.unpaired(old) {
		t.Error("both run, and are called unpaired")
	}
	if old.failed = errors.New("ended"); !c.unpaired(now) {
		t.Error("this build would be measured alone")
	}
}

// TestOrderOfBuilds: the older build comes once, right after this one, independently of the other
// systems.
func TestOrderOfBuilds(t *testing.T) {
	for _, c := range []struct{ given, want []string }{
		{nil, []string{"sluice", paired.Before}},
		{[]string{"kernel", "sluice", "l2fwd"}, []string{"kernel", "sluice", paired.Before, "l2fwd"}},
		{[]string{paired.Before, "kernel", "sluice"}, []string{"kernel", "sluice", paired.Before}},
	} {
		x := Config{Systems: c.given, Before: "older"}
		if err := x.checkBefore(); err != nil || !slices.Equal(x.Systems, c.want) {
			t.Errorf("%v: %v, %v, want %v", c.given, x.Systems, err, c.want)
		}
	}
}

// TestChooseRate: half the rate of the slowest translating system, even if other systems are
// slower.
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

// TestLossesAddUp: lost packets are divided by place, and no packet is counted twice.
func TestLossesAddUp(t *testing.T) {
	f := &figures{sent: 1000, received: 400, lost: losses{
		"front0 rx_dropped": 300, "tx eth0 tx_dropped": 300, "back0 tx_dropped": 100, "sluice no_backend": 200,
	}}
	if before, in, behind := f.places(); before != 300 || in != 200 || behind != 100 {
		t.Errorf("before %d, in %d, behind %d", before, in, behind)
	}
}

// TestObjects: addresses of 10,000 Services are distinct.
func TestObjects(t *testing.T) {
	seen := map[string]string{}
	used := 0
	for _, o := range objects(10_000, corev1.ProtocolUDP) {
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
