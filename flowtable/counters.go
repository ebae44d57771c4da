package flowtable

import "sluice.dev/sluice/flowtable/conn"

// count adds by to the live counters of a family and state.
func (h *Handle) count(v6 bool, s State, by int32) {
	h.unpublished = true
	c := &h.p.live[family(v6)]
	c[s].Store(c[s].Load() + by) // one writer
	c[None].Store(c[None].Load() + by)
}

// moved updates counters, loads, charges and rings after a change of a live flow's
// conn.MetaAccounted.
func (h *Handle) moved(r Ref, before, after conn.Meta) {
	if from, to := before.State(), after.State(); from != to {
		h.unpublished = true
		c := &h.p.live[family(r&refV6 != 0)]
		c[from].Store(c[from].Load() - 1)
		c[to].Store(c[to].Load() + 1)
	}
	if before.Counts() != after.Counts() {
		h.t.book(h.Flow(r))
	}
	if before.Charges() != after.Charges() {
		h.t.bookCharge(h.arena(r&refV6 != 0), r.index(), h.now)
	}
	if h.t.group.marks != nil {
		h.movedInGroup(r, before, after)
	}
	if kind := ringOf(after); kind != shedNever && kind != ringOf(before) {
		h.note(h.arena(r&refV6 != 0), r.index(), kind)
	}
}

// live returns how many flows of a family are in a state (None: in all states). It includes this
// handle's changes up to now, and other handles' changes up to the first Create in the batch.
func (h *Handle) live(f int, s State) int32 { return h.others[f][s] + h.p.live[f][s].Load() }

// liveOf returns how many flows are in the states of a kind.
func (h *Handle) liveOf(f int, kind Shed) (n int32) {
	for _, s := range shedStates[kind] {
		n += h.live(f, s)
	}
	return n
}

// publish adds the changes of this participant's live counters to the published sums: so a step
// reads two cache lines for any number of other participants.
func (h *Handle) publish() {
	if !h.unpublished {
		return
	}
	h.unpublished = false
	for f := range h.p.live {
		for s := range h.p.live[f] {
			n, was := h.p.live[f][s].Load(), &h.p.published[f][s]
			if n != *was {
				h.t.published.live[f][s].Add(n - *was)
				*was = n
			}
		}
	}
}

// recount loads the sums that the other participants have published.
func (h *Handle) recount() {
	h.othersStale = false
	for f := range h.others {
		for s := range h.others[f] {
			h.others[f][s] = h.t.recovered[f][s] + h.t.published.live[f][s].Load() - h.p.published[f][s]
		}
	}
}

func (p *participant) addTo(sums *[2][16]int32) {
	for f := range sums {
		for s := range sums[f] {
			sums[f][s] += p.live[f][s].Load()
		}
	}
}
