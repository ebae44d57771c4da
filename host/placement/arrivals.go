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
	// fewest is the number of packets that are needed to decide where packets arrive. A look waits
	// for them, for at most patience looks.
	fewest   = 200
	patience = 25
	// A CPU counts as one where packets arrive once its share of packets is 1/share, and until it
	// is less than 1/stays: with one bound, a CPU near it would change all the time.
	share, stays = 10, 20
	// alike is the number of equal looks in a row that are needed: a sender that the scheduler
	// moves for a moment must move no workers.
	alike = 3
)

// Arrivals decides by counters of each CPU where packets arrive.
type Arrivals struct {
	before []uint64
	looks  int   // since before
	idle   bool  // no packets since before
	last   []int // result of the last look
	times  int   // number of looks in a row with that result
	cpus   []int // result of enough looks
	// packets has the packets of the last of these looks, by CPU.
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

// ByPackets returns the same CPUs, in ascending order of packets when they became known. Packets on
// CPUs with workers count half: they may be answers to packets of a worker, which would follow it.
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
