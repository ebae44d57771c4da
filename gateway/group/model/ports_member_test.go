package model

// memberConnects: the member answers the owner's Hello, so it takes itself for out of step, and the
// owner takes back the flows of earlier incarnations (takeBack) before it sends All. The older
// stream ends with that.
func (m *portModel) memberConnects(s *portState, i int, to *steps[portState]) {
	p := &s.members[i]
	if !s.owner.alive || !p.alive || p.view >= sending && p.stream {
		return
	}
	t := *s
	q := &t.members[i]
	q.forgetStream()
	q.breakStream()
	q.stream, q.leased, q.resets, q.view = true, false, false, sending
	for k := range t.owner.slots {
		t.owner.slots[k].acked.remove(i)
	}
	if m.follows(takeBack) {
		m.takeBack(&t, i)
	}
	q.reached = true
	all := true
	for k := range m.members {
		all = all && t.members[k].reached
	}
	t.owner.complete = t.owner.complete || all
	q.send(message{kind: allKind})
	m.add(to, t, "member # connects, the owner takes back its flows and sends All", uint8(i))
}

// takeBack makes a record of each copy of an earlier incarnation whose port has none. A port that
// is held stays held, by this member as well.
func (m *portModel) takeBack(t *portState, i int) {
	for port := range m.portCount() {
		c := t.members[i].copies[port]
		if c.client == 0 || !c.old {
			continue
		}
		if t.owner.held[port].by != 0 {
			t.owner.held[port].by.add(i)
			continue
		}
		k := t.owner.slotOf(port)
		if k < 0 {
			if k = m.freeSlot(&t.owner); k < 0 {
				panic("model: fewer slots than ports: set bounds.slots to the number of ports")
			}
			t.owner.slots[k] = slot{record: record{c.client, uint8(port)}, left: true}
		}
		t.owner.slots[k].sent.add(i)
	}
}

// breakStream discards the messages that are not applied, and the acknowledgements that are not
// heard.
func (p *member) breakStream() {
	p.stream, p.lapsed, p.old = false, false, false
	p.queue, p.length, p.applied = [maxQueue]message{}, 0, 0
}

// memberApplies: the member applies the next message of its stream. A copy is addressed by the slot
// that the owner gave it on this stream. All marks copies as stale, AllDone removes stale ones.
func (m *portModel) memberApplies(s *portState, i int, to *steps[portState]) {
	p := &s.members[i]
	if !p.alive || !p.stream || p.applied == p.length {
		return
	}
	t := *s
	q := &t.members[i]
	msg := q.queue[q.applied]
	q.applied++
	switch msg.kind {
	case allKind:
		for k := range q.copies {
			if c := &q.copies[k]; c.client != 0 {
				c.stale, c.slot = true, 0
			}
		}
		m.add(to, t, "member # applies All", uint8(i))
	case setRecord:
		q.clear(msg.slot)
		q.copies[msg.port] = copied{client: msg.client, slot: msg.slot, old: q.old}
		m.add(to, t, "member # applies client # in slot #", uint8(i), msg.client, msg.slot)
	case clearRecord:
		q.clear(msg.slot)
		m.add(to, t, "member # clears slot #", uint8(i), msg.slot)
	case allDone:
		for k := range q.copies {
			if q.copies[k].stale {
				q.copies[k] = copied{}
			}
		}
		if q.leased = !q.lapsed || !m.follows(leaseOfStream); !q.leased {
			m.add(to, t, "member # applies AllDone, and is out of step because its lease has run out", uint8(i))
			return
		}
		m.add(to, t, "member # applies AllDone and is in step", uint8(i))
	case completeTold:
		q.resets = true
		m.add(to, t, "member # hears that the owner is complete", uint8(i))
	}
}

// clear removes the copy of a slot, as the owner numbers its slots on this stream.
func (p *member) clear(slot uint8) {
	for k := range p.copies {
		if c := &p.copies[k]; c.client != 0 && c.slot == slot && !c.stale {
			*c = copied{}
		}
	}
}

// memberLeaseEnds: the member has not heard the owner answer it for the time of the lease. It
// answers unknown segments with silence, and keeps its copies (keepCopies).
func (m *portModel) memberLeaseEnds(s *portState, i int, to *steps[portState]) {
	p := &s.members[i]
	if !p.holdsLease() || s.owner.alive && p.view >= sending && p.stream {
		return
	}
	t := *s
	q := &t.members[i]
	q.leased, q.resets, q.lapsed = false, false, q.stream
	if !m.follows(keepCopies) {
		q.copies = [maxPorts]copied{}
	}
	m.add(to, t, "the lease of member # runs out", uint8(i))
}

// memberEndsFlow: while the owner is down, a member sees that a connection is over.
func (m *portModel) memberEndsFlow(s *portState, i int, to *steps[portState]) {
	if s.owner.alive || !s.members[i].alive {
		return
	}
	for port := range m.portCount() {
		c := s.members[i].copies[port].client
		if c == 0 {
			continue
		}
		t := *s
		t.members[i].copies[port] = copied{}
		if t.backend[port].client == c {
			t.backend[port] = connection{}
		}
		m.add(to, t, "member # ends the flow of client #", uint8(i), c)
	}
}

// memberFails: the member loses its memory, or starts again without any. A member that is killed
// and keeps its memory is like one whose stream breaks, except that it forwards nothing meanwhile.
func (m *portModel) memberFails(s *portState, i int, to *steps[portState]) {
	t := *s
	q := &t.members[i]
	switch {
	case !q.alive:
		q.alive = true
		m.add(to, t, "member # starts without memory", uint8(i))
	case m.mayFail(s):
		m.fail(&t)
		q.breakStream()
		q.alive, q.leased, q.resets, q.copies = false, false, false, [maxPorts]copied{}
		m.add(to, t, "member # loses its memory", uint8(i))
	}
}

// streamBreaks: the network between owner and member is cut, which is a failure, or the member
// notices that the stream of a dead owner has ended.
func (m *portModel) streamBreaks(s *portState, i int, to *steps[portState]) {
	p := &s.members[i]
	if !p.stream {
		return
	}
	t := *s
	t.members[i].breakStream()
	switch {
	case !s.owner.alive || p.view < sending:
		m.add(to, t, "member # notices that the owner's stream has ended", uint8(i))
	case m.mayFail(s):
		m.fail(&t)
		m.add(to, t, "the network between owner and member # is cut", uint8(i))
	}
}

func (m *portModel) mayFail(s *portState) bool { return m.failures < 0 || int(s.failures) < m.failures }

// fail counts a failure, in the history if it is bounded, and for each connection.
func (m *portModel) fail(t *portState) {
	if m.failures >= 0 {
		t.failures++
	}
	for port := range t.backend {
		if c := &t.backend[port]; c.client != 0 && c.failures < 2 {
			c.failures++
		}
	}
}
