package model

import "sluice.dev/sluice/gateway/group"

// newFlow: a client's SYN makes a flow at a free port of an open address. A held port is not free
// (holdPort).
func (m *portModel) newFlow(s *portState, to *steps[portState]) {
	if !s.owner.alive {
		return
	}
	for port := range m.portCount() {
		if s.owner.addresses[m.address(port)] != group.Open || s.owner.held[port].by != 0 || s.owner.slotOf(port) >= 0 {
			continue
		}
		client := s.newClient()
		for i := range m.slots {
			if s.owner.slots[i].client != 0 {
				continue
			}
			t := *s
			t.owner.slots[i] = slot{record: record{client, uint8(port)}}
			t.backend[port] = connection{client: client}
			m.add(to, t, "client # gets port # and slot #", client, uint8(port), uint8(i))
		}
	}
}

// synAckLeaves: the SYN-ACK leaves when every member that is waited for has acknowledged the
// record, one at least (waitForCopy). After 2 ms it leaves all the same, and the flow is
// unprotected.
func (m *portModel) synAckLeaves(s *portState, to *steps[portState]) {
	for i := range m.slots {
		f := &s.owner.slots[i]
		if !s.owner.alive || f.client == 0 || f.left {
			continue
		}
		t := *s
		t.owner.slots[i].left = true
		m.add(to, t, "the SYN-ACK to client # leaves after 2 ms, unprotected", f.client)

		wanted := m.waitedFor(s)
		if wanted == 0 || f.acked&wanted != wanted && m.follows(waitForCopy) {
			continue
		}
		if c := &t.backend[f.port]; c.client == f.client {
			c.standing = protected
		}
		m.add(to, t, "the SYN-ACK to client # leaves, protected", f.client)
	}
}

// waitedFor returns the members whose acknowledgement a SYN-ACK waits for: those to which AllDone
// was sent (waitForJoiner).
func (m *portModel) waitedFor(s *portState) (wanted set) {
	for i := range m.members {
		if v := s.members[i].view; v == inStep || v == unheard || v == waited && m.follows(waitForJoiner) {
			wanted.add(i)
		}
	}
	return wanted
}

// flowEnds: the owner sees that a connection is over, or it ends a record whose connection a member
// saw end. The slot is free at once. The port is held by the members that may have the record
// (holdPort, holdForLost).
func (m *portModel) flowEnds(s *portState, to *steps[portState]) {
	for i := range m.slots {
		f := s.owner.slots[i]
		if !s.owner.alive || f.client == 0 {
			continue
		}
		t := *s
		t.owner.slots[i] = slot{}
		if t.backend[f.port].client == f.client {
			t.backend[f.port] = connection{}
		}
		by := f.sent
		if !m.follows(holdForLost) {
			by &= m.reachable(s)
		}
		if by != 0 && m.follows(holdPort) {
			t.owner.held[f.port] = held{by, uint8(i)}
		}
		m.add(to, t, "the flow of client # at port # ends", f.client, f.port)
	}
}

// reachable returns the members that the owner does not take for out of step.
func (m *portModel) reachable(s *portState) (r set) {
	for i := range m.members {
		if s.members[i].view != out {
			r.add(i)
		}
	}
	return r
}

// ownerSends: the owner compares its slots with its notes about the member, and sends one
// difference as it is now. Without a difference it sends AllDone, and that it is complete. So an
// AllDone follows the records of all flows whose SYN-ACK left while the member was not waited for.
func (m *portModel) ownerSends(s *portState, i int, to *steps[portState]) {
	p := &s.members[i]
	if !s.owner.alive || p.view < sending || !p.stream || int(p.length) >= m.queue {
		return
	}
	same := true
	for k := range m.slots {
		now := s.owner.slots[k].record
		if p.told[k] == now {
			continue
		}
		same = false
		t := *s
		q := &t.members[i]
		q.told[k] = now
		if now.client == 0 {
			q.send(message{kind: clearRecord, slot: uint8(k)})
			m.add(to, t, "the owner sends member # that slot # is clear", uint8(i), uint8(k))
			continue
		}
		t.owner.slots[k].sent.add(i)
		q.send(message{kind: setRecord, slot: uint8(k), record: now})
		m.add(to, t, "the owner sends member # client # in slot #", uint8(i), now.client, uint8(k))
	}
	if !same {
		return
	}
	t := *s
	q := &t.members[i]
	switch {
	case p.view == sending:
		q.view = waited
		q.send(message{kind: allDone})
		m.add(to, t, "the owner sends member # AllDone", uint8(i))
	case !p.said && (s.owner.complete || !m.follows(sayComplete)):
		q.said = true
		q.send(message{kind: completeTold})
		m.add(to, t, "the owner tells member # that it is complete", uint8(i))
	}
}

func (p *member) send(msg message) {
	p.queue[p.length] = msg
	p.length++
}

// ownerHears: the owner gets the acknowledgement of the first message that the member has applied.
func (m *portModel) ownerHears(s *portState, i int, to *steps[portState]) {
	p := &s.members[i]
	if !s.owner.alive || p.view < sending || !p.stream || p.applied == 0 {
		return
	}
	t := *s
	q := &t.members[i]
	msg := q.queue[0]
	copy(q.queue[:], q.queue[1:])
	q.queue[maxQueue-1] = message{}
	q.length--
	q.applied--
	switch msg.kind {
	case setRecord:
		if f := &t.owner.slots[msg.slot]; f.record == msg.record && !q.awaits(msg.slot) {
			f.acked.add(i)
		}
	case allDone:
		q.view = inStep
	}
	m.release(&t, i, msg)
	m.add(to, t, "the owner hears that member # has applied its first message", uint8(i))
}

