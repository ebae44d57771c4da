package flowtable

import "time"

// Shed is the kind of flow that is ended before its time. The order is the order of shedding under
// pressure.
type Shed uint8

const (
	ShedExpired     Shed = iota // expired; the sweep ends these
	ShedClosed                  // TCP, closed or in TIME_WAIT
	ShedUnreplied               // UDP without a reply, or without a packet of the client after it
	ShedHalfOpen                // TCP, the client has not acknowledged
	ShedUnconfirmed             // TCP, acknowledged, but the backend has not spoken since
	ShedIdle                    // UDP, replied, idle for long
	NumSheds        = iota
	shedNever       = Shed(NumSheds)
)

// String returns the name used in metrics.
func (s Shed) String() string {
	return [...]string{"expired", "closed", "unreplied", "half_open", "unconfirmed", "idle", "never"}[min(s, shedNever)]
}

// shedStates are the states of each kind's flows; expired flows may be in any state.
var shedStates = [NumSheds][]State{
	ShedClosed:      {Closed, TimeWaitClient, TimeWaitBackend},
	ShedUnreplied:   {UDPNew, UDPReplied},
	ShedHalfOpen:    {SynSeen, SynRecv},
	ShedUnconfirmed: {Unconfirmed},
	ShedIdle:        {UDPAssured},
}

// shedOf returns the kind of a live flow.
func (t *Table) shedOf(m meta, now ticks) Shed {
	if t.lifetimes.expired(m, now) {
		return ShedExpired
	}
	switch m.state() {
	case Closed, TimeWaitClient, TimeWaitBackend:
		return ShedClosed
	case UDPNew, UDPReplied:
		return ShedUnreplied
	case SynSeen, SynRecv:
		return ShedHalfOpen
	case Unconfirmed:
		if now.since(m.seen()) >= halfOpenGrace {
			return ShedUnconfirmed
		}
	case UDPAssured:
		if now.since(m.seen()) > t.udpIdle {
			return ShedIdle
		}
	}
	return shedNever
}

const (
	// huntLength bounds the records that one hunt examines: 64 cache lines at once
	// ahead of the hardware prefetcher, some microseconds. If a kind is rarer than one in
	// huntLength records, a flow of the next kind may be shed before the last ones of it.
	huntLength = 4096
	// huntRest is how long a handle waits before it hunts again for a kind it did not find.
	huntRest = int32(time.Second / tick)
	// halfOpenGrace protects young handshakes: at the half-open cap, and where source
	// ports run short, no flow younger than this is shed. A younger Unconfirmed flow is never shed:
	// its backend is still likely to send.
	halfOpenGrace = int32(500 * time.Millisecond / tick)
	// halfOpenSample is how many half-open or unconfirmed flows are compared to find an
	// old one.
	halfOpenSample = 8
)

// hunter is a handle's memory of its search for flows to shed in one arena.
type hunter struct {
	cursor  uint32
	restful [NumSheds]bool
	until   [NumSheds]ticks // do not hunt before, if restful

	// At the half-open cap: records examined without finding a flow to shed, in the tick wastedAt.
	wasted   uint32
	wastedAt ticks
}

// count books a flow in or out.
func (h *Handle) count(v6 bool, s State, by int32) {
	h.unpublished = true
	c := &h.p.live[family(v6)]
	c[s].Store(c[s].Load() + by) // one writer
	c[None].Store(c[None].Load() + by)
}

// moved books a change of a live flow.
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
}

// live returns how many flows there are in a state (None: in all). It includes this handle's
// changes up to now, and the others' up to the first Create in the batch.
func (h *Handle) live(f int, s State) int32 { return h.others[f][s] + h.p.live[f][s].Load() }

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
func (h *Handle) admit(a *arena, proto uint8, now ticks) Status {
	if h.othersStale {
		h.recount()
	}
	if initial(proto) == SynSeen && h.halfOpenFlows() >= h.t.halfOpen && !h.shedHalfOpen(a, now) {
		return HalfOpenLimit
	}
	f := family(a.v6)
	if h.live(f, None) < int32(a.flows) {
		return Created
	}
	for kind := ShedExpired; kind < NumSheds; kind++ {
		if h.shed(a, kind, now) {
			return Created
		}
	}
	return TableFull
}

