package fastpath_test

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"sluice.dev/sluice/nat/header/headertest"
)

// tcpModel is one end of a TCP connection: a sender that repeats what is not acknowledged, from the
// first byte on, and a receiver that orders bytes and reports blocks (RFC 2018, RFC 2883). It has
// no congestion control. Errors of the other end's segments, which no TCP would make, are in
// faults.
type tcpModel struct {
	local, remote string
	iss, irs      uint32
	state         modelState
	timestamps    bool
	window        uint16 // that it offers; 0: 64240
	cookies       bool   // SYN-ACKs are not repeated

	// Sent: stream[:sent] may be sent, una and next are offsets in it.
	stream         []byte
	una, next, max int
	fin            bool // after the stream
	offered        int  // the other end's window
	due            time.Duration
	handshakeDue   time.Duration

	// Received.
	got      []byte
	pending  map[int][]byte // out of order, by offset
	finAt    int            // offset of the other end's FIN; -1: none
	finished bool           // everything up to the FIN has arrived
	reset    bool
	tsRecent uint32

	out    []*headertest.Packet
	faults []string
}

type modelState uint8

const (
	modelClosed modelState = iota
	modelListen
	modelSynSent
	modelSynRecv
	modelOpen
)

const (
	modelMSS   = 100
	modelRTO   = 300 * time.Millisecond
	modelFirst = time.Second // until a handshake segment is repeated
)

func newModel(local, remote string, iss uint32, stream []byte) *tcpModel {
	return &tcpModel{local: local, remote: remote, iss: iss, stream: stream, pending: map[int][]byte{}, finAt: -1,
		offered: 1}
}

// modelSegment is a received segment.
type modelSegment struct {
	seq, ack uint32
	flags    uint8
	window   uint16
	data     []byte
	blocks   [][2]uint32
	ts       *[2]uint32
}

func readSegment(frame []byte) (s modelSegment) {
	ip := headertest.IP(frame)
	b := ip[20:]
	if ip[0]>>4 == 6 {
		b = ip[40:]
	}
	s.seq, s.ack = binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint32(b[8:])
	s.flags, s.window = b[13], binary.BigEndian.Uint16(b[14:])
	end := int(b[12]>>4) * 4
	s.data = slices.Clone(b[end:])
	for o := b[20:end]; len(o) > 0 && o[0] != 0; {
		if o[0] == 1 {
			o = o[1:]
			continue
		}
		switch o[0] {
		case 5:
			for at := 2; at < int(o[1]); at += 8 {
				left, right := binary.BigEndian.Uint32(o[at:]), binary.BigEndian.Uint32(o[at+4:])
				s.blocks = append(s.blocks, [2]uint32{left, right})
			}
		case 8:
			s.ts = &[2]uint32{binary.BigEndian.Uint32(o[2:]), binary.BigEndian.Uint32(o[6:])}
		}
		o = o[o[1]:]
	}
	return s
}

func (m *tcpModel) fault(format string, args ...any) {
	m.faults = append(m.faults, fmt.Sprintf(format, args...))
}

// emit sends a segment with the bytes from offset to end.
func (m *tcpModel) emit(now time.Duration, flags uint8, offset, end int, blocks ...[2]uint32) {
	p := headertest.TCP(m.local, m.remote, flags)
	p.Seq, p.Ack, p.Window = m.iss+1+uint32(offset), 0, m.window
	if flags&headertest.SYN != 0 {
		p.Seq = m.iss
	}
	if flags&headertest.ACK != 0 {
		p.Ack = m.rcvNext()
	}
	if end > offset {
		p.Payload = slices.Clone(m.stream[offset:end])
	}
	if m.timestamps {
		o := []byte{1, 1, 8, 10}
		o = binary.BigEndian.AppendUint32(o, uint32(now/time.Millisecond)+1)
		p.TCPOptions = binary.BigEndian.AppendUint32(o, m.tsRecent)
	}
	if len(blocks) > 0 {
		p.TCPOptions = append(p.TCPOptions, 1, 1, 5, byte(2+8*len(blocks)))
		for _, b := range blocks {
			p.TCPOptions = binary.BigEndian.AppendUint32(p.TCPOptions, b[0])
			p.TCPOptions = binary.BigEndian.AppendUint32(p.TCPOptions, b[1])
		}
	}
	m.out = append(m.out, p)
}

