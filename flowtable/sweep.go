package flowtable

import (
	"time"

	"sluice.dev/sluice/flowtable/conn"
	"sluice.dev/sluice/nat/prefetch"
)

// sweepPeriod is how long one sweep over the whole table takes, at SweepQuota's pace.
const sweepPeriod = 5 * time.Second

// Bounds on one call of Sweep, so that it delays packets by at most 50 us, after any pause and for
// any number of expired flows. It examines at most SweepRecords records and claims sweepChunk of
// them at a time. It claims no more once it has ended a flow for each sweepPerEnd records that it
// may examine.
const (
	SweepRecords = 2048
	sweepChunk   = 32
	sweepPerEnd  = 32
)

// SweepQuota returns how many records all workers together must sweep for the time since their last
// sweep, at most the whole table. Lookup ignores expired flows, so a late sweep is never visible.
func (t *Table) SweepQuota(elapsed time.Duration) int {
	elapsed = min(max(elapsed, 0), sweepPeriod)
	return int((t.positions()*uint64(elapsed) + uint64(sweepPeriod) - 1) / uint64(sweepPeriod))
}

// positions is the length of the sweep: the records of both arenas.
func (t *Table) positions() uint64 {
	return uint64(t.arenas[0].records) + uint64(t.arenas[1].records)
}

// slice maps positions from [from, from+n) to the used records of one arena. It returns the record
// numbers [first, end), and how many positions they cover.
func (t *Table) slice(from uint64, n int) (a *arena, first, end uint32, positions int) {
	a = &t.arenas[0]
	if from >= uint64(a.records) {
		from -= uint64(a.records)
		a = &t.arenas[1]
	}
	positions = int(min(uint64(n), uint64(a.records)-from))
	first = uint32(from) + 1
	end = max(first, min(first+uint32(positions), a.fresh.Load()))
	return a, first, end, positions
}

// endingsSize is how many flows a sweep ends together: with two buckets each, about as many cache
// misses as a core can have in flight.
const endingsSize = 16

// endings has expired flows of one arena whose buckets have been prefetched, to end them together.
// A flow has keys in two buckets of the index, and if it was idle for long, neither is in a cache:
// ending flows one after the other would cost two cache misses for each.
//
// The copies cannot become stale: the keys of a record do not change while the handle is online,
// and a flow whose meta has changed is not ended.
type endings struct {
	n      int
	record [endingsSize]uint32
	meta   [endingsSize]conn.Meta
	hash   [endingsSize][2]uint64 // by side
	bucket [endingsSize][2]uint64 // offset in the index, bytes
}

// add prefetches the buckets of a flow.
func (e *endings) add(h *Handle, a *arena, i uint32, m conn.Meta) {
	n := e.n & (endingsSize - 1)
	e.record[n], e.meta[n] = i, m
	hash, at := &e.hash[n], &e.bucket[n]
	*hash = h.hashes(a, i)
	at[0], at[1] = a.home(hash[0])*bucketBytes, a.home(hash[1])*bucketBytes
	prefetch.WriteAll(a.first(), &at[0], 8, len(at))
	e.n = n + 1
}

// end ends the flows that have not changed, and returns how many. It updates the live counters at
// once: a sweep may cover a million records, and other handles decide by these counters whether
// there is room for a flow.
func (e *endings) end(h *Handle, a *arena) (ended int) {
	var left [16]int32 // ended flows by state; most are in one state
	for n := range e.n {
		if m := e.meta[n]; h.end(a, e.record[n], m, EndTimeout, &e.hash[n]) {
			left[m.State()]++
			ended++
		}
	}
	for s, n := range left {
		if n != 0 {
			h.count(a.v6, State(s), -n)
		}
	}
	h.publish()
	e.n = 0
	return ended
}

// Sweep examines the next records of the whole table, at most max, and ends the expired flows among
// them. The work of one call is bounded: if it examined fewer than max, the caller must sweep the
// rest in its next step. Workers share one cursor.
func (h *Handle) Sweep(now Time, max int) (examined, expired int) {
	total := h.t.positions()
	max = int(min(uint64(max), total, SweepRecords))
	for ends := max/sweepPerEnd + 1; examined < max && expired < ends; {
		n := min(sweepChunk, max-examined)
		from := h.t.sweep.Add(uint64(n)) - uint64(n)
		examined += n
		for n > 0 {
			a, first, end, part := h.t.slice(from%total, n)
			expired += h.sweep(a, first, end, now.Ticks())
			from += uint64(part)
			n -= part
		}
	}
	if expired != 0 {
		h.p.shed[ShedExpired].Add(uint64(expired))
	}
	return examined, expired
}

// sweep ends the expired flows among records [first, end) and returns how many.
func (h *Handle) sweep(a *arena, first, end uint32, now Ticks) (expired int) {
	e, nearlyFull := &h.endings, h.t.nearlyFull(a)
	for i := first; i < end; i++ {
		m := a.flow(i).load()
		if !m.Live() {
			continue
		}
		if !h.t.expired(a, i, m, now) {
			if nearlyFull {
				h.survey(a, i, m, now)
			}
			if m.HeaderPending() && !m.Reset() && !m.State().Over() {
				h.unacknowledged.add(a.ref(i), m, now)
			}
			continue
		}
		if e.add(h, a, i, m); e.n == endingsSize {
			expired += e.end(h, a)
		}
	}
	return expired + e.end(h, a)
}
