package flowtable

import (
	"sync/atomic"

	"sluice.dev/sluice/flowtable/conn"
)

// The gateways of a group copy flows to each other (docs/adr/0037). A table with Config.Group has a
// mark, a word of 4 bytes, for each record, and its handles have rings of changes:
//
//	 0  markTracked       a flow of this gateway, with a source address of the group (NewFlow.Tracked)
//	 1  markReported      the group's ledger has the flow: Report was called
//	 2  markLeft          the backend's answer has left to the client (AnswerLeaves)
//	 3  markGivenUp       the flow ends before its answer leaves (GiveUp)
//	 4  markAnswerMask    8 bits: the decision about the answer (Decide)
//	12  markProven        of a copy: its owner knows that the client has proven the handshake
//	13  markReset         of a copy: its owner knows that an end has reset the connection
//	14  markLost          of a copy: its backend has lost the connection (EndLost)
//	15  markLostReported  of a copy: CopyState has returned markLost
//	16  markOwnerShift    8 bits: the flow is a copy of a flow of this owner, 1 to MaxOwners
//	24  markEarlier       of a copy: it was made before this gateway was in step, so its flow may be old
//	25  markMissed        the record has changed, and a ring of changes had no room; it stays set when
//	                      another flow gets the record
//	26  markEndsShift     3 bits, of a copy: the ends of the connection in its owner's last record
//	                      (conn.Ends)
//
// # Copies
//
// A copy has the source port that its owner chose. It does not expire and is not shed, unless the
// copies of its owner follow the clock (FollowClock). If its owner is away (OwnerAway), its client
// may open another flow when the copy would have expired. Each owner's copies take a bounded share
// of the table.
//
// # Held ports
//
// If a reported flow ends, another gateway may have a copy, so no other flow may get its source
// port yet: the flow leaves the index on the client's side only, and its record stays
// (conn.Meta.Held) until Release. So every Create finds the port in use, the record is not reused,
// and both outlive the process. The handle that ends a tracked flow swaps its meta to held first,
// and then loads markReported; Report sets markReported first, and then loads meta. So at least one
// of them sees the other's store, and the swap from held to dead, which succeeds for one handle
// only, frees the port.
const (
	markTracked = 1 << iota
	markReported
	markLeft
	markGivenUp

	markAnswerShift  = 4
	markAnswerMask   = 0xff << markAnswerShift
	markProven       = 1 << 12
	markReset        = 1 << 13
	markLost         = 1 << 14
	markLostReported = 1 << 15
	markOwnerShift   = 16
	markEarlier      = 1 << 24
	markMissed       = 1 << 25
	markEndsShift    = 26
	markEndsMask     = (1<<conn.EndsBits - 1) << markEndsShift
)

// MaxOwners is the maximum number of other gateways of whose flows a table has copies.
const MaxOwners = 8

// group is the part of a table for copies; marks is nil without Config.Group.
type group struct {
	marks    []atomic.Uint32
	share    [2]int32 // the maximum number of copies of an owner, by family
	copies   [MaxOwners + 1][2]atomic.Int32
	halfOpen atomic.Int32 // copies of half-open flows: they do not count for the cap
	open     atomic.Int32 // copies of connections (State.Connection)
	clock    [MaxOwners + 1]atomic.Bool
	away     [MaxOwners + 1]atomic.Bool
	held     [2]atomic.Int32
	// outSince is the tick of OutOfStepSince; 0: all gateways are in step.
	outSince atomic.Uint32
	missed   atomic.Bool // some record has markMissed

	// Only the caller of Changed uses these: the next mark to check for markMissed, and how many
	// are left.
	next, unsearched uint32
}

// copyShare: the copies of an owner's flows take at most 1/copyShare of the flows of a family.
const copyShare = 2

func (t *Table) makeGroup() {
	t.group.marks = make([]atomic.Uint32, t.Slots())
	for f := range t.arenas {
		t.group.share[f] = int32(t.arenas[f].flows / copyShare)
	}
}

// Grouped reports whether the table belongs to a gateway of a group (Config.Group).
func (t *Table) Grouped() bool { return t.group.marks != nil }

// Slots returns the number of slots: every result of Slot is below it.
func (t *Table) Slots() uint32 { return t.arenas[0].records + 1 + t.arenas[1].records + 1 }

