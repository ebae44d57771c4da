package flowtable

import (
	"math/bits"
	"time"
	"unsafe"

	"sluice.dev/sluice/flowtable/conn"
	"sluice.dev/sluice/nat/prefetch"
)

// The search for a flow to shed. In a full table:
//
//	probe a group of records           expired flows, and flows that no ring has
//	kind by kind, in the order:
//	    the oldest of it in a ring     a dead process's, the handle's own, then another's
//	    or among the probed ones
//	    or continue to probe, if the counters show enough flows of the kind to find one
//	continue to probe for any flow that may be shed
//
// Rings do not have all flows. They lack entries that were lost when a ring was full, flows that
// found no room when a dead process's flows were recovered, and flows that the sweep has not passed
// since they became idle. Records are probed at random, a group at a time: so the cache misses of a
// group overlap, and an attacker who knows the order in the table has no advantage. If the budget
// of probes covers all records of the table, they are searched in order instead, to the end.
//
// One search examines at most maxExamined records. A Create makes at most two searches: at the
// half-open cap (shedHalfOpen), and in the full table (shed).
const (
	probeGroup  = 16
	probeBudget = 768 // if 1 in 100 records may be shed, the probes find one with 99.95 %
	ringBudget  = 256
	maxExamined = probeBudget + ringBudget

	// probeDensity: at least one record in this many must be of a kind before probes search for the
	// kind ahead of the kinds that follow. Then they find one with 99.7 %.
	probeDensity = 128
	// ringWindow bounds the entries of one ring that a search examines. ringYoung bounds the
	// entries among them that still match their flow but are too young: the entries that follow are
	// younger still, unless a flow was refreshed.
	ringWindow = 64
	ringYoung  = 4
	// ringRun is the number of consecutive stale entries after which the search takes longer
	// strides, doubled after each further eight. The skipped entries are dropped from the ring.
	ringRun = 16
	// otherRings bounds the participants whose rings are searched for one Create.
	otherRings = 8
	// ringAhead is how many entries ahead of the search their records are prefetched.
	ringAhead = 4
)

// settledAge is the age from which a half-open flow is shed even if another handle may have an
// older one: an honest client has acknowledged by then, or a packet was lost.
const settledAge = int32(time.Second / conn.Tick)

// evictor is the state of a handle's searches for flows to shed.
type evictor struct {
	random uint64 // state of xorshift64, never 0
	walk   [2]uint32
	group  [probeGroup]uint32

	// The numbers of probes and ring entries that this search may still examine.
	probes, entries int

	// donor is the participant whose rings had a flow in the last search, or whose rings are next.
	donor int

	full, half, midway backoff
}

// examined returns how many records the last search examined.
func (u *evictor) examined() int { return maxExamined - u.probes - u.entries }

func (u *evictor) begin() { u.probes, u.entries = probeBudget, ringBudget }

// backoff bounds the cost of failed searches. After the first failure the handle does not wait: if
// one record in a hundred may be shed, one search in 2,000 finds none. From the second consecutive
// failure on it waits, each time for twice as long. At the longest wait, probes take one percent of
// its time.
type backoff struct {
	failures uint
	until    Time
}

const (
	firstBackoff     = Time(125 * time.Microsecond)
	backoffDoublings = 3 // the longest is a millisecond
)

func (r *backoff) waiting(now Time) bool { return r.failures > 1 && now < r.until }

func (r *backoff) failed(now Time) {
	r.failures = min(r.failures+1, backoffDoublings+2)
	if r.failures > 1 {
		r.until = now + firstBackoff<<(r.failures-2)
	}
}

// candidate is a flow that may be shed, and its ring and position if it was found in a ring.
type candidate struct {
	victim
	a        *arena
	ring     *ring
	position uint64
}

var noCandidate = candidate{victim: victim{kind: shedNever}}

func (c *candidate) found() bool { return c.kind != shedNever }

// age returns the time since the flow was last seen, in ticks.
func (c *candidate) age(now Ticks) int32 { return now.Since(c.meta.Seen()) }

// take ends a candidate's flow, unless the flow has changed since it was examined.
func (h *Handle) take(c *candidate, kind Shed) bool {
	if c.ring != nil {
		// This succeeds only if the entry is the oldest; otherwise a later search drops it.
		c.ring.head.CompareAndSwap(c.position, c.position+1)
	}
	return h.shedFlow(c.a, c.record, c.meta, kind)
}

// shed makes room in a full arena for a flow that may end flows up to the kind last.
func (h *Handle) shed(a *arena, last Shed, now Time) bool {
	u, tk := &h.evictor, now.Ticks()
	u.begin()
	b := &u.full
	if last < ShedIdle {
		b = &u.midway
	}
	waiting := b.waiting(now)
	v := victim{kind: shedNever}
	for left := h.sample(a); left > 0 && !waiting && v.kind != ShedExpired; left -= probeGroup {
		h.probe(a, tk, &v)
	}
	for kind := ShedExpired; kind <= last; kind++ {
		if h.shedKind(a, kind, &v, tk, waiting) {
			b.failures = 0
			return true
		}
	}
	if waiting {
		return false
	}
	for last == ShedIdle && v.kind == shedNever && u.probes > 0 {
		h.probe(a, tk, &v)
	}
	if v.kind <= last && h.shedFlow(a, v.record, v.meta, v.kind) {
		b.failures = 0
		return true
	}
	b.failed(now)
	return false
}

