package pipeline

import (
	"strconv"

	"sluice.dev/sluice/bench/results"
	"sluice.dev/sluice/flowtable"
)

// bytesTargets is the memory limit of a connection by family, both keys and the index included.
var bytesTargets = map[bool]float64{false: 96, true: 160}

// size computes the memory of a table for a number of flows.
func (r *runner) size() error {
	for _, v6 := range r.families() {
		for _, flows := range []uint32{1_000_000, 10_000_000} {
			c := worldConfig{v6: v6, capacity: flows, timeouts: flowtable.DefaultTimeouts()}
			bytes, err := flowtable.Size(c.tableConfig())
			if err != nil {
				return err
			}
			target := bytesTargets[v6]
			r.add(float64(bytes)/float64(flows), results.Point{
				System: sluice, Metric: metricBytes, Unit: "B", Better: "lower", Target: &target,
				Params: map[string]string{"scenario": "size", "family": family(v6), "flows": strconv.Itoa(int(flows))},
			})
		}
	}
	return nil
}
