package pipeline

import (
	"net/netip"
	"strconv"

	"sluice.dev/sluice/fastpath/capture"
)

const (
	captureBackends = 100 // of which one is captured
	captureTarget   = 1.05
	captureRate     = 10_000 // records a second, the default of `sluice capture`
	captureRing     = 1 << 20
)

// capture compares a worker with itself while it captures one packet in a hundred: it selects the
// packets of one backend of a hundred, in both directions.
func (r *runner) capture() error {
	for _, v6 := range r.families() {
		for _, flows := range []int{servicesFewFlows, liveFlows} {
			if err := r.captureAt(v6, flows); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *runner) captureAt(v6 bool, flows int) error {
	r.say("capture %s: opening %d flows", family(v6), flows)
	g, err := r.populated(worldConfig{v6: v6, services: 1, backends: captureBackends, capacity: roomFor(flows)}, flows)
	if err != nil {
		return err
	}
	defer g.w.close()
	pod := podAddr(v6, 0)
	addr := pod.Netip()
	tap := capture.NewTap(capture.Filter{Backend: capture.NewEndpoint(netip.PrefixFrom(addr, addr.BitLen()), 0)},
		1<<16, captureRate, 1, captureRing)
	captured := g.NewTaps([]*capture.Tap{tap})
	cost := func() (float64, error) { return g.sample(load{mixed: true}, r.Chunks, r.rnd) }
	return r.inTurns(pair{
		params: map[string]string{"scenario": "capture", "family": family(v6), "flows": strconv.Itoa(flows)},
		name:   "capture", base: "off", other: "1%", better: "lower", target: captureTarget, baseCost: cost,
		otherCost: func() (float64, error) {
			g.SetTaps(captured)
			defer g.SetTaps(nil)
			ns, err := cost()
			tap.Rings[0].Read(func(*capture.Record, []byte) bool { return true })
			return ns, err
		},
	})
}
