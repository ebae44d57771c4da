package pipeline

// pair is two variants of the same work, whose figures are compared.
type pair struct {
	params      map[string]string // of both
	name        string            // name of the param that distinguishes them
	base, other string            // its values
	better      string            // of the ratio
	target      float64           // of the ratio
	// each takes a sample in nanoseconds. The ratio is otherCost/baseCost; with better "higher" it
	// is the ratio of throughputs, baseCost/otherCost.
	baseCost, otherCost func() (float64, error)
}

// inTurns takes Repeat samples of both, in turns.
func (r *runner) inTurns(p pair) error {
	for round := range r.Repeat {
		r.say("%s: round %d of %d", conditions(p.params), round+1, r.Repeat)
		if err := r.ctx.Err(); err != nil {
			return err
		}
		base, err := p.baseCost()
		if err != nil {
			return err
		}
		other, err := p.otherCost()
		if err != nil {
			return err
		}
		r.cost(sluice, with(p.params, p.name, p.base), base)
		r.cost(sluice, with(p.params, p.name, p.other), other)
		ratio := other / base
		if p.better == "higher" {
			ratio = base / other
		}
		r.ratio(with(p.params, p.name, p.other, "to", p.base), ratio, p.better, p.target)
	}
	return nil
}

// lookups samples packets of a gate's flows, with headers in the cache.
func (r *runner) lookups(g *gate) func() (float64, error) {
	return func() (float64, error) { return g.sample(load{}, r.Chunks, r.rnd) }
}
