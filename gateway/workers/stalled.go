package workers

import (
	"fmt"
	"time"

	"sluice.dev/sluice/serve/status"
)

// stalledAfter is how long ago a worker's last pass may be before it counts as stalled. A worker
// without packets wakes once in config.MaxSleep.
const stalledAfter = 5 * time.Second

// Stalled lists the workers whose last pass is more than stalledAfter ago. They must have been
// started.
func (g *Group) Stalled(now uint64) (ids []int) {
	for id, w := range g.workers {
		if last := max(g.startedAt, w.block.LoopTick.Load()); now-min(now, last) > uint64(stalledAfter) {
			ids = append(ids, id)
		}
	}
	return ids
}

// Conditions returns the workers' scheduling priority, and the workers that are stalled.
func (g *Group) Conditions(now uint64) (list []status.ConditionView) {
	list = g.precedence.condition()
	for _, id := range g.Stalled(now) {
		list = append(list,
			status.Failed("worker", fmt.Sprintf("worker %d made no progress for more than %v: its queues are not "+
				"served; check whether a real-time thread occupies CPU %d, and restart the daemon", id,
				stalledAfter, g.placed.Load().CPUs[id])))
	}
	return list
}

// Views returns the counters of the workers.
func (g *Group) Views(now uint64) []status.WorkerView {
	views := make([]status.WorkerView, len(g.workers))
	p := g.placed.Load()
	for i, w := range g.workers {
		views[i] = status.WorkerOf(i, p.CPUs[i], w.block, now)
	}
	return views
}
