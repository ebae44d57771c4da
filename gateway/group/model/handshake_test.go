package model

import (
	"hash/maphash"

	"sluice.dev/sluice/gateway/group"
)

// Greatest sizes of handshakeModel.
const (
	maxGateways = 3
	maxInLine   = 6 // messages from one gateway to another
)

// handshakeModel is one client that opens one connection through several gateways. The network may
// bring each copy of its SYN, and each later segment, to any gateway. Gateway g sends a SYN for
// which it has no record to backend g: gateways that choose the same backend still choose different
// source ports, so the backend takes the two for different connections.
type handshakeModel struct {
	gateways int
	syns     int  // how often the client's SYN arrives anywhere, at most
	failures int  // 0 or 1
	without  rule // the rule that is taken out
}

func (m *handshakeModel) follows(r rule) bool { return m.without != r }

// opening is the state of a gateway's own flow for the client.
type opening uint8

const (
	noFlow          opening = iota
	asked                   // the SYN went to the backend
	waiting                 // the backend has answered; its SYN-ACK waits for the other gateways
	leftUnprotected         // the SYN-ACK has left after 2 ms, or with no gateway in step
	leftProtected           // the SYN-ACK has left after all acknowledgements
)

// gateway is one gateway. It has one record for the client at most: an own flow or a copy.
type gateway struct {
	alive  bool
	own    opening
	try    uint8 // number of the own flow; a gateway may make several, one after another
	acked  set   // gateways that have acknowledged the own flow
	told   set   // gateways that were sent the own flow
	copyOf uint8 // one more than the gateway whose flow is copied, or 0
	leased set   // gateways with which it takes itself for in step
	waits  set   // gateways whose acknowledgement its SYN-ACK waits for
}

// note is a message between gateways about the flow with a number.
type note uint8

const (
	noNote note = iota
	setNote
	clearNote
	appliedNote
	refusedNote
)

type letter struct {
	note note
	try  uint8
}

// reply is a SYN-ACK on its way to the client.
type reply uint8

const (
	noReply reply = iota
	unprotectedReply
	protectedReply
)

// handshakeState is the state of handshakeModel. It has no padding and no pointer.
type handshakeState struct {
	gateways [maxGateways]gateway
	linked   [maxGateways]set // symmetric
	lines    [maxGateways][maxGateways][maxInLine]letter
	replies  [maxGateways]reply
	promised [maxGateways]bool // the SYN-ACK of this gateway's backend has left protected
	syns     uint8
	failures uint8

	established uint8 // one more than the backend that the client is connected to, or 0
	protected   bool  // the client's SYN-ACK left protected
}

func (m *handshakeModel) others(g int) set { return (1<<m.gateways - 1) &^ one(g) }

// initial returns the state with all gateways in step and no flow.
func (m *handshakeModel) initial() (s handshakeState) {
	for g := range m.gateways {
		s.linked[g] = m.others(g)
		s.gateways[g] = gateway{alive: true, leased: m.others(g), waits: m.others(g)}
	}
	return s
}

// hash: gateways are not interchangeable, because the lower one wins.
func (m *handshakeModel) hash(s *handshakeState, seed maphash.Seed) uint64 {
	return maphash.Comparable(seed, *s)
}

func (m *handshakeModel) next(s *handshakeState, to *steps[handshakeState]) {
	for g := range m.gateways {
		m.synArrives(s, g, to)
		m.backendAnswers(s, g, to)
		m.synAckLeaves(s, g, to)
		m.clientHears(s, g, to)
		m.gatewayDies(s, g, to)
		for o := range m.gateways {
			if o != g {
				m.letterArrives(s, g, o, to)
				m.leaseEnds(s, g, o, to)
				m.stopsWaiting(s, g, o, to)
				m.networkCut(s, g, o, to)
			}
		}
	}
}