func (h *Handle) halfOpenFlows() int32 {
	return h.live(0, SynSeen) + h.live(0, SynRecv) + h.live(1, SynSeen) + h.live(1, SynRecv)
}

// shed ends one flow of a kind, or an expired one it comes across. Of unconfirmed flows,
// which may be open connections, it is the oldest of a few.
func (h *Handle) shed(a *arena, kind Shed, now ticks) bool {
	f := family(a.v6)
	u := &h.hunt[f]
	if kind != ShedExpired {
		n := int32(0)
		for _, s := range shedStates[kind] {
			n += h.live(f, s)
		}
		if n <= 0 {
			return false
		}
	}
	if u.restful[kind] && now.since(u.until[kind]) < 0 {
		return false
	}
	var oldest uint32
	var found meta
	sample := halfOpenSample
	for left := min(huntLength, a.records); left > 0 && sample > 0; left-- {
		i := u.step(a)
		m := a.flow(i).load()
		if !m.live() {
			continue
		}
		switch k := h.t.shedOf(m, now); {
		case k == ShedExpired || k == kind && kind != ShedUnconfirmed:
			if h.giveUp(a, i, m, k) {
				u.restful[kind] = false
				return true
			}
		case k == kind:
			sample--
			if oldest == 0 || now.since(m.seen()) > now.since(found.seen()) {
				oldest, found = i, m
			}
		}
	}
	u.restful[kind], u.until[kind] = oldest == 0, now+ticks(huntRest)
	return oldest != 0 && h.giveUp(a, oldest, found, kind)
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

// weigh replaces the victim by a flow that gives way before it: by kind, then by age.
func (v *victim) weigh(i uint32, m meta, kind Shed, now ticks) bool {
	if kind > v.kind || kind == shedNever || kind == v.kind && now.since(m.seen()) <= now.since(v.meta.seen()) {
		return false
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

// step moves the cursor over the records in use, around and around.
func (u *hunter) step(a *arena) uint32 {
	if u.cursor++; u.cursor >= a.fresh.Load() {
		u.cursor = 1
	}
	return u.cursor
}

// shedHalfOpen makes room under the half-open cap: of a few half-open flows it ends the
// oldest, unless all are young.
func (h *Handle) shedHalfOpen(a *arena, now ticks) bool {
	if h.shedOldest(a, now) {
		return true
	}
	other := h.arena(!a.v6)
	return other.flows != 0 && h.shedOldest(other, now)
}

// shedOldest searches one arena. Searches that find no flow to shed examine at most huntLength
// records in a tick together, so a flood of refused SYNs costs little. A pause of huntRest would
// refuse SYNs that come meanwhile.
func (h *Handle) shedOldest(a *arena, now ticks) bool {
	f := family(a.v6)
	if h.live(f, SynSeen)+h.live(f, SynRecv) <= 0 {
		return false
	}
	u := &h.hunt[f]
	if u.wastedAt != now {
		u.wasted, u.wastedAt = 0, now
	}
	budget := min(huntLength-u.wasted, a.records)
	var oldest uint32
	var found meta
	left := budget
	for sample := halfOpenSample; left > 0 && sample > 0; left-- {
		i := u.step(a)
		m := a.flow(i).load()
		if !m.live() || !m.state().HalfOpen() {
			continue
		}
		sample--
		if oldest == 0 || now.since(m.seen()) > now.since(found.seen()) {
			oldest, found = i, m
		}
	}
	if oldest == 0 || now.since(found.seen()) < halfOpenGrace || !h.giveUp(a, oldest, found, ShedHalfOpen) {
		u.wasted += budget - left
		return false
	}
	return true
}
