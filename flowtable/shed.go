package flowtable

import "time"

// Shed is the kind of flow that is ended before its time. The order is the order of shedding under
// pressure.
type Shed uint8

const (
	ShedExpired     Shed = iota // expired; the sweep ends these
	ShedClosed                  // TCP, closed or in TIME_WAIT
	ShedReset                   // TCP, open or closing, and an RST was the last packet, or both sides sent a FIN
	ShedUnreplied               // UDP without a reply, or without a packet of the client after it
	ShedHalfOpen                // TCP, the client has not acknowledged
	ShedUnconfirmed             // SCTP, acknowledged, but the backend has not sent since
	ShedIdle                    // UDP, replied, idle for longer than it is protected
	NumSheds        = iota
	shedNever       = Shed(NumSheds)
)

// String returns the name used in metrics.
func (s Shed) String() string {
	return [...]string{
		"expired", "closed", "reset", "unreplied", "half_open", "unconfirmed", "idle", "never",
	}[min(s, shedNever)]
}

const (
	// halfOpenGrace protects young handshakes where source ports run short: none that is younger
	// makes room for another. An Unconfirmed flow that is younger never does: its backend is
	// likely to speak yet.
	halfOpenGrace = int32(500 * time.Millisecond / tick)
	// capGrace protects young handshakes at the half-open cap. It is shorter, as there the oldest
	// of all is chosen: where the cap holds a flood for longer than a handshake takes, no handshake
	// is ended by it, and the shorter the grace the greater the flood that the cap holds.
	capGrace = int32(200 * time.Millisecond / tick)
)

// idleProtection is how long an assured UDP flow is protected for each second in which it had
// packets: one of two packets for seconds, one that is used for as long as UDPIdle says.
const idleProtection = int32(4 * time.Second / tick)

// protection returns how long an assured UDP flow may be idle before it gives way.
func (t *Table) protection(m meta) int32 { return min(idleProtection*m.usedSeconds(), t.udpIdle) }

// shedOf returns the kind of a live flow.
func (t *Table) shedOf(m meta, now ticks) Shed {
	if t.lifetimes.expired(m, now) {
		return ShedExpired
	}
	switch kind := ringOf(m); kind {
	case ShedReset:
		if now.since(m.seen()) >= resetGrace {
			return ShedReset
		}
		return shedNever
	case shedNever:
	default:
		return kind
	}
	switch m.state() {
	case Established, FinClient, FinBackend:
		// Idle for a second, with two FINs: more likely over than not. It is found by probes only:
		// packets that refresh it would make it a young entry at the head of a ring.
		if m.bothFins() && now.since(m.seen()) >= resetGrace {
			return ShedReset
		}
	case Unconfirmed:
		if now.since(m.seen()) >= halfOpenGrace {
			return ShedUnconfirmed
		}
	case UDPAssured:
		if now.since(m.seen()) > t.protection(m) {
			return ShedIdle
		}
	}
	return shedNever
}

// shedStates are the states of the kinds whose flows are counted: by the counters it is known how
// many there are.
var shedStates = [NumSheds][]State{
	ShedClosed:      {Closed, TimeWaitClient, TimeWaitBackend},
	ShedUnreplied:   {UDPNew, UDPReplied},
	ShedHalfOpen:    {SynSeen, SynRecv},
	ShedUnconfirmed: {Unconfirmed},
	ShedIdle:        {UDPAssured},
}

// count books a flow in or out.
func (h *Handle) count(v6 bool, s State, by int32) {
	h.unpublished = true
	c := &h.p.live[family(v6)]
	c[s].Store(c[s].Load() + by) // one writer
	c[None].Store(c[None].Load() + by)
}

