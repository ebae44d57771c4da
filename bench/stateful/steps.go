package stateful

import (
	"bytes"
	"net/netip"
	"time"
)

// stepOf is the current step; nil when all are done.
func (e *Engine) stepOf(c *conn) *step {
	t := &e.plan.templates[c.template]
	if c.step >= t.steps {
		return nil
	}
	return &e.plan.steps[t.first+uint32(c.step)]
}

// ownTurn reports whether the step is this side's.
func (e *Engine) ownTurn(c *conn) bool {
	s := e.stepOf(c)
	return s != nil && s.from == e.role
}

// beginStep begins the step at c.step: thinking, sending, waiting, or the end of the connection.
func (e *Engine) beginStep(i uint32, c *conn) {
	s := e.stepOf(c)
	if c.rcvDone = 0; c.flags&again == 0 {
		c.got = 0
	}
	c.flags &^= again
	switch {
	case s == nil:
		e.finished(i, c)
	case s.from != e.role:
		e.arm(i, e.patience(c))
	case s.afterMS > 0:
		c.flags |= thinking
		e.arm(i, s.afterMS)
	default:
		e.beginMessage(i, c)
	}
}

// patience is the timeout of the peer's step: its think time and the template's timeout; a server
// adds the timeouts of the client's possible repetitions.
func (e *Engine) patience(c *conn) uint32 {
	t := &e.plan.templates[c.template]
	wait := t.timeoutMS
	if e.role == Server {
		wait *= uint32(t.retries) + 1
	}
	if s := e.stepOf(c); s != nil {
		wait += s.afterMS
	}
	return wait
}

// beginMessage begins to send the own step.
func (e *Engine) beginMessage(i uint32, c *conn) {
	s := e.stepOf(c)
	t := &e.plan.templates[c.template]
	if e.role == Client {
		c.asked = e.us
		c.flags |= asking
	}
	if c.protocol == ProtocolUDP {
		c.sndNxt = 0
		e.arm(i, t.timeoutMS)
	} else {
		c.sndEnd = c.sndMax + s.size
		if s.last && t.close == e.role {
			c.flags |= finQueued | activeClose
		}
	}
	e.wake(i)
}

// finished handles the end of the last step.
func (e *Engine) finished(i uint32, c *conn) {
	t := &e.plan.templates[c.template]
	if e.role == Client {
		// fails beyond a minute, which is longer than a useful exchange
		_ = e.stats.Whole[c.template].RecordValue(int64(e.us - c.opened))
	}
	switch {
	case c.protocol == ProtocolUDP && e.role == Client:
		e.stats.Templates[c.template].Completed++
		e.release(i)
	case c.protocol == ProtocolUDP:
		if c.flags&counted != 0 { // not for a repeated request after the end
			e.stats.Templates[c.template].Completed++
		}
		e.linger(i) // the client may have to repeat its request
	case c.flags&finQueued != 0:
	case t.close == e.role:
		c.flags |= finQueued | activeClose
		e.wake(i)
	default:
		e.arm(i, t.timeoutMS) // until the peer closes
	}
}

// message writes the bytes of the own step, starting at a sequence number.
func (e *Engine) message(c *conn, b []byte, seq uint32) {
	s := e.stepOf(c)
	offset := s.size - (c.sndEnd - seq)
	copy(b, e.plan.content(s, offset, len(b)))
	if e.role == Server && offset < TagBytes {
		var tag [TagBytes]byte
		Tag{Server: c.server, Peer: c.peerHash, Step: c.step}.Put(tag[:])
		copy(b, tag[offset:])
	}
}

// consume handles the next bytes of the peer's step, and of its following steps. It reports whether
// the connection still exists.
func (e *Engine) consume(i uint32, data []byte) bool {
	c := &e.conns[i]
	if e.observe != nil {
		e.observe(i, data)
	}
	e.stats.Templates[c.template].BytesIn += uint64(len(data))
	for len(data) > 0 {
		s := e.stepOf(c)
		if s == nil || s.from == e.role {
			e.fail(i, Corrupt, true)
			return false
		}
		n := min(len(data), int(s.size-c.rcvDone))
		if !e.check(i, c, s, data[:n]) {
			return false
		}
		c.rcvDone += uint32(n)
		data = data[n:]
		if c.rcvDone == s.size {
			c.step++
			e.beginStep(i, c)
		} else {
			e.arm(i, e.patience(c))
		}
	}
	return true
}