// Slot returns the number of a flow's record. Numbers are unique across both families.
func (t *Table) Slot(r Ref) uint32 {
	if r&refV6 == 0 {
		return uint32(r)
	}
	return t.arenas[0].records + 1 + r.index()
}

// AtSlot returns the record with a number, which must be below Slots, or 0 if the number is never
// used.
func (t *Table) AtSlot(slot uint32) Ref {
	if first := t.arenas[0].records + 1; slot >= first {
		if slot == first {
			return 0
		}
		return Ref(slot-first) | refV6
	}
	return Ref(slot)
}

// WasUsed reports whether a record was ever used.
func (t *Table) WasUsed(r Ref) bool { return r.index() < t.arenas[family(r&refV6 != 0)].fresh.Load() }

func (t *Table) mark(a *arena, i uint32) *atomic.Uint32 {
	if a.v6 {
		i += t.arenas[0].records + 1
	}
	return &t.group.marks[i]
}

// startMark sets the mark of a record that gets a new flow.
func (t *Table) startMark(a *arena, i, mark uint32) {
	w := t.mark(a, i)
	w.Store(w.Load()&markMissed | mark)
}

func (t *Table) markOf(r Ref) *atomic.Uint32 { return &t.group.marks[t.Slot(r)] }

func ownerOf(mark uint32) int { return int(mark >> markOwnerShift & 0xff) }

// lasts reports whether a flow never expires: it is a copy, and the copies of its owner do not
// follow the clock.
func (t *Table) lasts(a *arena, i uint32) bool {
	if t.group.marks == nil {
		return false
	}
	owner := ownerOf(t.mark(a, i).Load())
	return owner != 0 && !t.group.clock[owner].Load()
}

// expired reports whether a live flow has expired.
func (t *Table) expired(a *arena, i uint32, m conn.Meta, now Ticks) bool {
	return t.lifetimes.Expired(m, now) && !t.lasts(a, i)
}

// FollowClock sets whether the copies of an owner's flows expire, and may be shed, like other
// flows.
func (t *Table) FollowClock(owner int, follow bool) { t.group.clock[owner].Store(follow) }

// OwnerAway sets whether an owner is out of step for so long that the copies of its flows may be
// outdated.
func (t *Table) OwnerAway(owner int, away bool) { t.group.away[owner].Store(away) }

// OutOfStepSince sets the time since which another gateway is out of step; 0: all gateways are in
// step. Reported flows that were made before may have copies there, so their ports would stay held:
// no new flow ends them for their ports.
func (t *Table) OutOfStepSince(at Time) { t.group.outSince.Store(uint32(at.Ticks())) }

// outOfStep reports whether a gateway that is out of step may have a copy of a live flow. The
// answer is approximate: a flow may have been reported before its handshake was proven.
func (t *Table) outOfStep(a *arena, i uint32, m conn.Meta) bool {
	if t.group.marks == nil {
		return false
	}
	since, made := Ticks(t.group.outSince.Load()), m.Seen()
	if since == 0 || t.mark(a, i).Load()&markReported == 0 {
		return false
	}
	if !m.KeepsISN() {
		made = Ticks(a.flow(i).word())
	}
	return made.Since(since) <= 0
}

// Outdated reports whether a flow is a copy that would have expired, and stays only because its
// owner is away: another gateway may have ended the flow meanwhile. Its client's next SYN or
// datagram makes another flow.
func (h *Handle) Outdated(r Ref, now Time) bool {
	owner := h.OwnerOf(r)
	return owner != 0 && h.t.group.away[owner].Load() && h.t.lifetimes.Expired(h.Flow(r).load(), now.Ticks())
}

// CopiesOf returns the number of copies of an owner's flows.
func (t *Table) CopiesOf(owner int) int {
	return int(t.group.copies[owner][0].Load() + t.group.copies[owner][1].Load())
}

// OpenCopies returns the number of copies of TCP and SCTP connections that are not closed on both
// sides.
func (t *Table) OpenCopies() int { return int(t.group.open.Load()) }

// HeldPorts returns the number of ended flows that hold their source port.
func (t *Table) HeldPorts() int { return int(t.group.held[0].Load() + t.group.held[1].Load()) }

// OwnerOf returns the owner of a copy, or 0 for a flow of this gateway.
func (h *Handle) OwnerOf(r Ref) int {
	if h.t.group.marks == nil {
		return 0
	}
	return ownerOf(h.t.markOf(r).Load())
}