// shedKind ends the oldest flow of a kind that it finds, and reports whether it ended one. v is the
// first flow to shed among the probed ones.
func (h *Handle) shedKind(a *arena, kind Shed, v *victim, now Ticks, waiting bool) bool {
	f := family(a.v6)
	c := noCandidate
	if kind >= firstRing && (kind == ShedReset || h.liveOf(f, kind) > 0) {
		c = h.oldest(a, kind, now)
		// The counters of one-sided flows include unconfirmed flows of SCTP. If there are many
		// one-sided flows, the first group of probes finds one.
		if !c.found() && kind <= ShedHalfOpen && kind != ShedOneSided && v.kind > kind && !waiting {
			for h.likely(f, kind) && v.kind > kind && h.evictor.probes > 0 {
				h.probe(a, now, v)
			}
		}
	}
	if first := c.victim; v.kind <= kind && first.weigh(v.record, v.meta, v.kind, now) {
		c = candidate{victim: *v, a: a}
		*v = victim{kind: shedNever}
	}
	return c.found() && h.take(&c, c.kind)
}

// sample returns how many records are probed first: a group, or all if the budget covers them.
func (h *Handle) sample(a *arena) int {
	if used := a.fresh.Load() - 1; used <= probeBudget {
		return int(used)
	}
	return probeGroup
}

// likely reports whether probes will find a flow of a kind.
func (h *Handle) likely(f int, kind Shed) bool {
	return uint64(max(0, h.liveOf(f, kind)))*probeDensity >= uint64(h.t.arenas[f].fresh.Load())
}

// probe examines a group of records, and weighs the flows that may be shed.
func (h *Handle) probe(a *arena, now Ticks, v *victim) {
	for _, i := range h.draw(a) {
		if m := a.flow(i).load(); m.Live() {
			v.weigh(i, m, h.t.mayShed(a, i, m, now), now)
		}
	}
}

// draw returns the next group of used records, and prefetches them. If there are at most
// probeBudget used records, it returns them in order, cyclically.
func (h *Handle) draw(a *arena) []uint32 {
	u := &h.evictor
	used := a.fresh.Load() - 1 // at least one, because there are flows
	n := min(probeGroup, used)
	u.probes -= int(n)
	if used <= probeBudget {
		at := &u.walk[family(a.v6)]
		for k := range u.group[:n] {
			*at = *at%used + 1
			u.group[k] = *at
		}
		return u.group[:n]
	}
	for k := range u.group {
		u.random ^= u.random << 13
		u.random ^= u.random >> 7
		u.random ^= u.random << 17
		hi, _ := bits.Mul64(u.random, uint64(used))
		u.group[k] = uint32(hi) + 1
		prefetch.Read((*byte)(unsafe.Pointer(a.flow(u.group[k]))))
	}
	return u.group[:]
}

// shedHalfOpen makes room under the half-open cap: it ends the oldest half-open flow that it finds,
// of either family, unless all are young.
func (h *Handle) shedHalfOpen(a *arena, now Time) bool {
	u, tk := &h.evictor, now.Ticks()
	if u.half.waiting(now) {
		return false
	}
	u.begin()
	c := h.oldestHalfOpen(a, tk)
	if !c.found() {
		c = h.probeHalfOpen(tk)
	}
	if c.found() && h.take(&c, ShedHalfOpen) {
		u.half.failures = 0
		return true
	}
	u.half.failed(now)
	return false
}

// oldestHalfOpen searches rings. If the oldest flow of the handle's own rings is younger than
// settledAge, another handle may have an older one: then it also searches the rings of the donor,
// which had the older flow in the last search.
func (h *Handle) oldestHalfOpen(a *arena, now Ticks) candidate {
	best := noCandidate
	arenas := [2]*arena{a, h.arena(!a.v6)}
	for _, a := range arenas {
		for _, r := range h.nearRings(a, ShedHalfOpen) {
			if r != nil {
				best.orOlder(h.oldestIn(r, a, ShedHalfOpen, now, capGrace), now)
			}
		}
	}
	others := otherRings
	switch {
	case !best.found():
	case best.age(now) >= settledAge:
		return best
	default:
		others = 1
	}
	for range min(others, int(h.t.watermark.Load())-1) {
		older := false
		for _, a := range arenas {
			if h.liveOf(family(a.v6), ShedHalfOpen) > 0 {
				older = best.orOlder(h.oldestInDonor(a, ShedHalfOpen, now, capGrace), now) || older
			}
		}
		if older {
			break
		}
		h.nextDonor()
	}
	return best
}

// orOlder replaces a candidate by other if other is older, and reports whether it did.
func (c *candidate) orOlder(other candidate, now Ticks) bool {
	if !other.found() || c.found() && other.age(now) <= c.age(now) {
		return false
	}
	*c = other
	return true
}

// probeHalfOpen probes records for half-open flows that no ring has, in the family where they are
// more frequent. It returns the oldest flow of the first group that has one older than capGrace.
func (h *Handle) probeHalfOpen(now Ticks) candidate {
	best := noCandidate
	a := &h.t.arenas[0]
	if h.halfOpenShare(1) > h.halfOpenShare(0) {
		a = &h.t.arenas[1]
	}
	for h.halfOpenShare(family(a.v6)) > 0 && !best.found() && h.evictor.probes > 0 {
		for _, i := range h.draw(a) {
			m := a.flow(i).load()
			if m.Live() && m.State().HalfOpen() && now.Since(m.Seen()) >= capGrace && !h.t.lasts(a, i) {
				best.orOlder(candidate{victim: victim{i, m, ShedHalfOpen}, a: a}, now)
			}
		}
	}
	return best
}

// halfOpenShare returns the fraction of a family's records that are half-open flows, times 2^32.
func (h *Handle) halfOpenShare(f int) uint64 {
	return uint64(max(0, h.liveOf(f, ShedHalfOpen))) << 32 / uint64(max(1, h.t.arenas[f].fresh.Load()))
}