// moved books a change of a live flow, in one of metaAccounted.
func (h *Handle) moved(r Ref, before, after meta) {
	if from, to := before.state(), after.state(); from != to {
		h.unpublished = true
		c := &h.p.live[family(r&refV6 != 0)]
		c[from].Store(c[from].Load() - 1)
		c[to].Store(c[to].Load() + 1)
	}
	if before.counts() != after.counts() {
		h.t.book(h.Flow(r))
	}
	if before.charges() != after.charges() {
		h.t.bookCharge(h.arena(r&refV6 != 0), r.index(), h.now)
	}
	if kind := ringOf(after); kind != shedNever && kind != ringOf(before) {
		h.note(h.arena(r&refV6 != 0), r.index(), kind)
	}
}

// live returns how many flows there are in a state (None: in all). It includes this handle's
// changes up to now, and the others' up to the first Create in the batch.
func (h *Handle) live(f int, s State) int32 { return h.others[f][s] + h.p.live[f][s].Load() }

// liveOf returns how many flows are in the states of a kind.
func (h *Handle) liveOf(f int, kind Shed) (n int32) {
	for _, s := range shedStates[kind] {
		n += h.live(f, s)
	}
	return n
}

// publish adds what has changed of this participant's live counters to the published sums: a step
// then reads two lines for all others, however many they are.
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

// recount takes what the others have published.
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

// admit makes sure there is room for one more flow. The limits hold exactly for
// one handle; several can pass them by a batch each, which the reserve covers.
func (h *Handle) admit(a *arena, proto uint8, now Time) Status {
	if h.othersStale {
		h.recount()
	}
	if initial(proto) == SynSeen && h.halfOpenFlows() >= h.t.halfOpen && !h.shedHalfOpen(a, now) {
		return HalfOpenLimit
	}
	if h.live(family(a.v6), None) < int32(a.flows) || h.shed(a, now) {
		return Created
	}
	return TableFull
}

func (h *Handle) halfOpenFlows() int32 {
	return h.live(0, SynSeen) + h.live(0, SynRecv) + h.live(1, SynSeen) + h.live(1, SynRecv)
}

// giveUp ends a flow that is to be shed, if its meta is still m, and counts it.
func (h *Handle) giveUp(a *arena, i uint32, m meta, kind Shed) bool {
	if !h.kill(a, i, m) {
		return false
	}
	h.p.shed[kind].Add(1)
	return true
}

// victim is the flow that gives way first, of those that were weighed: its record, and
// its meta as judged. If there was none, its kind is shedNever.
type victim struct {
	record uint32
	meta   meta
	kind   Shed
}

// weigh replaces the victim by a flow that gives way before it: by kind, of idle UDP by how little
// it was used, then by age.
func (v *victim) weigh(i uint32, m meta, kind Shed, now ticks) bool {
	if kind == shedNever || kind > v.kind {
		return false
	}
	if kind == v.kind {
		used, least := m.usedSeconds(), v.meta.usedSeconds()
		if kind == ShedIdle && used != least {
			if used > least {
				return false
			}
		} else if now.since(m.seen()) <= now.since(v.meta.seen()) {
			return false
		}
	}
	*v = victim{i, m, kind}
	return true
}

// makeRoom ends a flow for a client key whose chain has no empty slot. Chance fills a chain now and
// then (bucketLoad), and a client key, unlike a source port, cannot be replaced by another. It ends
// the flow of the chain that gives way first, as in a full table, however young its handshake is.
// It returns false if none gives way, also if a slot is just being released. If it returns true the
// caller tries again, which fails only if another handle claimed the slot, or if the flow changed
// since it was judged. So each further round means progress of another thread. A chain cannot be
// targeted without the hash key.
func (h *Handle) makeRoom(a *arena, hash uint64, now ticks) bool {
	v := victim{kind: shedNever}
	home := a.home(hash)
	for b := range chainBuckets {
		slots := &a.buckets[home+uint64(b)].slots
		for n := range slots {
			slot := slots[n].Load()
			if slot == 0 {
				return true // another handle released it
			}
			if m := a.flow(slotIndex(slot)).load(); m.live() {
				v.weigh(slotIndex(slot), m, h.t.shedOf(m, now), now)
			}
		}
	}
	if v.kind == shedNever {
		return false
	}
	h.giveUp(a, v.record, v.meta, v.kind)
	return true
}
