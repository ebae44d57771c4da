package workers

import (
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/control/config"
)

// pinning chooses each worker's CPU: the configured ones, or those the process
// may run on in turn.
func pinning(c *config.Configuration, workers int) []int {
	cpus := c.WorkerCPUs
	if len(cpus) == 0 {
		var set unix.CPUSet
		if unix.SchedGetaffinity(0, &set) == nil {
			for cpu := range len(set) * 64 {
				if set.IsSet(cpu) {
					cpus = append(cpus, cpu)
				}
			}
		}
	}
	pins := make([]int, workers)
	for w := range pins {
		pins[w] = -1
		if len(cpus) > 0 {
			pins[w] = cpus[w%len(cpus)]
		}
	}
	return pins
}
