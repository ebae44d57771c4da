package flowtable

import (
	"math/bits"
	"time"
	"unsafe"

	"sluice.dev/sluice/nat/prefetch"
)

// How a flow is found that gives way. Where the table is full:
//
//	probe a group of records           expired flows, and any that no ring has
//	kind by kind, in the order:
//	    the oldest of it in a ring     a dead process's, then ours, then another handle's
//	    or among the probed ones
//	    or probe on, if by the counters there are enough of the kind to find one
//	probe on for any that gives way
//
// Rings do not have all flows: not those that were lost when a ring was full, for which there was
// no entry when a dead process's flows were taken over, or which the sweep has not passed since
// they became idle. Records are probed at random, a group at a time, so that the cache misses of
// a group overlap, and neither the order in the table nor who knows it makes a difference. A
// table whose records are all in reach of the probes is searched in order instead, to the end.
//
// One search examines no more records than maxExamined. A Create makes two at most: at the
// half-open cap (shedHalfOpen), and in the full table (shed).
const (
	probeGroup  = 16
	probeBudget = 768 // of 1 in 100 that give way, one is among them with 99.95 %
	ringBudget  = 256
	maxExamined = probeBudget + ringBudget

	// probeDensity: one record in so many must be of a kind for probes to search for it before the
	// kinds that follow are considered. Then they find one with 99.7 %.
	probeDensity = 128
	// ringWindow bounds the entries that are examined of one ring, ringYoung those of them whose
	// flow is still what the entry says, and too young: entries that follow are younger, but where
	// a flow was refreshed.
	ringWindow = 64
	ringYoung  = 4
	// ringRun is after how many entries in a row that are not what they were the search takes
	// longer strides, twice as long after each further eight: what is left out is not in the ring
	// any more.
	ringRun = 16
	// otherRings bounds the participants whose rings are searched for one Create.
	otherRings = 8
	// ringAhead is how far ahead of the search the records of a ring's entries are prefetched.
	ringAhead = 4
)

// settledAge is the age from which on a half-open flow is shed without regard to older ones that
// other handles may have: an honest client has acknowledged, or lost a packet.
const settledAge = int32(time.Second / tick)

// hunter is a handle's memory of its searches for flows to shed.
type hunter struct {
	random uint64 // state of xorshift64, never 0
	walk   [2]uint32
	group  [probeGroup]uint32

	// What this search may still examine.
	probes, entries int

	// donor is the participant whose rings were worth a look last, or are to be tried next.
	donor int

	full, half rest
}

// examined returns how many records the last search examined.
func (u *hunter) examined() int { return maxExamined - u.probes - u.entries }

func (u *hunter) begin() { u.probes, u.entries = probeBudget, ringBudget }

// rest bounds what searches in vain cost. The first is no reason to rest: where one record in a
// hundred gives way, one search in 2,000 finds none. From the second in a row on, the handle rests,
// each time for twice as long; at the longest, probes take a percent of its time.
type rest struct {
	vain  uint
	until Time
}

const (
	firstRest   = Time(125 * time.Microsecond)
	restDoubles = 3 // the longest is a millisecond
)

func (r *rest) resting(now Time) bool { return r.vain > 1 && now < r.until }

func (r *rest) failed(now Time) {
	r.vain = min(r.vain+1, restDoubles+2)
	if r.vain > 1 {
		r.until = now + firstRest<<(r.vain-2)
	}
}

// candidate is a flow that may be shed, and where in a ring it was found, if it was.
type candidate struct {
	victim
	a        *arena
	ring     *ring
	position uint64
}

var noCandidate = candidate{victim: victim{kind: shedNever}}

func (c *candidate) found() bool { return c.kind != shedNever }

// age is how long nothing has happened to the flow.
func (c *candidate) age(now ticks) int32 { return now.since(c.meta.seen()) }

// take ends a candidate's flow, unless something has happened to it since it was judged.
func (h *Handle) take(c *candidate, kind Shed) bool {
	if c.ring != nil {
		// Only if the entry is the oldest; else it is dropped later.
		c.ring.head.CompareAndSwap(c.position, c.position+1)
	}
	return h.giveUp(c.a, c.record, c.meta, kind)
}

