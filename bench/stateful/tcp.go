package stateful

import "sluice.dev/sluice/nat/header"

// Sequence numbers compare modulo 2^32 (RFC 9293, section 3.4).
func before(a, b uint32) bool     { return int32(a-b) < 0 }
func notBefore(a, b uint32) bool  { return int32(a-b) >= 0 }
func (c *conn) outstanding() bool { return c.sndUna != c.sndMax }

// setSequence chooses the initial sequence number. It grows with time, faster than connections
// send, and uniformly for all connections. So a newer connection with the same addresses and ports,
// also after translation, is recognized by its number (RFC 9293, section 3.6.1).
func (e *Engine) setSequence(c *conn) {
	iss := uint32(e.since >> 3)
	c.sndUna, c.sndNxt, c.sndMax, c.sndEnd = iss, iss, iss, iss+1
	c.mss = min(e.mss, defaultMSS)
}

// accept begins a server's connection.
func (e *Engine) accept(p *packet) {
	number := e.plan.byPort[protocolRow(p.key.protocol)][p.key.localPort]
	if number == 0 || p.key.protocol == ProtocolUDP && !e.opens(number-1, p.payload) {
		e.stray(p)
		return
	}
	i := e.allocate(&p.key, p.hash)
	if i == 0 {
		e.stats.Packets.Full++
		return
	}
	c := &e.conns[i]
	c.template = number - 1
	c.server = uint32(c.local) + 1
	c.peerHash = peerHash(c.peer, c.peerPort)
	e.enter(c)
	if p.key.protocol == ProtocolUDP {
		c.state = exchange
		e.datagram(i, p)
		return
	}
	c.state = synRcvd
	e.setSequence(c)
	e.greeted(c, p)
	e.wake(i)
}

// greeted stores the sequence number, window and MSS of the peer's SYN.
func (e *Engine) greeted(c *conn, p *packet) {
	c.rcvNxt, c.peerWnd = p.seq+1, p.wnd
	if p.mss != 0 {
		c.mss = max(min(e.mss, p.mss), 64)
	}
}

// stray answers a packet without a connection with RST (RFC 9293, section 3.10.7.1).
func (e *Engine) stray(p *packet) {
	e.stats.Packets.Stray++
	if p.key.protocol == ProtocolTCP && p.flags&header.TCPRST == 0 {
		e.refuse(p)
	}
}

// refuse answers a segment with RST.
func (e *Engine) refuse(p *packet) {
	c := conn{peer: p.key.peer, local: p.key.local, localPort: p.key.localPort, peerPort: p.key.peerPort,
		protocol: ProtocolTCP}
	if p.flags&header.TCPACK != 0 {
		e.control(&c, p.ack, 0, header.TCPRST)
		return
	}
	length := uint32(len(p.payload)) + uint32(p.flags&header.TCPSYN)>>1 + uint32(p.flags&header.TCPFIN)
	e.control(&c, 0, p.seq+length, header.TCPRST|header.TCPACK)
}

// segment handles a segment of a known connection.
func (e *Engine) segment(i uint32, p *packet) {
	c := &e.conns[i]
	switch c.state {
	case lingering:
		e.late(i, p)
		return
	case synSent:
		if !e.answered(i, p) {
			return
		}
	default:
		if !e.admissible(i, p) {
			return
		}
	}
	if !e.acknowledged(i, p) || !e.arrived(i, p) {
		return
	}
	e.settle(i)
}

// late handles a segment for a connection in TIME_WAIT. A SYN with a higher number begins the next
// connection (RFC 9293, section 3.6.1).
func (e *Engine) late(i uint32, p *packet) {
	c := &e.conns[i]
	switch {
	case p.flags&header.TCPRST != 0: // RFC 1337, section 3: ignored
	case e.role == Server && p.flags&(header.TCPSYN|header.TCPACK) == header.TCPSYN && before(c.rcvNxt, p.seq):
		e.stats.Packets.Reused++
		e.release(i)
		e.accept(p)
	case len(p.payload) > 0 || p.flags&(header.TCPSYN|header.TCPFIN) != 0:
		e.control(c, c.sndMax, c.rcvNxt, header.TCPACK)
		if p.flags&header.TCPFIN != 0 {
			e.linger(i) // restarts the timer (RFC 9293, section 3.10.7.4)
		}
	}
}

