package flowtable

import "sluice.dev/sluice/flowtable/conn"

// The sweep examines all records every few seconds. While an arena is nearly full, the sweep also
// notes flows that may be shed and are in no other ring, or are in a ring among many stale entries
// (evict_ring.go). Then a search finds such a flow at once; probes would examine some hundred
// records if one in a hundred may be shed.

// surveyShare: an arena is nearly full when at most one in surveyShare of its flows is unused.
const surveyShare = 16

// nearlyFull reports whether an arena is nearly full, according to the published counters.
func (t *Table) nearlyFull(a *arena) bool {
	f := family(a.v6)
	return t.recovered[f][None]+t.published.live[f][None].Load() >= int32(a.flows-a.flows/surveyShare)
}

// survey notes a flow that the sweep has passed, if it may be shed.
func (h *Handle) survey(a *arena, i uint32, m conn.Meta, now Ticks) {
	switch kind := h.t.mayShed(a, i, m, now); {
	case kind == ShedHalfOpen && now.Since(m.Seen()) >= settledAge:
		h.pushTo(settledRing, a, i)
	case kind > ShedHalfOpen && kind != shedNever:
		h.pushTo(int(kind-firstRing), a, i)
	}
}