// check compares received bytes with the template.
func (e *Engine) check(i uint32, c *conn, s *step, b []byte) bool {
	e.firstByte(c)
	offset := c.rcvDone
	if e.role == Client && offset < TagBytes {
		n := min(len(b), int(TagBytes-offset))
		whole, ok := e.readTag(c, b[:n], offset)
		if !ok {
			e.fail(i, Corrupt, true)
			return false
		}
		if whole {
			e.met(c, uint32(c.got>>32), uint32(c.got))
		}
		b, offset = b[n:], offset+uint32(n)
	}
	for len(b) > 0 {
		n := min(len(b), patternBytes/32)
		if !bytes.Equal(b[:n], e.plan.content(s, offset, n)) {
			e.fail(i, Corrupt, true)
			return false
		}
		b, offset = b[n:], offset+uint32(n)
	}
	return true
}

// readTag collects a tag in c.got, because a stream may split it anywhere.
func (e *Engine) readTag(c *conn, b []byte, offset uint32) (whole, ok bool) {
	if offset == 0 && len(b) == TagBytes {
		tag, ok := ReadTag(b)
		c.got = uint64(tag.Server)<<32 | uint64(tag.Peer)
		return true, ok && tag.Step == c.step
	}
	var fixed [TagBytes]byte
	Tag{Step: c.step}.Put(fixed[:])
	for k, v := range b {
		if at := int(offset) + k; at >= 4 && at < 12 {
			c.got = c.got<<8 | uint64(v)
		} else if v != fixed[at] {
			return false, false
		}
	}
	return offset+uint32(len(b)) == TagBytes, true
}

// firstByte ends the wait for an answer.
func (e *Engine) firstByte(c *conn) {
	if c.flags&asking != 0 {
		c.flags &^= asking
		// fails beyond a minute: timeouts of templates are shorter
		_ = e.stats.FirstByte[c.template].RecordValue(int64(e.us - c.asked))
	}
}

// met checks every tag that a client reads.
func (e *Engine) met(c *conn, server, peer uint32) {
	if c.server == 0 {
		c.server, c.peerHash = server, peer
		return
	}
	s := &e.stats.Templates[c.template]
	if c.server != server {
		e.metAnother(c, server)
	} else if c.peerHash != peer {
		s.Retupled++
	}
	c.server, c.peerHash = server, peer
}

// metAnother handles a connection that met two servers. For UDP this is allowed if the first server
// was removed after the connection began, because only another server can answer.
func (e *Engine) metAnother(c *conn, server uint32) {
	s := &e.stats.Templates[c.template]
	first := int(c.server) - 1
	opened := e.since - uint64(e.us-c.opened)*1000
	if c.protocol == ProtocolUDP && first < len(e.c.Removed) {
		if at := e.c.Removed[first].Load(); at >= e.began && at-e.began >= opened {
			s.Moved++
			return
		}
	}
	s.Violations++
	v := &e.stats.Violations
	if len(*v) == cap(*v) {
		return
	}
	target := netip.AddrPortFrom(e.netip(c.peer), c.peerPort)
	*v = append(*v, Violation{
		Template: e.c.Profile.Templates[c.template].Name,
		Client:   netip.AddrPortFrom(e.mine.At(int(c.local)), c.localPort), Target: target,
		First: e.serverAt(c.server), Then: e.serverAt(server),
		Opened: time.Duration(opened), Seen: time.Duration(e.since),
	})
}

func (e *Engine) serverAt(tag uint32) netip.Addr {
	if tag == 0 || int(tag) > e.c.Profile.Servers.Len() {
		return netip.Addr{}
	}
	return e.c.Profile.Servers.At(int(tag) - 1)
}

// output lets one connection send, and reports whether there was room for everything.
func (e *Engine) output(i uint32, c *conn) bool {
	if c.protocol == ProtocolUDP {
		return e.outputUDP(i, c)
	}
	return e.outputTCP(i, c)
}