// rcvNext is the acknowledgement number.
func (m *tcpModel) rcvNext() uint32 {
	n := m.irs + 1 + uint32(len(m.got))
	if m.finished {
		n++
	}
	return n
}

func (m *tcpModel) open(now time.Duration) {
	m.state, m.handshakeDue = modelSynSent, now+modelFirst
	m.emit(now, headertest.SYN, 0, 0)
}

// tick repeats and sends what is due.
func (m *tcpModel) tick(now time.Duration) {
	switch m.state {
	case modelSynSent, modelSynRecv:
		if now < m.handshakeDue || m.state == modelSynRecv && m.cookies {
			return
		}
		m.handshakeDue = now + modelFirst // no backoff: the gateway keeps a handshake for 30 s
		if m.state == modelSynSent {
			m.emit(now, headertest.SYN, 0, 0)
		} else {
			m.emit(now, headertest.SYN|headertest.ACK, 0, 0)
		}
	case modelOpen:
		if m.una < m.end() && m.next > m.una && now >= m.due {
			m.next = m.una // go back
		}
		m.push(now)
	}
}

// end is the number of bytes to send, a FIN counts as one.
func (m *tcpModel) end() int {
	if m.fin {
		return len(m.stream) + 1
	}
	return len(m.stream)
}

func (m *tcpModel) push(now time.Duration) {
	for m.next < m.end() && m.next < m.una+max(1, min(m.offered, 10*modelMSS)) {
		if m.next == m.una {
			m.due = now + modelRTO
		}
		n := min(modelMSS, len(m.stream)-m.next, m.una+max(1, min(m.offered, 10*modelMSS))-m.next)
		if m.next >= len(m.stream) {
			m.emit(now, headertest.FIN|headertest.ACK, m.next, m.next)
			m.next++
		} else {
			m.emit(now, headertest.ACK|headertest.PSH, m.next, m.next+n)
			m.next += n
		}
		m.max = max(m.max, m.next)
	}
}

// abort sends an RST.
func (m *tcpModel) abort(now time.Duration) {
	if m.state == modelOpen {
		m.emit(now, headertest.RST|headertest.ACK, m.max, m.max)
	}
	m.state, m.reset = modelClosed, true
}

func (m *tcpModel) receive(now time.Duration, frame []byte) {
	if err := headertest.Verify(frame); err != nil {
		m.fault("%x: %v", frame, err)
		return
	}
	s := readSegment(frame)
	switch m.state {
	case modelClosed:
		if s.flags&headertest.RST == 0 { // RFC 9293 section 3.10.7.1
			p := headertest.TCP(m.local, m.remote, headertest.RST)
			if p.Seq = s.ack; s.flags&headertest.ACK == 0 {
				p = headertest.TCP(m.local, m.remote, headertest.RST|headertest.ACK)
				p.Seq, p.Ack = 0, s.seq+1
			}
			m.out = append(m.out, p)
		}
	case modelListen:
		if s.flags&(headertest.SYN|headertest.ACK) == headertest.SYN {
			if len(s.data) > 0 {
				m.fault("a SYN with data")
			}
			m.irs, m.state, m.handshakeDue = s.seq, modelSynRecv, now+modelFirst
			m.remember(&s)
			m.emit(now, headertest.SYN|headertest.ACK, 0, 0)
		}
	case modelSynSent:
		if s.flags&headertest.RST != 0 && s.ack == m.iss+1 {
			m.state, m.reset = modelClosed, true
			return
		}
		if s.flags&(headertest.SYN|headertest.ACK) == headertest.SYN|headertest.ACK && s.ack == m.iss+1 {
			m.irs, m.state, m.offered = s.seq, modelOpen, int(s.window)
			m.remember(&s)
			m.emit(now, headertest.ACK, 0, 0)
			m.push(now)
		}
	case modelSynRecv, modelOpen:
		m.segment(now, &s)
	}
}

func (m *tcpModel) remember(s *modelSegment) {
	if s.ts != nil {
		m.tsRecent = s.ts[0]
	}
}

