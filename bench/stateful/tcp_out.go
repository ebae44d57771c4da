package stateful

import (
	"encoding/binary"
	"math/bits"

	"sluice.dev/sluice/bench/framing"
	"sluice.dev/sluice/nat/header"
)

// outputTCP sends as much as is allowed, and reports whether there was room for it. The
// retransmission timer is set also if there was room for a part only.
func (e *Engine) outputTCP(i uint32, c *conn) bool {
	had, room := c.outstanding(), true
	switch {
	case c.state == synSent && c.sndNxt == c.sndUna:
		room = e.emit(c, header.TCPSYN, 0)
	case c.state == synRcvd && c.sndNxt == c.sndUna:
		room = e.emit(c, header.TCPSYN|header.TCPACK, 0)
	case c.state == open:
		room = e.outputData(c)
	}
	if !had && c.outstanding() {
		e.arm(i, e.rtoMS(c))
	} else if !had && c.state == open && before(c.sndNxt, c.sndEnd) && c.peerWnd == 0 {
		e.arm(i, e.backedOffMS(c, c.probes))
	}
	return room
}

// outputData sends as much of the message as the windows allow, then FIN if it is due, or else a
// due acknowledgement.
func (e *Engine) outputData(c *conn) bool {
	window := min(uint32(c.peerWnd), uint32(e.tcp.Window))
	for before(c.sndNxt, c.sndEnd) {
		flight := c.sndNxt - c.sndUna
		if flight >= window {
			break
		}
		n := min(c.sndEnd-c.sndNxt, uint32(c.mss), window-flight)
		f := uint8(header.TCPACK)
		if c.sndNxt+n == c.sndEnd {
			f |= header.TCPPSH
			if c.flags&finQueued != 0 {
				f |= header.TCPFIN
			}
		}
		if !e.emit(c, f, int(n)) {
			return false
		}
	}
	if c.flags&finQueued != 0 && c.sndNxt == c.sndEnd {
		return e.emit(c, header.TCPFIN|header.TCPACK, 0)
	}
	if c.flags&needAck != 0 {
		if !e.control(c, c.sndNxt, c.rcvNxt, header.TCPACK) {
			return false
		}
		c.flags &^= needAck
	}
	return true
}

// emit sends one segment at sndNxt and advances sndNxt.
func (e *Engine) emit(c *conn, f uint8, n int) bool {
	options := 0
	if f&header.TCPSYN != 0 {
		options = 4
	}
	if !e.segmentOf(c, f, n, options) {
		return false
	}
	s := &e.stats.Templates[c.template]
	if before(c.sndNxt, c.sndMax) {
		s.Retransmits++
	} else {
		s.BytesOut += uint64(n)
		if c.flags&timing == 0 && c.retries == 0 {
			c.flags |= timing
			c.rttAt, c.rttSeq = e.us, c.sndNxt+1
		}
	}
	c.sndNxt += uint32(n) + uint32(bits.OnesCount8(f&(header.TCPSYN|header.TCPFIN)))
	if before(c.sndMax, c.sndNxt) {
		c.sndMax = c.sndNxt
	}
	c.flags &^= needAck
	return true
}

// segmentOf writes one segment of the own step at sndNxt, with 0 or 4 option bytes: 4 are the MSS.
// It reports whether there was room.
func (e *Engine) segmentOf(c *conn, f uint8, n, options int) bool {
	at, ok := e.take(c, header.TCPBytes+options+n)
	if !ok {
		return false
	}
	b := e.frame[at : at+header.TCPBytes+options+n]
	e.tcpHeader(b, c, c.sndNxt, c.rcvNxt, f)
	if options != 0 {
		b[12] = (header.TCPBytes + 4) / 4 << 4
		b[20], b[21] = optionMSS, 4
		binary.BigEndian.PutUint16(b[22:], e.mss)
	}
	if n > 0 {
		e.message(c, b[header.TCPBytes:], c.sndNxt)
	}
	e.seal(c, b, at)
	return true
}

// control sends a segment without data that uses no sequence number.
func (e *Engine) control(c *conn, seq, ack uint32, f uint8) bool {
	at, ok := e.take(c, header.TCPBytes)
	if !ok {
		return false
	}
	b := e.frame[at : at+header.TCPBytes]
	e.tcpHeader(b, c, seq, ack, f)
	e.seal(c, b, at)
	return true
}

func (e *Engine) tcpHeader(b []byte, c *conn, seq, ack uint32, f uint8) {
	if f&header.TCPACK == 0 {
		ack = 0
	}
	binary.BigEndian.PutUint16(b, c.localPort)
	binary.BigEndian.PutUint16(b[2:], c.peerPort)
	binary.BigEndian.PutUint32(b[4:], seq)
	binary.BigEndian.PutUint32(b[8:], ack)
	b[12], b[13] = header.TCPBytes/4<<4, f
	binary.BigEndian.PutUint16(b[14:], uint16(e.tcp.Window))
	binary.BigEndian.PutUint32(b[16:], 0) // checksum, urgent pointer
}

// seal writes the checksum of a segment or datagram and finishes its packet.
func (e *Engine) seal(c *conn, b []byte, at int) {
	framing.Seal(b, e.addressesOf(e.frame), uint8(c.protocol))
	e.sent(at + len(b))
}
