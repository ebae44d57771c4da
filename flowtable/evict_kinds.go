package flowtable

import (
	"time"

	"sluice.dev/sluice/flowtable/conn"
)

// Shed is a kind of flow that may be ended before its timeout. The order of the constants is the
// order of shedding under pressure.
type Shed uint8

const (
	ShedExpired     Shed = iota // expired; the sweep ends these
	ShedClosed                  // TCP, closed or in TIME_WAIT
	ShedReset                   // TCP, open or closing, and an RST was the last packet, or both sides sent a FIN
	ShedOneSided                // TCP with direct return, past the SYN: the node's answers are not seen
	ShedUnreplied               // UDP without a reply, or without a packet of the client after it
	ShedHalfOpen                // TCP, the client has not acknowledged
	ShedUnconfirmed             // SCTP, acknowledged, but the backend has sent nothing since
	ShedIdle                    // UDP, replied, idle for longer than its protection
	NumSheds        = iota
	shedNever       = Shed(NumSheds)
)

// String returns the name used in metrics.
func (s Shed) String() string {
	return [...]string{
		"expired", "closed", "reset", "one_sided", "unreplied", "half_open", "unconfirmed", "idle", "never",
	}[min(s, shedNever)]
}

const (
	// oneSidedIdle is the idle time from which a one-sided flow may be shed that had packets for
	// more than a second. Last seen may be a second earlier than the last packet, so a flow with a
	// packet every half second is never shed.
	oneSidedIdle = conn.RefreshTicks + int32(500*time.Millisecond/conn.Tick)
	// halfOpenGrace is the age below which a handshake keeps its source port when ports run short.
	// An Unconfirmed flow that is younger is never shed: its backend is likely to send soon.
	halfOpenGrace = int32(500 * time.Millisecond / conn.Tick)
	// capGrace is the age below which a handshake is not shed at the half-open cap. It is shorter
	// than halfOpenGrace, because there the oldest flow of all is shed: if the cap holds the flood
	// of a longer time than a handshake takes, the cap ends no honest handshake. The shorter this
	// grace is, the greater the flood that the cap can absorb.
	capGrace = int32(200 * time.Millisecond / conn.Tick)
)

// idleProtection is how long an assured UDP flow is protected for each second in which it had
// packets. A flow of two packets is protected for seconds, a flow in steady use for UDPIdle.
const idleProtection = int32(4 * time.Second / conn.Tick)

// protection returns how long an assured UDP flow may be idle before it may be shed, in ticks.
func (t *Table) protection(m conn.Meta) int32 { return min(idleProtection*m.UsedSeconds(), t.udpIdle) }

// shedOf returns the kind as which a live flow may be shed now, or shedNever.
func (t *Table) shedOf(m conn.Meta, now Ticks) Shed {
	if t.lifetimes.Expired(m, now) {
		return ShedExpired
	}
	switch kind := ringOf(m); kind {
	case ShedReset:
		if now.Since(m.Seen()) >= conn.ResetGrace {
			return ShedReset
		}
		return shedNever
	case ShedOneSided:
		if m&conn.MetaRefreshed == 0 || now.Since(m.Seen()) >= oneSidedIdle {
			return ShedOneSided
		}
		return shedNever
	case shedNever:
	default:
		return kind
	}
	switch m.State() {
	case Established, FinClient, FinBackend:
		// Idle for a second, with two FINs: the connection is more likely over than not. Only
		// probes find such a flow: packets that refresh it would make it a young entry at the head
		// of a ring.
		if m.BothFins() && now.Since(m.Seen()) >= conn.ResetGrace {
			return ShedReset
		}
	case Unconfirmed:
		if now.Since(m.Seen()) >= halfOpenGrace {
			return ShedUnconfirmed
		}
	case UDPAssured:
		if now.Since(m.Seen()) > t.protection(m) {
			return ShedIdle
		}
	}
	return shedNever
}

// mayShed is shedOf for a record: copies that have no clock are not shed.
func (t *Table) mayShed(a *arena, i uint32, m conn.Meta, now Ticks) Shed {
	if t.lasts(a, i) {
		return shedNever
	}
	return t.shedOf(m, now)
}