// awaits reports whether a message about the slot is not acknowledged.
func (p *member) awaits(slot uint8) bool {
	for _, msg := range p.queue[:p.length] {
		if (msg.kind == setRecord || msg.kind == clearRecord) && msg.slot == slot {
			return true
		}
	}
	return false
}

// release frees the ports of which a member has no record any more: it has acknowledged AllDone
// (allDoneFirst), and of the messages about the slot the last one, which was not the ended flow's
// record (lastMessage).
func (m *portModel) release(t *portState, i int, msg message) {
	p := &t.members[i]
	for port := range t.owner.held {
		h := &t.owner.held[port]
		about := msg.slot == h.slot && (msg.kind == setRecord || msg.kind == clearRecord)
		if p.view != inStep && m.follows(allDoneFirst) {
			about = false
		}
		if !h.by.has(i) || !about && msg.kind != allDone {
			continue
		}
		told := p.told[h.slot]
		has := p.awaits(h.slot) || told.client != 0 && int(told.port) == port
		if !m.follows(lastMessage) {
			has = msg.client != 0 && int(msg.port) == port
		}
		if !has {
			h.by.remove(i)
		}
		if h.by == 0 {
			*h = held{}
		}
	}
}

// ownerStopsWaiting: the stream is broken, or the owner has just started, and the member's lease
// has run out (waitForLease): from now on the member answers unknown segments with silence, so that
// a SYN-ACK need not wait for it.
func (m *portModel) ownerStopsWaiting(s *portState, i int, to *steps[portState]) {
	p := &s.members[i]
	if !s.owner.alive || p.view == out || p.view >= sending && p.stream || p.holdsLease() && m.follows(waitForLease) {
		return
	}
	t := *s
	t.members[i].forgetStream()
	m.add(to, t, "the owner takes member # for out of step", uint8(i))
}

// holdsLease reports whether the member is in step, or AllDone may still bring it in step: a member
// that reads an old AllDone after its lease has run out stays out of step.
func (p *member) holdsLease() bool { return p.leased || p.stream && !p.lapsed }

// forgetStream clears the owner's notes about the member, except whether its copies were taken
// back.
func (p *member) forgetStream() {
	p.view, p.told, p.said = out, [maxSlots]record{}, false
}

// ownerFails: the owner's process is killed and its memory stays (kill -9), or the memory is lost,
// too. Messages that were sent still arrive.
func (m *portModel) ownerFails(s *portState, to *steps[portState]) {
	if !s.owner.alive || !m.mayFail(s) {
		return
	}
	t := *s
	m.fail(&t)
	t.owner.alive = false
	for i := range m.members {
		t.members[i].forgetStream()
		t.members[i].reached = t.members[i].reached && t.owner.complete
	}
	killed := t
	m.keepMemory(&killed)
	m.add(to, killed, "the owner is killed, its memory stays")
	m.loseMemory(&t)
	m.add(to, t, "the owner loses its memory")
}

// keepMemory: the file of the flow table has flows and held ports (keepHeld). The notes about
// members are gone, so any of them may have any record.
func (m *portModel) keepMemory(t *portState) {
	for i := range t.owner.slots {
		if f := &t.owner.slots[i]; f.client != 0 {
			f.sent, f.acked = m.everybody(), 0
		}
	}
	for port := range t.owner.held {
		h := &t.owner.held[port]
		switch {
		case h.by == 0:
		case m.follows(keepHeld):
			*h = held{by: m.everybody(), slot: h.slot}
		default:
			*h = held{}
		}
	}
}

// loseMemory: only the state of addresses is on the disk. The address that was open is closed, and
// the spare one is open (useSpare). Copies and streams are of an earlier incarnation now.
func (m *portModel) loseMemory(t *portState) {
	t.owner.complete = false
	t.owner.slots, t.owner.held = [maxSlots]slot{}, [maxPorts]held{}
	for i := range m.members {
		p := &t.members[i]
		p.old, p.reached = p.stream, false
		for k := range p.copies {
			p.copies[k].old = p.copies[k].client != 0
		}
	}
	if m.follows(useSpare) {
		t.owner.addresses.MemoryLost()
	}
}

// ownerStarts: the process starts again, and may have a table of another size, whose slots have
// other numbers. It does not know which members are in step with its predecessor, so it waits for
// all of them until their leases must have run out (waitForLease).
func (m *portModel) ownerStarts(s *portState, to *steps[portState]) {
	if s.owner.alive {
		return
	}
	t := *s
	t.owner.alive = true
	for i := range m.members {
		t.members[i].view = unheard
	}
	m.add(to, t, "the owner starts")
	last := uint8(m.slots - 1)
	for i := range m.slots {
		t.owner.slots[i] = s.owner.slots[int(last)-i]
	}
	for port := range t.owner.held {
		if h := &t.owner.held[port]; h.by != 0 {
			h.slot = last - h.slot
		}
	}
	m.add(to, t, "the owner starts, and its slots have other numbers")
}

// useAddresses: closed addresses are used again once the owner is complete, as a spare only if no
// member can have a record of a flow there (cleanSpare).
func (m *portModel) useAddresses(t *portState) {
	if !t.owner.complete {
		return
	}
	var inUse [addresses]bool
	for a := range inUse {
		inUse[a] = m.inUse(t, a) && m.follows(cleanSpare)
	}
	t.owner.addresses.AllReached(inUse)
}

// inUse reports whether a port of an address has a flow or is held.
func (m *portModel) inUse(s *portState, address int) bool {
	for port := range m.portCount() {
		if m.address(port) == address && (s.owner.slotOf(port) >= 0 || s.owner.held[port].by != 0) {
			return true
		}
	}
	return false
}
