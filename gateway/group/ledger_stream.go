package group

import "sluice.dev/sluice/nat/header"

// Connected is called when a member has accepted a new stream: it now considers itself out of step.
// Before, the caller must have passed to TakeBack the records of earlier incarnations that the
// member has.
func (l *Ledger) Connected(m Member) {
	l.Lost(m)
	p := &l.peers[m]
	p.view, p.reached = Sending, true
	for i := range l.slots {
		n := &l.slots[i]
		n.sent.remove(m)
		n.acked.remove(m)
		l.setRefused(n, m, false)
	}
	for _, h := range l.held {
		h.sent.remove(m)
	}
	l.updateComplete()
}

// updateComplete sets complete once all members were reached.
func (l *Ledger) updateComplete() {
	reached := Members(0)
	for i := range l.peers {
		if l.peers[i].reached {
			reached.add(Member(i))
		}
	}
	l.complete = l.complete || reached&l.members == l.members
}

// Complete reports whether the owner knows all flows with its source addresses that members have.
func (l *Ledger) Complete() bool { return l.complete }

// View returns the state of the stream to a member.
func (l *Ledger) View(m Member) View { return l.peers[m].view }

// OutOfStep returns the members that are not in step: their acknowledgements free no port.
func (l *Ledger) OutOfStep() Members {
	out := l.members
	for m := range Member(MaxMembers) {
		if l.peers[m].view == InStep {
			out.remove(m)
		}
	}
	return out
}

// Lag returns the number of changes that a member has not acknowledged, without changes that the
// walk over all slots will find.
func (l *Ledger) Lag(m Member) int {
	p := &l.peers[m]
	return p.changes.len() + p.unacked.len()
}

// Settled reports whether all members are in step and every message is acknowledged.
func (l *Ledger) Settled() bool {
	for m := range Member(MaxMembers) {
		p := &l.peers[m]
		due := p.unacked.len() > 0 || p.changes.len() > 0 || p.completeSent != l.complete
		if l.members.Has(m) && (p.view != InStep || due) {
			return false
		}
	}
	return true
}

// Lost ends the waiting of SYN-ACKs for a member. Its stream must be closed, and its lease must
// have run out (OwnerLease).
func (l *Ledger) Lost(m Member) {
	p := &l.peers[m]
	for slot, ok := p.changes.pop(); ok; slot, ok = p.changes.pop() {
		l.slots[slot].changed.remove(m)
	}
	*p = peer{reached: p.reached, changes: p.changes}
}

// TakeBack records that a member has the record of a flow that is in this owner's slot, or whose
// port is held. It returns false if the owner has no flow with this reply tuple: then the caller
// makes one, and calls Begin and TakeBack for its slot.
func (l *Ledger) TakeBack(m Member, slot uint32, live bool, reply header.Tuple) bool {
	if h := l.held[reply]; h != nil {
		h.by.add(m)
		return true
	}
	if live {
		l.slots[slot].mayHave.add(m)
	}
	return live
}

// Recovered adds a flow that was in the table when this process started: any member may have it.
func (l *Ledger) Recovered(slot uint32) {
	l.Begin(slot)
	l.slots[slot].mayHave = l.members
}

// RecoveredHeld adds a port that the previous process held: any member may have the flow's record.
func (l *Ledger) RecoveredHeld(slot uint32, reply header.Tuple) {
	l.hold(&held{reply: reply, slot: slot, by: l.members})
}

// Send appends up to max messages to send to a member now. read returns the present record of a
// slot, and whether the slot has a flow: Begin and End must have been called for it.
func (l *Ledger) Send(m Member, read func(slot uint32) (Record, bool), to []Message, max int) []Message {
	p := &l.peers[m]
	for ; max > 0 && p.view >= Sending && p.unacked.len() < l.window; max-- {
		msg, ok := l.message(m, read)
		if !ok {
			break
		}
		p.lastSeq++
		msg.Seq = p.lastSeq
		if p.unacked.len() == 0 {
			p.firstSeq = msg.Seq
		}
		p.unacked.push(sentMessage{msg.Kind, msg.Slot, l.generationOf(&msg)})
		to = append(to, msg)
	}
	return to
}

func (l *Ledger) generationOf(msg *Message) uint16 {
	if msg.Kind != Set && msg.Kind != Clear {
		return 0
	}
	return l.slots[msg.Slot].generation
}

