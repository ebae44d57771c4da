package group

import (
	"slices"

	"sluice.dev/sluice/nat/header"
)

// Held reports whether the port of a reply tuple is held: no new flow may get the tuple.
func (l *Ledger) Held(reply header.Tuple) bool { return l.held[reply] != nil }

// EachHeld calls do with the slot and the reply tuple of each held port, in any order.
func (l *Ledger) EachHeld(do func(slot uint32, reply header.Tuple)) {
	for reply, h := range l.held {
		do(h.slot, reply)
	}
}

// HeldPorts returns the number of held ports.
func (l *Ledger) HeldPorts() int { return len(l.held) }

func (l *Ledger) hold(h *held) {
	if h.by == 0 {
		l.freed(h.slot, 0)
		return
	}
	l.held[h.reply] = h
	l.heldSlots[h.slot] = append(l.heldSlots[h.slot], h)
}

// released handles the acknowledgement of a message about a slot. The message was sent after the
// end of a held flow if it has a later generation of the slot, or is a Clear of the same
// generation. forwarded is the Remark.Forwarded of a Clear, or Unknown.
func (l *Ledger) released(m Member, s sentMessage, forwarded int64) {
	for _, h := range slices.Clone(l.heldSlots[s.slot]) { // free removes from it
		after := int16(s.generation-h.generation) > 0 || s.generation == h.generation && s.kind == Clear
		if !after {
			continue
		}
		h.sent.remove(m)
		if l.peers[m].view == InStep {
			l.free(h, m, forwarded)
		}
	}
}

// resynchronised handles the acknowledgement of AllDone: the member has removed all records that
// were not sent to it on this stream.
func (l *Ledger) resynchronised(m Member) {
	for _, h := range l.held {
		if !h.sent.Has(m) {
			l.free(h, m, Unknown)
		}
	}
}

// free is called when a member does not have the record of an ended flow. When no member has it any
// more, the port is free.
func (l *Ledger) free(h *held, m Member, forwarded int64) {
	if h.by.Has(m) {
		h.forwarded = max(h.forwarded, forwarded)
	}
	h.by.remove(m)
	if h.by != 0 {
		return
	}
	delete(l.held, h.reply)
	others := slices.DeleteFunc(l.heldSlots[h.slot], func(o *held) bool { return o == h })
	if l.heldSlots[h.slot] = others; len(others) == 0 {
		delete(l.heldSlots, h.slot)
	}
	l.freed(h.slot, h.forwarded)
}

// Added adds a member that joins the group and has no record of this owner.
func (l *Ledger) Added(m Member) { l.members.add(m) }

// Removed removes a member from the group for good: no port is held for it, and its number may be
// given to another member. Its stream must be closed.
func (l *Ledger) Removed(m Member) {
	l.Lost(m)
	l.peers[m] = peer{}
	l.members.remove(m)
	for _, h := range l.held {
		l.free(h, m, Unknown)
	}
	for i := range l.slots {
		l.slots[i].mayHave.remove(m)
		l.setRefused(&l.slots[i], m, false)
	}
	l.updateComplete()
}