// shed makes room in a full arena.
func (h *Handle) shed(a *arena, now Time) bool {
	u, tk := &h.hunt, now.ticks()
	u.begin()
	resting := u.full.resting(now)
	v := victim{kind: shedNever}
	for left := h.sample(a); left > 0 && !resting && v.kind != ShedExpired; left -= probeGroup {
		h.probe(a, tk, &v)
	}
	for kind := ShedExpired; kind < NumSheds; kind++ {
		if h.shedKind(a, kind, &v, tk, resting) {
			u.full.vain = 0
			return true
		}
	}
	if resting {
		return false
	}
	for v.kind == shedNever && u.probes > 0 {
		h.probe(a, tk, &v)
	}
	if v.kind != shedNever && h.giveUp(a, v.record, v.meta, v.kind) {
		u.full.vain = 0
		return true
	}
	u.full.failed(now)
	return false
}

// shedKind ends the oldest flow of a kind that it finds. v is the first to give way of those that
// were probed.
func (h *Handle) shedKind(a *arena, kind Shed, v *victim, now ticks, resting bool) bool {
	f := family(a.v6)
	c := noCandidate
	if kind >= firstRing && (kind == ShedReset || h.liveOf(f, kind) > 0) {
		c = h.oldest(a, kind, now)
		if !c.found() && kind <= ShedHalfOpen && v.kind > kind && !resting {
			for h.likely(f, kind) && v.kind > kind && h.hunt.probes > 0 {
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

// sample returns how many records are probed before all else: a group, or all if they are in reach.
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

// probe examines a group of records, and weighs the flows that give way.
func (h *Handle) probe(a *arena, now ticks, v *victim) {
	for _, i := range h.draw(a) {
		if m := a.flow(i).load(); m.live() {
			v.weigh(i, m, h.t.shedOf(m, now), now)
		}
	}
}

// draw returns the next group of records that are in use, and prefetches them. If there are no more
// than probeBudget, it returns them in order, around and around.
func (h *Handle) draw(a *arena) []uint32 {
	u := &h.hunt
	used := a.fresh.Load() - 1 // at least one: somebody has a record, as there are flows
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
	u, tk := &h.hunt, now.ticks()
	if u.half.resting(now) {
		return false
	}
	u.begin()
	c := h.oldestHalfOpen(a, tk)
	if !c.found() {
		c = h.probeHalfOpen(tk)
	}
	if c.found() && h.take(&c, ShedHalfOpen) {
		u.half.vain = 0
		return true
	}
	u.half.failed(now)
	return false
}

// oldestHalfOpen searches rings. If the oldest flow of our own is not settled, another handle may
// have an older one: then it searches that handle's rings, too, whose was the older one the last
// time.
func (h *Handle) oldestHalfOpen(a *arena, now ticks) candidate {
	best := noCandidate
	arenas := [2]*arena{a, h.arena(!a.v6)}
	for _, a := range arenas {
		for _, r := range h.nearRings(a, ShedHalfOpen) {
			if r != nil {
				best.orOlder(h.peek(r, a, ShedHalfOpen, now, capGrace), now)
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
				older = best.orOlder(h.peekOther(a, ShedHalfOpen, now, capGrace), now) || older
			}
		}
		if older {
			break
		}
		h.nextDonor()
	}
	return best
}

// orOlder replaces a candidate by one that is older.
func (c *candidate) orOlder(other candidate, now ticks) bool {
	if !other.found() || c.found() && other.age(now) <= c.age(now) {
		return false
	}
	*c = other
	return true
}

// probeHalfOpen probes records for half-open flows that no ring has, in the family where they are
// more frequent. It returns the oldest of the first group that has one that is not young.
func (h *Handle) probeHalfOpen(now ticks) candidate {
	best := noCandidate
	a := &h.t.arenas[0]
	if h.halfOpenShare(1) > h.halfOpenShare(0) {
		a = &h.t.arenas[1]
	}
	for h.halfOpenShare(family(a.v6)) > 0 && !best.found() && h.hunt.probes > 0 {
		for _, i := range h.draw(a) {
			m := a.flow(i).load()
			if m.live() && m.state().HalfOpen() && now.since(m.seen()) >= capGrace {
				best.orOlder(candidate{victim: victim{i, m, ShedHalfOpen}, a: a}, now)
			}
		}
	}
	return best
}

// halfOpenShare returns the part of a family's records that are half-open flows, times 2^32.
func (h *Handle) halfOpenShare(f int) uint64 {
	return uint64(max(0, h.liveOf(f, ShedHalfOpen))) << 32 / uint64(max(1, h.t.arenas[f].fresh.Load()))
}
