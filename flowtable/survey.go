package flowtable

// The sweep examines all records every few seconds. While an arena is nearly full, the sweep also
// notes what gives way and is in no other ring, or in one between flows that do not give way any
// more (ring.go). Then a search finds it at once, where probes would need some hundred records if
// one in a hundred gives way.

// surveyShare: an arena is nearly full when all but one in so many of its flows are in use.
const surveyShare = 16

// nearlyFull reports whether flows of an arena are likely to have to give way soon, by what all
// participants have published.
func (t *Table) nearlyFull(a *arena) bool {
	f := family(a.v6)
	return t.recovered[f][None]+t.published.live[f][None].Load() >= int32(a.flows-a.flows/surveyShare)
}

// survey notes a flow that the sweep has passed.
func (h *Handle) survey(a *arena, i uint32, m meta, now ticks) {
	switch kind := h.t.shedOf(m, now); {
	case kind == ShedHalfOpen && now.since(m.seen()) >= settledAge:
		h.pushTo(settledRing, a, i)
	case kind > ShedHalfOpen && kind != shedNever:
		h.pushTo(int(kind-firstRing), a, i)
	}
}