// Tracked reports whether a flow of this gateway is copied to the group.
func (h *Handle) Tracked(r Ref) bool {
	return h.t.group.marks != nil && h.t.markOf(r).Load()&markTracked != 0
}

// Answer returns the decision about the backend's answer (Decide), and whether the answer has left.
func (h *Handle) Answer(r Ref) (decision uint8, left bool) {
	m := h.t.markOf(r).Load()
	return uint8(m >> markAnswerShift), m&markLeft != 0
}

// Decide stores the decision about the backend's answer to the client, for Answer. The callers of
// both define the values; 0 is no decision.
func (h *Handle) Decide(r Ref, decision uint8) {
	for w := h.t.markOf(r); ; {
		m := w.Load()
		if w.CompareAndSwap(m, m&^markAnswerMask|uint32(decision)<<markAnswerShift) {
			return
		}
	}
}

// AnswerLeaves must be called before the backend's answer leaves to the client. It returns false if
// the flow was given up: then the answer must not leave.
func (h *Handle) AnswerLeaves(r Ref) bool { return h.set(r, markLeft, markGivenUp) }

// GiveUp ends a flow of this gateway whose answer has not left, because another gateway has the
// client's flow. It returns false if the answer has left.
func (h *Handle) GiveUp(r Ref) bool {
	if !h.set(r, markGivenUp, markLeft) {
		return false
	}
	h.DeleteFor(r, EndMoved)
	return true
}

// set sets a bit of a mark unless another bit is set.
func (h *Handle) set(r Ref, bit, unless uint32) bool {
	for w := h.t.markOf(r); ; {
		m := w.Load()
		if m&unless != 0 {
			return false
		}
		if w.CompareAndSwap(m, m|bit) {
			return true
		}
	}
}

// Track makes a live flow of an earlier process tracked. If the backend has answered, the answer
// counts as left and the flow as reported, and Track returns true. No packet may pass meanwhile.
func (h *Handle) Track(r Ref) (reported bool) {
	mark := uint32(markTracked)
	if reported = Answered(h.Flow(r).State()); reported {
		mark |= markLeft | markReported
	}
	h.t.markOf(r).Or(mark)
	return reported
}

// Report must be called before a tracked flow is added to the group's ledger. It returns false if
// the flow has ended: then it must not be added.
func (h *Handle) Report(r Ref) bool {
	w := h.t.markOf(r)
	w.Or(markReported)
	if h.Flow(r).load().Live() {
		return true
	}
	// The handle that ends the flow may have seen markReported, and not have released the record.
	h.Release(r, 0)
	return false
}

// Reported reports whether the group's ledger has the flow.
func (h *Handle) Reported(r Ref) bool { return h.t.markOf(r).Load()&markReported != 0 }

// Held reports whether a record has an ended flow that holds its port.
func (h *Handle) Held(r Ref) bool { return h.Flow(r).load().Held() }

// hold is called after a tracked flow's meta was swapped to held and its client-side key was
// removed.
func (h *Handle) hold(a *arena, i uint32) {
	if h.t.mark(a, i).Load()&markReported != 0 {
		h.change(a.ref(i))
		return
	}
	h.Release(a.ref(i), 0)
}

// Release frees the port and the record of an ended flow, if it holds them. forwarded is the time,
// or a later one, at which another gateway may last have forwarded a datagram by its copy of a UDP
// flow; 0: none has. This gateway may not know of that datagram, so the port rests until the
// backend no longer answers it.
func (h *Handle) Release(r Ref, forwarded Time) {
	a, i := h.arena(r&refV6 != 0), r.index()
	m := a.flow(i).load()
	if !m.Held() {
		return
	}
	k := a.keyOf(i, ReplySide)
	hash := h.secret.hash(a.v6, &k)
	if forwarded != 0 && m.State().UDP() {
		h.t.restingOf(k.proto).begin(hash, min(forwarded, h.now).Ticks()+Ticks(h.t.unanswered))
	}
	if !a.flow(i).swap(m, m.Dead()) {
		return
	}
	h.t.group.held[family(a.v6)].Add(-1)
	a.remove(hash, slotOf(i, ReplySide))
	h.retire(r)
}

// Live reports whether a record has a flow.
func (h *Handle) Live(r Ref) bool { return h.Flow(r).load().Live() }