// synArrives: without a record the gateway makes a flow; a SYN of a flow that it knows goes to the
// flow's backend, which repeats its SYN-ACK. That comes by the gateway that owns the flow, or by
// this one if the owner is dead.
func (m *handshakeModel) synArrives(s *handshakeState, g int, to *steps[handshakeState]) {
	at := &s.gateways[g]
	if !at.alive || s.established != 0 || int(s.syns) >= m.syns {
		return
	}
	t := *s
	t.syns++
	switch owner := int(at.copyOf) - 1; {
	case at.own == noFlow && owner < 0:
		t.gateways[g].own, t.gateways[g].try = asked, t.syns
		to.add(t, "gateway # gets the SYN and makes a flow", uint8(g))
	case at.own == noFlow && !s.gateways[owner].alive:
		t.replies[owner] = unprotectedReply
		if s.promised[owner] {
			t.replies[owner] = protectedReply
		}
		to.add(t, "gateway # gets the SYN again, and repeats the SYN-ACK by its copy of dead gateway #'s flow",
			uint8(g), uint8(owner))
	case at.own == noFlow:
		if t.repeat(owner) {
			to.add(t, "gateway # gets the SYN again, and gateway # repeats the SYN-ACK", uint8(g), uint8(owner))
		}
	case t.repeat(g):
		to.add(t, "gateway # gets the SYN again, and repeats the SYN-ACK", uint8(g))
	}
}

// repeat reports whether a SYN-ACK of gateway g leaves again.
func (s *handshakeState) repeat(g int) bool {
	switch s.gateways[g].own {
	case leftUnprotected:
		s.replies[g] = unprotectedReply
	case leftProtected:
		s.replies[g] = protectedReply
	default:
		return false
	}
	return true
}

// backendAnswers: the record goes to all gateways that are waited for, and the SYN-ACK waits
// (copyFirst). If none is waited for it leaves.
func (m *handshakeModel) backendAnswers(s *handshakeState, g int, to *steps[handshakeState]) {
	if !s.gateways[g].alive || s.gateways[g].own != asked {
		return
	}
	t := *s
	at := &t.gateways[g]
	if at.waits == 0 {
		at.own = leftUnprotected
		t.replies[g] = unprotectedReply
		to.add(t, "backend # answers, and the SYN-ACK leaves unprotected", uint8(g))
		return
	}
	at.own, at.told = waiting, at.waits
	t.tell(g, at.told, letter{setNote, at.try})
	to.add(t, "backend # answers, and gateway # sends the record", uint8(g), uint8(g))
}

// tell sends a letter to some gateways. Letters over a link that is cut are lost.
func (s *handshakeState) tell(g int, whom set, l letter) {
	for o := range s.lines[g] {
		if !whom.has(o) || !s.linked[g].has(o) || !s.gateways[o].alive {
			continue
		}
		line := &s.lines[g][o]
		for i := range line {
			if line[i].note == noNote {
				line[i] = l
				break
			}
			if i == len(line)-1 {
				panic("model: more letters than maxInLine: raise it, or lower the number of SYNs")
			}
		}
	}
}

// synAckLeaves: after the last acknowledgement, or after 2 ms without it.
func (m *handshakeModel) synAckLeaves(s *handshakeState, g int, to *steps[handshakeState]) {
	at := &s.gateways[g]
	if !at.alive || at.own != waiting {
		return
	}
	t := *s
	t.gateways[g].own, t.replies[g] = leftUnprotected, unprotectedReply
	to.add(t, "the SYN-ACK of gateway # leaves after 2 ms, unprotected", uint8(g))
	if at.waits != 0 && at.acked&at.waits == at.waits || !m.follows(copyFirst) {
		t.gateways[g].own, t.replies[g], t.promised[g] = leftProtected, protectedReply, true
		to.add(t, "the SYN-ACK of gateway # leaves, protected", uint8(g))
	}
}

// clientHears: the client takes the first SYN-ACK, and ignores others.
func (m *handshakeModel) clientHears(s *handshakeState, g int, to *steps[handshakeState]) {
	if s.replies[g] == noReply {
		return
	}
	t := *s
	t.replies[g] = noReply
	if s.established == 0 {
		t.established, t.protected = uint8(g)+1, s.replies[g] == protectedReply
	}
	to.add(t, "the client gets the SYN-ACK of backend #", uint8(g))
}

// letterArrives: gateway o reads the next message of gateway g.
func (m *handshakeModel) letterArrives(s *handshakeState, g, o int, to *steps[handshakeState]) {
	l := s.lines[g][o][0]
	if l.note == noNote || !s.linked[g].has(o) || !s.gateways[o].alive {
		return
	}
	t := *s
	line := &t.lines[g][o]
	copy(line[:], line[1:])
	line[maxInLine-1] = letter{}
	at := &t.gateways[o]
	text := "gateway # reads from gateway # that it has applied the record"
	switch l.note {
	case setNote:
		text = m.recordArrives(&t, g, o, l.try)
	case clearNote:
		if int(at.copyOf) == g+1 {
			at.copyOf = 0
		}
		text = "gateway # reads from gateway # that the flow has ended"
	case appliedNote:
		if at.own >= waiting && at.try == l.try {
			at.acked.add(g)
		}
	case refusedNote:
		text = "gateway # reads from gateway # that it refuses the record"
		if at.try == l.try && (at.own == waiting || at.own > waiting && !m.follows(leftStays)) {
			t.endOwn(o)
			text = "gateway # reads from gateway # that it refuses the record, and ends its own flow"
		}
	}
	to.add(t, text, uint8(o), uint8(g))
}