// answered handles the answer to a SYN. It reports whether the connection is open.
func (e *Engine) answered(i uint32, p *packet) bool {
	c := &e.conns[i]
	s := &e.stats.Templates[c.template]
	if p.flags&header.TCPACK != 0 && p.ack != c.sndMax {
		if p.flags&header.TCPRST == 0 {
			e.refuse(p)
		}
		return false
	}
	if p.flags&header.TCPRST != 0 {
		if p.flags&header.TCPACK != 0 {
			s.ResetsIn++
			e.fail(i, Refused, false)
		}
		return false
	}
	if p.flags&(header.TCPSYN|header.TCPACK) != header.TCPSYN|header.TCPACK {
		return false
	}
	e.greeted(c, p)
	c.flags |= needAck
	return true
}

// admissible checks a segment of an open or half-open connection by its sequence number and its
// flags.
func (e *Engine) admissible(i uint32, p *packet) bool {
	c := &e.conns[i]
	if p.flags&header.TCPRST != 0 {
		if p.seq == c.rcvNxt { // other RSTs: RFC 5961, section 3.2
			e.stats.Templates[c.template].ResetsIn++
			e.fail(i, Reset, false)
		} else if int32(p.seq-c.rcvNxt) > 0 && p.seq-c.rcvNxt < uint32(e.tcp.Window) {
			c.flags |= needAck
			e.wake(i)
		}
		return false
	}
	if p.flags&header.TCPSYN != 0 {
		if c.state == synRcvd && p.seq+1 == c.rcvNxt {
			c.sndNxt = c.sndUna // the SYN-ACK was lost
		} else {
			c.flags |= needAck // RFC 5961, section 4.2
		}
		e.wake(i)
		return false
	}
	return p.flags&header.TCPACK != 0
}

// acknowledged handles the segment's acknowledgement, and begins the next step if everything of
// this one is acknowledged. It reports whether the connection still exists.
func (e *Engine) acknowledged(i uint32, p *packet) bool {
	c := &e.conns[i]
	if c.flags&probing != 0 && !c.outstanding() && p.ack == c.sndMax+1 { // the peer took the probe's byte
		c.sndMax++
		c.sndNxt = c.sndMax
		e.stats.Templates[c.template].BytesOut++
	}
	if before(c.sndMax, p.ack) {
		if c.state == synRcvd {
			e.refuse(p)
			return false
		}
		c.flags |= needAck
		e.wake(i)
		return false
	}
	if notBefore(p.ack, c.sndUna) {
		if p.wnd > c.peerWnd {
			e.wake(i)
		}
		c.peerWnd = p.wnd
		if c.flags&probing != 0 {
			e.probed(i, c)
		}
	}
	if !before(c.sndUna, p.ack) {
		return true
	}
	c.sndUna, c.retries = p.ack, 0
	if before(c.sndNxt, c.sndUna) {
		c.sndNxt = c.sndUna
	}
	if c.flags&timing != 0 && notBefore(p.ack, c.rttSeq) {
		e.sample(c)
	}
	if c.outstanding() {
		e.arm(i, e.rtoMS(c))
	} else {
		// Nothing is left to retransmit (RFC 6298, section 5.2). The shared timer must not keep the
		// rest of the RTO, or due would fail a connection that waits for the peer's FIN.
		e.arm(i, e.patience(c))
	}
	switch {
	case c.state == synRcvd || c.state == synSent:
		c.state = open
		e.stats.Templates[c.template].Connected++
		if e.role == Client {
			// fails beyond a minute; a SYN is given up earlier
			_ = e.stats.Connect[c.template].RecordValue(int64(e.us - c.opened))
		}
		e.beginStep(i, c)
	case e.ownTurn(c) && c.flags&thinking == 0 && notBefore(c.sndUna, c.sndEnd):
		c.step++
		e.beginStep(i, c)
	}
	e.wake(i)
	return true
}

// sample updates srtt and rttvar as in RFC 6298, section 2, in microseconds.
func (e *Engine) sample(c *conn) {
	c.flags &^= timing
	r := max(e.us-c.rttAt, 1)
	if c.srtt == 0 {
		c.srtt, c.rttvar = r, r/2
		return
	}
	apart := int32(c.srtt - r)
	if apart < 0 {
		apart = -apart
	}
	c.rttvar = (3*c.rttvar + uint32(apart)) / 4
	c.srtt = (7*c.srtt + r) / 8
}

// rtoMS is the time until the next retransmission, with backoff (RFC 6298, sections 2 and 5.5).
func (e *Engine) rtoMS(c *conn) uint32 { return e.backedOffMS(c, c.retries) }

// backedOffMS is the retransmission timeout, doubled as often as times says.
func (e *Engine) backedOffMS(c *conn, times uint8) uint32 {
	us := uint64(e.tcp.FirstRTO.Microseconds())
	if c.srtt != 0 {
		us = uint64(max(c.srtt+max(4*c.rttvar, 1000), e.minRTO))
	}
	const longestUS = 60_000_000
	return uint32(min(us<<times, longestUS)/1000) + 1
}

