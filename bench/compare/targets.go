package compare

import (
	"strconv"

	"sluice.dev/sluice/bench/results"
)

// target is a ratio of a system to another one, or to its best variant, with a bound.
type target struct {
	own, against string
	way          steering // which RPS variants of against may be chosen
	of           string   // figure of the ratio
	metric       func(*figures) []float64
	bound        float64 // 0: shown without a bound
	better       string
}

// targetServices is the number of Services at which the ratio to kube-proxy has a bound.
const targetServices = 5000

func rateOf(f *figures) []float64    { return f.rate }
func cpuOf(f *figures) []float64     { return f.cpu }
func cpuSameOf(f *figures) []float64 { return f.cpuSame }

const (
	ofRate    = "ratio of rates"
	ofCPU     = "ratio of cpu_per_packet at each one's highest rate"
	ofCPUSame = "ratio of cpu_per_packet, all at one rate"
)

// targets returns the project's targets for these senders and flows.
func (c *comparison) targets() []target {
	nftables, xdpNAT := 1.2, 0.0
	if len(c.quiet()) == 0 {
		nftables = 1.15 // the kernel uses all CPUs without RPS
	}
	switch {
	case c.Flows <= 1000:
		xdpNAT = 0.9
	case c.Flows >= 1_000_000:
		xdpNAT = 1 // XDP NAT's map misses the caches, one packet after another
	}
	list := []target{
		{ours, placed, anyWay, ofRate, rateOf, 0.95, "higher"},
		{ours, "l2fwd", anyWay, ofRate, rateOf, 0.95, "higher"},
		{placed, "l2fwd", anyWay, ofRate, rateOf, 0.95, "higher"},
		{ours, "xdp-nat", anyWay, ofRate, rateOf, xdpNAT, "higher"},
		{ours, "nftables", anyWay, ofRate, rateOf, nftables, "higher"},
		{ours, "kube-proxy-nftables", anyWay, ofRate, rateOf, 1.5, "higher"},
		{ours, "kube-proxy-iptables", anyWay, ofRate, rateOf, 0, "higher"},
	}
	for _, k := range kinds {
		if !k.peer || k.rps != noRPS {
			continue
		}
		bound := 1.0
		if k.name == "xdp-nat" {
			bound = 0 // staying in the kernel is always cheaper
		}
		list = append(list, target{ours, k.name, anyWay, ofCPU, cpuOf, bound, "lower"},
			target{ours, k.name, anyWay, ofCPUSame, cpuSameOf, 0, "lower"})
	}
	return list
}

// ratioPoints are the ratios of Sluice to the best variant of each other system.
func (c *comparison) ratioPoints() (list []results.Point) {
	for _, t := range c.targets() {
		experiment := "throughput"
		if t.better == "lower" {
			experiment = "cpu"
		}
		p, other, ok := c.ratioPoint(experiment, &t)
		if !ok {
			continue
		}
		if t.bound > 0 {
			p.Target = &t.bound
		}
		if other.kind.cluster && t.better == "higher" && c.services != targetServices {
			p.Target = nil // shown without a bound: with few Services kube-proxy has few rules
		}
		list = append(list, p)
	}
	return append(list, c.atRatioPoints()...)
}

// ratioPoint is the ratio of a system's figure to the best variant of another, in the same rounds.
func (c *comparison) ratioPoint(experiment string, t *target) (p results.Point, other *figures, ok bool) {
	own := c.named(t.own)
	if own == nil {
		return p, nil, false
	}
	if other = c.best(t.against, t.metric, t.better, t.way.ways...); other == nil {
		return p, nil, false
	}
	samples := ratios(t.metric(own), t.metric(other))
	if len(samples) == 0 {
		return p, nil, false
	}
	p = c.point(experiment, own, t.of, "ratio", t.better, samples)
	p.Params["against"] = t.against + t.way.name
	if kindHasTwins(t.against) {
		p.Remark = c.chosen(other, t.metric, t.way.ways...)
	}
	return p, other, true
}

// steering limits the RPS variants among which a peer's best is chosen, for bounds that need it.
type steering struct {
	name string // follows the peer's name
	ways []rps  // nil: all
}

var (
	anyWay    = steering{}
	steeredBy = steering{" with RPS", []rps{rpsAll, rpsFree}}
	unsteered = steering{" without RPS", []rps{noRPS}}
)

// atTargets are the project's targets at each rate, against a peer. Without RPS a system in the
// kernel has handled a packet before the generator's system call returns; with RPS it handles the
// packet on another CPU, as Sluice does.
func (c *comparison) atTargets(peer string, m *atMetric) (list []target) {
	type bounds map[string]float64 // by percentile
	for _, x := range []struct {
		own    string
		way    steering
		bounds bounds
	}{
		{ours, steeredBy, bounds{"p50": 1.1, "p99": 1.1, "p99.9": 1.1, "max": 1}},
		{ours, unsteered, bounds{"p50": 1.4, "p99": 1.4}},
		{shared, steeredBy, bounds{"p50": 2, "p99.9": 3}},
	} {
		t := target{own: x.own, against: peer, of: "ratio of " + m.name, metric: m.of, better: "lower"}
		if peer == "nftables" && m.percentile != "" {
			if t.way = x.way; !c.BothWays {
				t.bound = x.bounds[m.percentile]
			}
		} else if x.own == ours && len(x.way.ways) == 1 {
			continue // add the target only once
		}
		list = append(list, t)
	}
	return list
}

// atRatioPoints are the ratios at each rate of Config.At.
func (c *comparison) atRatioPoints() (list []results.Point) {
	for _, rate := range c.rates {
		for _, base := range c.bases() {
			if k, err := kindOf(base); err != nil || !k.peer {
				continue
			}
			for _, m := range c.atMetrics(rate) {
				for _, t := range c.atTargets(base, &m) {
					p, _, ok := c.ratioPoint(m.experiment, &t)
					if !ok {
						continue
					}
					if t.bound > 0 {
						p.Target = &t.bound
					}
					p.Params["rate"] = strconv.FormatFloat(rate, 'f', -1, 64)
					list = append(list, p)
				}
			}
		}
	}
	return list
}
