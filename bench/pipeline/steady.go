package pipeline

import (
	"fmt"
	"strconv"

	"sluice.dev/sluice/bench/results"
)

// steadyBackends is the number of backends of a Service, so that source ports suffice.
func steadyBackends(flows int) int {
	if flows > 1_000_000 {
		return 400
	}
	return 64
}

// steady sweeps the number of flows: only packets of known flows, drawn uniformly.
func (r *runner) steady() error {
	for _, v6 := range r.families() {
		for _, flows := range r.Flows {
			if err := r.steadyAt(v6, flows); err != nil {
				return fmt.Errorf("%s, %d flows: %w", family(v6), flows, err)
			}
		}
	}
	return nil
}

func (r *runner) families() (v6 []bool) {
	if r.IPv4 {
		v6 = append(v6, false)
	}
	if r.IPv6 {
		v6 = append(v6, true)
	}
	return v6
}

func family(v6 bool) string {
	if v6 {
		return "ipv6"
	}
	return "ipv4"
}

// loads are the four kinds of chunks; two where headers cannot be evicted from the caches.
func (r *runner) loads() (all []load) {
	all = []load{{}, {mixed: true}}
	if canFlush() {
		all = append(all, load{cold: true}, load{cold: true, mixed: true})
	}
	return all
}

func (r *runner) steadyAt(v6 bool, flows int) error {
	r.say("steady %s: opening %d flows", family(v6), flows)
	g, err := r.steadyGate(v6, flows)
	if err != nil {
		return err
	}
	defer g.w.close()
	c, err := r.startReference(v6, flows)
	if err != nil {
		return err
	}
	if c != nil {
		defer c.close()
	}
	for round := range r.Repeat {
		r.say("steady %s, %d flows: round %d of %d", family(v6), flows, round+1, r.Repeat)
		for _, l := range r.loads() {
			if err := r.ctx.Err(); err != nil {
				return err
			}
			params := with(l.params(), "scenario", "steady", "family", family(v6), "flows", strconv.Itoa(flows))
			if err := r.compare(g, c, l, params); err != nil {
				return err
			}
		}
	}
	return nil
}

// steadyGate is the worker of the sweep. The caller closes g.w.
func (r *runner) steadyGate(v6 bool, flows int) (*gate, error) {
	return r.populated(worldConfig{v6: v6, services: 1, backends: steadyBackends(flows), capacity: roomFor(flows)},
		flows)
}

// startReference runs the reference with as many flows; nil if it is turned off.
func (r *runner) startReference(v6 bool, flows int) (*reference, error) {
	if r.program == nil {
		return nil, nil
	}
	return r.program.start(r.ctx, v6, flows, steadyBackends(flows), roomFor(flows), r.CPU)
}

// overReference is the greatest accepted ratio of the worker's cost to the reference's.
const overReference = 1.25

// turn is the number of chunks that the worker and the reference take in turn: less than a tenth of
// a second, so that a disturbance of the core affects both.
const turn = 40

// compare takes one sample of the worker and of the reference, in turns. Each figure is the median
// over the turns.
func (r *runner) compare(g *gate, c *reference, l load, params map[string]string) error {
	var ns, ofC, ratios []float64
	chunks := min(turn, r.Chunks)
	if c == nil {
		chunks = r.Chunks
	}
	for left := r.Chunks; left > 0; left -= chunks {
		chunks = min(chunks, left)
		of, err := g.sample(l, chunks, r.rnd)
		if err != nil {
			return err
		}
		ns = append(ns, of)
		if c == nil {
			break
		}
		in, err := c.sample(l, chunks, false)
		if err != nil {
			return err
		}
		ofC, ratios = append(ofC, in), append(ratios, of/in)
	}
	r.cost(sluice, params, median(ns))
	if c == nil {
		return nil
	}
	r.cost(inC, params, median(ofC))
	r.ratio(with(params, "to", inC), median(ratios), "lower", overReference)
	if l != (load{}) {
		return nil
	}
	serial, err := c.sample(l, r.Chunks, true)
	if err == nil {
		r.cost(inCSerial, params, serial)
	}
	return err
}

func median(list []float64) float64 { return (&results.Point{Samples: list}).Median() }

// roomFor is the size of a table that is three quarters full with this number of flows.
func roomFor(flows int) uint32 { return uint32(flows/3*4 + 64) }

// populated makes a world of one worker with open flows of new clients. The caller closes g.w.
func (r *runner) populated(c worldConfig, flows int) (*gate, error) {
	return populated(c, func(w *world) []flow { return w.addClients(flows, r.rnd) })
}

// populated makes a world of one worker in which these flows are open. The caller closes g.w.
func populated(c worldConfig, flows func(*world) []flow) (*gate, error) {
	w, err := newWorld(c)
	if err != nil {
		return nil, err
	}
	g, err := w.addGate(0, 1)
	if err == nil {
		err = g.open(flows(w))
	}
	if err != nil {
		w.close()
		return nil, err
	}
	return g, nil
}
