package pipeline

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime/debug"

	"sluice.dev/sluice/bench/results"
	"sluice.dev/sluice/test/bed/machine"
)

// TurnsVersion is the version of RunTurns' protocol. A build with another version is measured by
// whole runs.
const TurnsVersion = "1"

// RunTurns runs a process that measures a worker on request. It opens the flows of the one family
// and the one number of flows in c, and prints "ready". Then it answers each line of in,
//
//	sample hot|cold clients|both CHUNKS
//
// with a line "ns X", the median nanoseconds per packet over that number of chunks. It returns at
// the end of in.
func RunTurns(ctx context.Context, c Config, in io.Reader, out io.Writer) error {
	if err := c.check(); err != nil {
		return err
	}
	if c.IPv4 == c.IPv6 || len(c.Flows) != 1 {
		return fmt.Errorf("pipeline: one family and one number of flows, not %d", len(c.Flows))
	}
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // as in Run
	r := &runner{Config: c, ctx: ctx, rnd: rand.New(rand.NewPCG(1, 2))}
	return machine.OnCPU(c.CPU, func() error { return r.answer(in, out) })
}

func (r *runner) answer(in io.Reader, out io.Writer) error {
	g, err := r.steadyGate(r.IPv6, r.Flows[0])
	if err != nil {
		return err
	}
	defer g.w.close()
	fmt.Fprintln(out, "ready")
	for lines := bufio.NewScanner(in); lines.Scan(); {
		l, chunks, err := parseSample(lines.Text())
		if err != nil {
			return err
		}
		ns, err := g.sample(l, chunks, r.rnd)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "ns %f\n", ns)
	}
	return nil
}

// parseSample reads a request of sampleRequest.
func parseSample(line string) (l load, chunks int, err error) {
	var headers, packets string
	if _, err := fmt.Sscanf(line, "sample %s %s %d", &headers, &packets, &chunks); err != nil {
		return l, 0, fmt.Errorf("pipeline: %q is no request: %w", line, err)
	}
	l = load{cold: headers == "cold", mixed: packets == "both"}
	if want := sampleRequest(l, chunks); want != line || chunks < 1 || l.cold && !canFlush() {
		return l, 0, fmt.Errorf("pipeline: %q cannot be measured by this build", line)
	}
	return l, chunks, nil
}

// turns measures one family and number of flows in both builds, in processes started for it. The
// builds alternate on the core every few milliseconds. A sample is the median over the turns.
func (b *beforeRun) turns(u unit, round int) error {
	var builds [2]*partner
	for _, i := range order(round) {
		p, err := startPartner(b.ctx, b.builds[i].name, b.builds[i].path, append([]string{"pipeline", "turns"},
			b.args(u)...)...)
		if err != nil {
			return err
		}
		defer p.close()
		builds[i] = p
	}
	for _, l := range (&runner{}).loads() {
		var ns [2][]float64
		var ratios []float64
		for n, left := 0, b.Chunks; left > 0; n++ {
			chunks := min(turn, left)
			left -= chunks
			for _, i := range order(round + n) {
				x, err := builds[i].nanos(sampleRequest(l, chunks))
				if err != nil {
					return err
				}
				ns[i] = append(ns[i], x)
			}
			ratios = append(ratios, ns[now][n]/ns[then][n])
		}
		like := results.Point{Params: u.params(l), Metric: metricCost, Unit: "ns", Better: "lower"}
		b.pair(like, median(ns[then]), median(ns[now]), median(ratios))
	}
	return nil
}
