package stateful

import (
	"bytes"
	"encoding/binary"
	"math/bits"

	"sluice.dev/sluice/nat/header"
)

// opens reports whether a datagram without a flow begins an exchange. A datagram of a later step
// does, too: if a translator moved the exchange to this server, the client must detect it by the
// tag of the answer.
func (e *Engine) opens(template uint8, payload []byte) bool {
	t := &e.plan.templates[template]
	if tag, ok := ReadTag(payload); ok {
		return tag.Step < t.steps && e.plan.steps[t.first+uint32(tag.Step)].from == Client
	}
	s := &e.plan.steps[t.first]
	return s.literal != noLiteral && bytes.Equal(payload, e.plan.content(s, 0, int(s.size)))
}

// datagram handles a datagram of a known exchange.
func (e *Engine) datagram(i uint32, p *packet) {
	c := &e.conns[i]
	if e.observe != nil {
		e.observe(i, p.payload)
	}
	e.stats.Templates[c.template].BytesIn += uint64(len(p.payload))
	tag, s, known := e.identify(c, p.payload)
	if !known {
		e.fail(i, Corrupt, false)
		return
	}
	if e.role == Client {
		e.firstByte(c)
		e.met(c, tag.Server, tag.Peer)
	}
	if c.state == lingering || tag.Step < c.step {
		e.repeated(i, tag, s)
		return
	}
	if tag.Step > c.step { // the peer is ahead: missing datagrams of earlier steps are lost
		c.step, c.got = tag.Step, 0
		c.flags &^= thinking
	}
	c.got |= 1 << tag.Seq
	if bits.OnesCount64(c.got) < int(s.count) {
		e.arm(i, e.patience(c))
		return
	}
	c.retries = 0
	c.step++
	e.beginStep(i, c)
}

// identify finds the step to which a datagram belongs, and compares its bytes.
func (e *Engine) identify(c *conn, b []byte) (tag Tag, s *step, known bool) {
	t := &e.plan.templates[c.template]
	tag, ok := ReadTag(b)
	if !ok {
		// Literal bytes from a client: the current step, or the last matching one before it.
		for k := int(min(c.step, t.steps-1)); k >= 0; k-- {
			s = &e.plan.steps[t.first+uint32(k)]
			if s.from == Client && s.literal != noLiteral && bytes.Equal(b, e.plan.content(s, 0, int(s.size))) {
				return Tag{Step: uint16(k)}, s, e.role == Server
			}
		}
		return tag, nil, false
	}
	if tag.Step >= t.steps {
		return tag, nil, false
	}
	s = &e.plan.steps[t.first+uint32(tag.Step)]
	if s.from == e.role || tag.Seq >= s.count || len(b) != int(s.size) {
		return tag, nil, false
	}
	at := 0
	if s.literal == noLiteral || s.from == Server {
		at = TagBytes
	}
	return tag, s, bytes.Equal(b[at:], e.plan.content(s, uint32(at), len(b)-at))
}

// repeated handles a datagram of a finished step: the client repeats its request, because the
// answer was lost. The answer is sent again, once for each repetition.
func (e *Engine) repeated(i uint32, tag Tag, s *step) {
	c := &e.conns[i]
	if e.role == Client || tag.Seq != s.count-1 {
		return
	}
	t := &e.plan.templates[c.template]
	if c.state == lingering {
		e.lingers.remove(e.conns, i)
		c.state, c.deadline = exchange, 0
	}
	if tag.Step+1 < t.steps && e.plan.steps[t.first+uint32(tag.Step)+1].from == Server {
		e.stats.Templates[c.template].Retransmits++
	}
	c.step = tag.Step + 1
	c.flags &^= thinking
	e.beginStep(i, c)
}

// unansweredDatagram repeats the last request, or gives up.
func (e *Engine) unansweredDatagram(i uint32) {
	c := &e.conns[i]
	t := &e.plan.templates[c.template]
	if c.flags&queued != 0 {
		e.arm(i, t.timeoutMS) // it waits for room to send
		return
	}
	if e.role == Server || c.retries >= t.retries {
		e.fail(i, Timeout, false)
		return
	}
	c.retries++
	for c.step > 0 && (e.stepOf(c) == nil || e.stepOf(c).from != e.role) {
		c.step--
	}
	e.stats.Templates[c.template].Retransmits++
	c.flags |= again
	e.beginMessage(i, c)
}

// outputUDP sends the remaining datagrams of the own step, and begins the next step.
func (e *Engine) outputUDP(i uint32, c *conn) bool {
	for c.state == exchange && c.flags&thinking == 0 && e.ownTurn(c) {
		s := e.stepOf(c)
		for c.sndNxt < uint32(s.count) {
			if !e.emitDatagram(c, s) {
				return false
			}
			c.sndNxt++
		}
		c.step++
		e.beginStep(i, c)
	}
	return true
}

func (e *Engine) emitDatagram(c *conn, s *step) bool {
	n := int(s.size)
	at, ok := e.take(c, header.UDPBytes+n)
	if !ok {
		return false
	}
	b := e.frame[at : at+header.UDPBytes+n]
	binary.BigEndian.PutUint16(b, c.localPort)
	binary.BigEndian.PutUint16(b[2:], c.peerPort)
	binary.BigEndian.PutUint32(b[4:], uint32(header.UDPBytes+n)<<16)
	copy(b[header.UDPBytes:], e.plan.content(s, 0, n))
	tag := Tag{Step: c.step, Seq: uint16(c.sndNxt)}
	if e.role == Server {
		tag.Server, tag.Peer = c.server, c.peerHash
	}
	if e.role == Server || s.literal == noLiteral {
		tag.Put(b[header.UDPBytes:])
	}
	e.seal(c, b, at)
	e.stats.Templates[c.template].BytesOut += uint64(n)
	return true
}