// arrived handles the segment's data and FIN. It reports whether the connection still exists.
func (e *Engine) arrived(i uint32, p *packet) bool {
	c := &e.conns[i]
	data, seq, fin := p.payload, p.seq, p.flags&header.TCPFIN != 0
	if len(data) == 0 && !fin {
		return true
	}
	c.flags |= needAck
	e.wake(i)
	if before(c.rcvNxt, seq) || c.flags&peerFin != 0 {
		e.stats.Packets.OutOfOrder++
		return true
	}
	old := c.rcvNxt - seq
	if old > uint32(len(data)) {
		return true
	}
	if data = data[old:]; len(data) > 0 {
		c.rcvNxt += uint32(len(data))
		if !e.consume(i, data) {
			return false
		}
	}
	if fin {
		c.rcvNxt++
		c.flags |= peerFin
	}
	return true
}

// settle ends a connection that both sides have closed.
func (e *Engine) settle(i uint32) {
	c := &e.conns[i]
	if c.flags&peerFin == 0 || c.state != open {
		return
	}
	if c.step < e.plan.templates[c.template].steps {
		e.fail(i, Closed, true)
		return
	}
	if c.flags&finQueued == 0 {
		c.flags |= finQueued
		e.wake(i)
		return
	}
	if c.sndUna != c.sndEnd+1 {
		return
	}
	e.stats.Templates[c.template].Completed++
	if c.flags&activeClose == 0 {
		e.release(i)
		return
	}
	e.control(c, c.sndMax, c.rcvNxt, header.TCPACK)
	e.linger(i)
}

// fail ends a connection with a failure.
func (e *Engine) fail(i uint32, why Failure, reset bool) {
	c := &e.conns[i]
	s := &e.stats.Templates[c.template]
	s.Failed[why]++
	if reset && c.protocol == ProtocolTCP {
		s.ResetsOut++
		e.control(c, c.sndNxt, c.rcvNxt, header.TCPRST|header.TCPACK)
	}
	e.release(i)
}

// due handles an expired timer.
func (e *Engine) due(i uint32) {
	c := &e.conns[i]
	t := &e.plan.templates[c.template]
	switch {
	case c.flags&thinking != 0:
		c.flags &^= thinking
		e.beginMessage(i, c)
	case c.protocol == ProtocolUDP:
		e.unansweredDatagram(i)
	case c.state == open && c.peerWnd == 0 && before(c.sndUna, c.sndEnd):
		e.probe(i)
	case c.outstanding():
		e.retransmit(i)
	case c.flags&queued != 0:
		e.arm(i, t.timeoutMS) // it waits for room to send, not for the peer
	default:
		e.fail(i, Timeout, true)
	}
}

// mostProbes bounds the count of probes; at this count the interval has reached its maximum.
const mostProbes = 20

// probe sends one byte into a closed window (RFC 9293, section 3.8.6.1). The byte counts as sent
// only after the peer acknowledges it, because the peer may drop it. So the next probe, with the
// same byte, is no retransmission. The connection fails after as many unanswered probes as there
// are retries, and stays open as long as the peer answers.
func (e *Engine) probe(i uint32) {
	c := &e.conns[i]
	if int(c.retries) >= e.tcp.Retries {
		e.fail(i, Timeout, true)
		return
	}
	c.sndNxt = c.sndUna // if the peer closed a window with data in flight, all of it is sent again
	if e.segmentOf(c, header.TCPACK, 1, 0) {
		c.retries++
		c.probes = min(c.probes+1, mostProbes)
		c.flags |= probing
		c.flags &^= timing | needAck
	}
	e.arm(i, e.backedOffMS(c, c.probes))
}

// probed handles an answer to a probe.
func (e *Engine) probed(i uint32, c *conn) {
	c.retries = 0
	if c.peerWnd == 0 {
		return
	}
	c.probes = 0
	c.flags &^= probing
	if c.outstanding() {
		e.arm(i, e.rtoMS(c))
	}
}

// retransmit starts again at the first unacknowledged byte.
func (e *Engine) retransmit(i uint32) {
	c := &e.conns[i]
	if int(c.retries) >= e.tcp.Retries {
		if c.state == synSent {
			e.fail(i, Unanswered, false)
		} else {
			e.fail(i, Timeout, true)
		}
		return
	}
	c.retries++
	c.flags &^= timing // Karn: RFC 6298, section 3
	c.sndNxt = c.sndUna
	e.arm(i, e.rtoMS(c))
	e.wake(i)
}