// segment handles a segment of an open connection (RFC 9293 section 3.10.7.4).
func (m *tcpModel) segment(now time.Duration, s *modelSegment) {
	offset := int(int32(s.seq - m.irs - 1))
	switch {
	case s.flags&headertest.RST != 0 && s.seq == m.rcvNext():
		m.state, m.reset = modelClosed, true
		return
	case m.state == modelSynRecv && s.flags == headertest.SYN:
		m.emit(now, headertest.SYN|headertest.ACK, 0, 0)
		return
	case s.flags&headertest.RST != 0, s.flags&headertest.SYN != 0:
		if m.state == modelOpen {
			m.acknowledge(now, nil) // challenge
		}
		return
	case s.flags&headertest.ACK == 0:
		return
	case m.state == modelSynRecv && s.ack != m.iss+1:
		return
	}
	m.state = modelOpen
	if s.ts == nil && m.timestamps && m.tsRecent != 0 {
		m.withoutTimestamps(s)
	}
	m.acked(s)
	if int(int32(s.seq-m.irs-1)) <= len(m.got) {
		m.remember(s)
	}
	fin := s.flags&headertest.FIN != 0
	if fin {
		m.finAt = offset + len(s.data)
	}
	if len(s.data) > 0 || fin {
		m.accept(now, offset, s.data)
	}
	m.push(now)
}

// withoutTimestamps is called for a segment that lacks the option that the connection has.
func (m *tcpModel) withoutTimestamps(*modelSegment) {}

func (m *tcpModel) acked(s *modelSegment) {
	n := int(int32(s.ack - m.iss - 1))
	switch {
	case n > m.max:
		m.fault("acknowledges byte %d, %d were sent", n, m.max)
	case n < -52:
		m.fault("acknowledges %d bytes before the first", -n)
	case n >= m.una:
		m.una, m.offered = n, int(s.window)
		m.next = max(m.next, n)
	}
	for i, b := range s.blocks {
		left, right := int(int32(b[0]-m.iss-1)), int(int32(b[1]-m.iss-1))
		switch duplicate := i == 0 && right <= n; {
		case left < 0 || right > m.max || left >= right:
			m.fault("block %d to %d, %d bytes were sent", left, right, m.max)
		case !duplicate && left <= n:
			m.fault("block %d to %d, although byte %d is missing", left, right, n)
		}
	}
}

// accept takes bytes at an offset, and answers.
func (m *tcpModel) accept(now time.Duration, offset int, data []byte) {
	var duplicate *[2]uint32
	if offset+len(data) <= len(m.got) && len(data) > 0 {
		duplicate = &[2]uint32{m.irs + 1 + uint32(offset), m.irs + 1 + uint32(offset+len(data))}
	}
	if limit := m.limit(); offset+len(data) > limit {
		m.fault("bytes %d to %d, the window ends at %d", offset, offset+len(data), limit)
		return
	}
	m.pending[offset] = data
	for progress := true; progress; {
		progress = false
		for at, d := range m.pending {
			if at <= len(m.got) && at+len(d) > len(m.got) {
				m.got = append(m.got, d[len(m.got)-at:]...)
				progress = true
			}
			if at+len(d) <= len(m.got) {
				delete(m.pending, at)
			}
		}
	}
	m.finished = m.finAt >= 0 && len(m.got) >= m.finAt
	m.acknowledge(now, duplicate)
}

// limit is the end of the window.
func (m *tcpModel) limit() int {
	if m.window != 0 {
		return len(m.got) + int(m.window)
	}
	return len(m.got) + 64240
}

func (m *tcpModel) acknowledge(now time.Duration, duplicate *[2]uint32) {
	var blocks [][2]uint32
	if duplicate != nil {
		blocks = append(blocks, *duplicate)
	}
	offsets := []int{}
	for at := range m.pending {
		offsets = append(offsets, at)
	}
	slices.Sort(offsets)
	for _, at := range offsets {
		left, right := m.irs+1+uint32(at), m.irs+1+uint32(at+len(m.pending[at]))
		if n := len(blocks); n > 0 && blocks[n-1][1] == left {
			blocks[n-1][1] = right
		} else if right != left {
			blocks = append(blocks, [2]uint32{left, right})
		}
	}
	most := 4
	if m.timestamps {
		most = 3
	}
	m.emit(now, headertest.ACK, m.next, m.next, blocks[:min(len(blocks), most)]...)
}
