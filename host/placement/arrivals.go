package placement

import (
	"cmp"
	"slices"
	"time"
)

const (
	// Every is the time between two looks at where packets arrive, and EveryIdle while none do.
	Every     = 200 * time.Millisecond
	EveryIdle = time.Second
	// fewest is how many packets say where packets arrive. They are waited for, at most for
	// patience looks.
	fewest   = 200
	patience = 25
	// share is the least share of packets, as 1/share, by which a CPU counts as one where they
	// arrive, and stays the least by which it goes on to count: one whose share is about the least
	// would come and go.
	share, stays = 10, 20
	// alike is how many looks in a row must say the same: a sender that the scheduler moved for a
	// moment moves no workers.
	alike = 3
)

// Arrivals tells from counters by CPU where packets arrive.
type Arrivals struct {
	before []uint64
	looks  int   // since before
	idle   bool  // no packets since before
	last   []int // what the last look said
	times  int   // that it said so
	cpus   []int // what enough looks said
	// packets are those of the last of these looks, by CPU.
	packets []uint64
}

// Look takes the counters, by CPU, and reports whether it became known, or changed, where packets
// arrive.
func (a *Arrivals) Look(counts []uint64) (changed bool) {
	before := a.before
	if len(before) != len(counts) {
		a.before, a.looks = slices.Clone(counts), 0
		return false
	}
	var sum uint64
	for cpu := range counts {
		sum += counts[cpu] - before[cpu]
	}
	a.looks++
	a.idle = sum == 0
	if sum < fewest && a.looks < patience {
		return false
	}
	a.before, a.looks = slices.Clone(counts), 0
	if sum < fewest {
		a.times = 0
		return false
	}
	var now []int
	arrived := make([]uint64, len(counts))
	for cpu := range counts {
		arrived[cpu] = counts[cpu] - before[cpu]
		least := uint64(share)
		if slices.Contains(a.cpus, cpu) {
			least = stays
		}
		if least*arrived[cpu] >= sum {
			now = append(now, cpu)
		}
	}
	if !slices.Equal(now, a.last) {
		a.last, a.times = now, 0
	}
	if a.times++; a.times < alike || slices.Equal(now, a.cpus) {
		return false
	}
	a.cpus, a.packets = now, arrived
	return true
}

// Next is the time until the next look.
func (a *Arrivals) Next() time.Duration {
	if a.idle {
		return EveryIdle
	}
	return Every
}

// CPUs are those where packets arrive; none as long as that is not known.
func (a *Arrivals) CPUs() []int { return a.cpus }

// ByPackets are the same CPUs, in ascending order of packets when they became known. Those of CPUs
// with workers count half: they may be answers to what a worker sent, which would follow it.
func (a *Arrivals) ByPackets(workers []int) []int {
	weight := func(cpu int) uint64 {
		if slices.Contains(workers, cpu) {
			return a.packets[cpu]
		}
		return 2 * a.packets[cpu]
	}
	list := slices.Clone(a.cpus)
	slices.SortStableFunc(list, func(x, y int) int { return cmp.Compare(weight(x), weight(y)) })
	return list
}