// shedStates has the states of each kind whose number of flows is known from the counters.
var shedStates = [NumSheds][]State{
	ShedClosed:      {Closed, TimeWaitClient, TimeWaitBackend},
	ShedOneSided:    {Unconfirmed},
	ShedUnreplied:   {UDPNew, UDPReplied},
	ShedHalfOpen:    {SynSeen, SynRecv},
	ShedUnconfirmed: {Unconfirmed},
	ShedIdle:        {UDPAssured},
}

// admit makes room for one more flow, in its first state, if necessary. One handle observes the
// limits exactly; several can exceed them by a batch each, which the reserve covers. A flow that
// begins in the middle of a connection (NewFlow.Midway) may be forged, and the connection does not
// need it: it ends no handshake and no UDP flow.
func (h *Handle) admit(a *arena, first State, now Time) Status {
	if h.othersStale {
		h.recount()
	}
	last := ShedIdle
	if first == Unconfirmed {
		last = ShedOneSided
	}
	if first == SynSeen && h.halfOpenFlows() >= h.t.halfOpen && !h.shedHalfOpen(a, now) {
		return HalfOpenLimit
	}
	return h.room(a, last, now)
}

// room makes room for one more flow in an arena if necessary, by flows of the kinds up to last.
func (h *Handle) room(a *arena, last Shed, now Time) Status {
	if h.othersStale {
		h.recount()
	}
	if h.live(family(a.v6), None)+h.t.heldBeyond(a) < int32(a.flows) || h.shed(a, last, now) {
		return Created
	}
	return TableFull
}

func (h *Handle) halfOpenFlows() int32 {
	n := h.live(0, SynSeen) + h.live(0, SynRecv) + h.live(1, SynSeen) + h.live(1, SynRecv)
	if h.t.group.marks != nil {
		n -= h.t.group.halfOpen.Load()
	}
	return n
}

// shedFlow ends a flow if its meta is still m, and counts it as shed.
func (h *Handle) shedFlow(a *arena, i uint32, m conn.Meta, kind Shed) bool {
	if h.t.lasts(a, i) || !h.kill(a, i, m, EndTimeout+End(kind)) {
		return false
	}
	h.p.shed[kind].Add(1)
	return true
}

// victim is the first flow to shed among the flows that were weighed: its record, and its meta as
// weighed. If there was none, its kind is shedNever.
type victim struct {
	record uint32
	meta   conn.Meta
	kind   Shed
}

// weigh replaces the victim by another flow if that must be shed first, and reports whether it did:
// by kind, among idle UDP flows by least use, then by age.
func (v *victim) weigh(i uint32, m conn.Meta, kind Shed, now Ticks) bool {
	if kind == shedNever || kind > v.kind {
		return false
	}
	if kind == v.kind {
		used, least := m.UsedSeconds(), v.meta.UsedSeconds()
		if kind == ShedIdle && used != least {
			if used > least {
				return false
			}
		} else if now.Since(m.Seen()) <= now.Since(v.meta.Seen()) {
			return false
		}
	}
	*v = victim{i, m, kind}
	return true
}

// makeRoom ends a flow for a client key whose chain has no empty slot. A chain is full by chance
// now and then (bucketLoad), and a client key, unlike a source port, cannot be replaced by another.
// makeRoom ends the first flow of the chain in the order of shedding, even a young handshake. It
// returns false if no flow of the chain may be shed, even if a slot is about to be released. If it
// returns true, the caller tries again; that fails only if another handle claimed the slot, or if
// the flow changed since it was weighed. So each further round means progress of another thread. An
// attacker without the hash key cannot target a chain.
func (h *Handle) makeRoom(a *arena, hash uint64, now Ticks) bool {
	v := victim{kind: shedNever}
	home := a.home(hash)
	for b := range chainBuckets {
		slots := &a.buckets[home+uint64(b)].slots
		for n := range slots {
			slot := slots[n].Load()
			if slot == 0 {
				return true // another handle released it
			}
			if m := a.flow(slotIndex(slot)).load(); m.Live() {
				v.weigh(slotIndex(slot), m, h.t.mayShed(a, slotIndex(slot), m, now), now)
			}
		}
	}
	if v.kind == shedNever {
		return false
	}
	h.shedFlow(a, v.record, v.meta, v.kind)
	return true
}