// message returns the next message to a member: All, the records of all slots, then changes, and
// once no change is left AllDone and Complete. So AllDone follows the records of all flows whose
// SYN-ACK did not wait for this member.
func (l *Ledger) message(m Member, read func(slot uint32) (Record, bool)) (msg Message, ok bool) {
	p := &l.peers[m]
	if !p.allSent {
		p.allSent = true
		return Message{Kind: All}, true
	}
	for p.view == Sending && p.next < uint32(len(l.slots)) {
		slot := p.next
		p.next++
		if l.slots[slot].flow != none {
			return l.about(m, slot, read), true
		}
	}
	if slot, found := p.changes.pop(); found {
		l.slots[slot].changed.remove(m)
		return l.about(m, slot, read), true
	}
	switch {
	case p.view == Sending:
		p.view = Waited
		return Message{Kind: AllDone}, true
	case l.complete && !p.completeSent:
		p.completeSent = true
		return Message{Kind: Complete}, true
	}
	return Message{}, false
}

// about returns the message about the present state of a slot.
func (l *Ledger) about(m Member, slot uint32, read func(slot uint32) (Record, bool)) Message {
	n := &l.slots[slot]
	n.acked.remove(m)
	record, live := read(slot)
	if !live || n.flow == none {
		return Message{Kind: Clear, Slot: slot}
	}
	n.mayHave.add(m)
	n.sent.add(m)
	return Message{Kind: Set, Slot: slot, Record: record}
}

// Applied handles an acknowledgement: a member has applied all messages up to seq. It has remarks
// about some of them, in their order.
func (l *Ledger) Applied(m Member, seq uint64, remarks []Remark) {
	p := &l.peers[m]
	for p.unacked.len() > 0 && p.firstSeq <= seq {
		s, _ := p.unacked.pop()
		p.firstSeq++
		remark := Remark{}
		if len(remarks) > 0 && remarks[0].Seq == p.firstSeq-1 {
			remark, remarks = remarks[0], remarks[1:]
		}
		switch s.kind {
		case Set:
			n := &l.slots[s.slot]
			switch {
			case n.flow == none || n.generation != s.generation:
			case remark.Reason == Accepted:
				n.acked.add(m)
				if l.setRefused(n, m, false); n.flow == yielding && n.refused == 0 {
					n.flow = live // the member's own flow has ended
				}
			default:
				n.acked.remove(m)
				l.setRefused(n, m, true)
				if remark.Reason == OtherFlow {
					n.flow = yielding
				}
			}
			l.released(m, s, Unknown)
		case Clear:
			l.released(m, s, remark.Forwarded)
		case AllDone:
			p.view = InStep
			l.resynchronised(m)
		}
	}
}

// setRefused records whether a member has refused the record of a slot that was last sent to it.
func (l *Ledger) setRefused(n *slotNotes, m Member, refused bool) {
	switch {
	case refused == n.refused.Has(m):
	case refused:
		n.refused.add(m)
		l.refusals[m]++
	default:
		n.refused.remove(m)
		l.refusals[m]--
	}
}

// Refused returns the number of flows that a member in step has refused.
func (l *Ledger) Refused(m Member) int { return l.refusals[m] }

// Offers reports whether members in step have refused flows.
func (l *Ledger) Offers() bool {
	for m := range l.peers {
		if l.peers[m].view == InStep && l.refusals[m] > 0 {
			return true
		}
	}
	return false
}

// Offer makes the ledger send the record of a slot again to the members in step that have refused
// it. It returns false if there are none.
func (l *Ledger) Offer(slot uint32) (offered bool) {
	n := &l.slots[slot]
	if n.refused == 0 {
		return false
	}
	for m := range Member(MaxMembers) {
		p := &l.peers[m]
		if !n.refused.Has(m) || p.view != InStep || n.changed.Has(m) {
			continue
		}
		n.changed.add(m)
		p.changes.push(slot)
		offered = true
	}
	return offered
}

// Verdict is the decision whether the SYN-ACK of a flow may leave now.
type Verdict uint8

const (
	// Wait: a member in step has not acknowledged the record.
	Wait Verdict = iota
	// Protected: all members in step have acknowledged it, one at least.
	Protected
	// NoMember: no member is in step, so the flow is unprotected.
	NoMember
	// RefusedByMember: a member in step does not have the record, so the flow is unprotected.
	RefusedByMember
	// Yield: a member keeps its own flow of the client, so this flow must end, unless its SYN-ACK
	// has left.
	Yield
)

// Verdict returns the verdict about the flow of a slot. A SYN-ACK waits for it for at most 2 ms
// (fastpath).
func (l *Ledger) Verdict(slot uint32) Verdict {
	n, waited := &l.slots[slot], l.awaited()
	switch {
	case n.flow == yielding:
		return Yield
	case waited == 0:
		return NoMember
	case n.refused&waited != 0 && (n.acked|n.refused)&waited == waited: // else one may keep its own flow
		return RefusedByMember
	case n.acked&waited == waited:
		return Protected
	}
	return Wait
}

// awaited returns the members for whose acknowledgement a SYN-ACK waits.
func (l *Ledger) awaited() (w Members) {
	for i := range l.peers {
		if v := l.peers[i].view; v >= Waited || v == Unheard {
			w.add(Member(i))
		}
	}
	return w
}