// recordArrives decides between gateway g's record and the flow that gateway o has (group.Resolve).
func (m *handshakeModel) recordArrives(t *handshakeState, g, o int, try uint8) string {
	at := &t.gateways[o]
	if at.own != noFlow && !m.follows(oneWins) {
		t.tell(o, one(g), letter{appliedNote, try})
		return "gateway # acknowledges the record of gateway #, and keeps its own flow"
	}
	third := at.copyOf != 0 && int(at.copyOf) != g+1
	if !m.follows(firstStays) {
		third = third && int(at.copyOf) < g+1
	}
	text := "gateway # applies the record of gateway #"
	switch group.Resolve(m.opening(at.own), o < g, third) {
	case group.Refuse:
		t.tell(o, one(g), letter{refusedNote, try})
		return "gateway # refuses the record of gateway #, and keeps its own flow"
	case group.Ignore:
		return "gateway # has a copy already, and does not apply the record of gateway #"
	case group.YieldAndApply:
		t.endOwn(o)
		text = "gateway # ends its own flow, and applies the record of gateway #"
	}
	at.copyOf = uint8(g) + 1
	t.tell(o, one(g), letter{appliedNote, try})
	return text
}

// opening returns the state of a flow as group.Resolve takes it (leftStays).
func (m *handshakeModel) opening(own opening) group.Opening {
	switch {
	case own == noFlow:
		return group.NoFlow
	case own == asked:
		return group.Asked
	case own > waiting && m.follows(leftStays):
		return group.Left
	}
	return group.Answered
}

// endOwn ends a gateway's own flow: the backend gets an RST, and the others hear of the end.
func (s *handshakeState) endOwn(g int) {
	at := &s.gateways[g]
	s.tell(g, at.told, letter{clearNote, at.try})
	at.own, at.try, at.acked, at.told = noFlow, 0, 0, 0
}

// gatewayDies: its memory is lost. Letters that it has sent still arrive.
func (m *handshakeModel) gatewayDies(s *handshakeState, g int, to *steps[handshakeState]) {
	if !s.gateways[g].alive || int(s.failures) >= m.failures {
		return
	}
	t := *s
	t.failures++
	t.gateways[g] = gateway{}
	for o := range t.lines {
		t.lines[o][g] = [maxInLine]letter{}
	}
	to.add(t, "gateway # dies", uint8(g))
}

// networkCut: two gateways do not reach each other any more, and letters between them are lost.
func (m *handshakeModel) networkCut(s *handshakeState, g, o int, to *steps[handshakeState]) {
	if g > o || !s.linked[g].has(o) || int(s.failures) >= m.failures {
		return
	}
	t := *s
	t.failures++
	t.linked[g].remove(o)
	t.linked[o].remove(g)
	t.lines[g][o], t.lines[o][g] = [maxInLine]letter{}, [maxInLine]letter{}
	to.add(t, "the network between gateways # and # is cut", uint8(g), uint8(o))
}

// hears reports whether gateway g hears gateway o.
func (s *handshakeState) hears(g, o int) bool { return s.linked[g].has(o) && s.gateways[o].alive }

// leaseEnds: gateway g has not heard gateway o for the time of the lease, and is out of step.
func (m *handshakeModel) leaseEnds(s *handshakeState, g, o int, to *steps[handshakeState]) {
	if !s.gateways[g].leased.has(o) || s.hears(g, o) {
		return
	}
	t := *s
	t.gateways[g].leased.remove(o)
	to.add(t, "the lease of gateway # by gateway # runs out", uint8(g), uint8(o))
}

// stopsWaiting: gateway g waits for gateway o no more; o's lease has run out, or it is dead.
func (m *handshakeModel) stopsWaiting(s *handshakeState, g, o int, to *steps[handshakeState]) {
	if !s.gateways[g].waits.has(o) || s.hears(g, o) || s.gateways[o].leased.has(g) {
		return
	}
	t := *s
	t.gateways[g].waits.remove(o)
	to.add(t, "gateway # waits for gateway # no more", uint8(g), uint8(o))
}
