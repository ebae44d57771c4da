package fastpath_test

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
)

// fromClient returns a segment of the client whose flow proxyHandshake opens.
func fromClient(flags uint8, seq, ack uint32, data string) *headertest.Packet {
	p := headertest.TCP(join(client4, 40000), join(vip4, 80), flags)
	p.Seq, p.Ack, p.Payload = seq, ack, []byte(data)
	return p
}

// TestProxyPlaceOfHeader: until the header is acknowledged, a client cannot put its own bytes, or a
// FIN, where the header belongs: a header that is lost would be replaced by them.
func TestProxyPlaceOfHeader(t *testing.T) {
	const first = headertest.ISN + 1
	own := string(wantHeader("192.0.2.99:1", join(vip4, 80)))
	l := newLab(t, labConfig{edit: proxied})
	g := l.workers[0]
	src, dst := l.proxyHandshake(t)
	l.send(0, fromClient(headertest.ACK, first, first, ""))
	if frame, _ := l.out(g.nic); !isHeader(frame) {
		t.Fatalf("%x, want the header", frame)
	}
	l.send(0, fromClient(headertest.ACK, first-28, first, own), fromClient(headertest.ACK, first-1, first, own),
		fromClient(headertest.ACK|headertest.FIN, first-28, first, ""))
	l.nothing(g.nic, g.host)
	l.wantDrop(reason.ProxyHandshake, 3)
	l.send(0, fromClient(headertest.ACK, first, first, own))
	frame, _ := l.out(g.nic)
	if s := readSegment(frame); s.seq != first+28 || string(s.data) != own {
		t.Errorf("the client's bytes left as %+v", s)
	}
	acked := headertest.TCP(dst, src, headertest.ACK)
	acked.Ack = first + 28
	l.send(0, acked)
	l.out(g.nic)
	l.send(0, fromClient(headertest.ACK, first-1, first, "k")) // a keepalive
	frame, _ = l.out(g.nic)
	if s := readSegment(frame); s.seq != first-1+28 {
		t.Errorf("the keepalive left as %+v", s)
	}
}

// TestProxyReopened: a client that opens a new connection on its flow gets a new header, whatever
// it sends meanwhile. It never sees a SYN-ACK that the flow has not noted, because behind that its
// bytes would be the first.
func TestProxyReopened(t *testing.T) {
	const first = headertest.ISN + 1
	for name, isn := range map[string]uint32{"the same number": headertest.ISN, "another number": 0xfffffff0} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, labConfig{edit: proxied})
			g := l.workers[0]
			src, dst := l.proxyHandshake(t)
			answer := func(flags uint8, seq, ack uint32) *headertest.Packet {
				p := headertest.TCP(dst, src, flags)
				p.Seq, p.Ack = seq, ack
				return p
			}
			pass := func(p *headertest.Packet) modelSegment {
				t.Helper()
				l.send(0, p)
				frame, _ := l.out(g.nic)
				return readSegment(frame)
			}
			pass(fromClient(headertest.ACK, first, first, ""))
			pass(answer(headertest.ACK, first, first+28))
			pass(fromClient(headertest.RST, first, 0, ""))
			pass(fromClient(headertest.SYN, isn, 0, ""))
			pass(fromClient(headertest.ACK, first, first, "x")) // the flow forgets the SYN
			l.send(0, answer(headertest.SYN|headertest.ACK, 777, isn+1))
			if isn == headertest.ISN {
				l.nothing(g.nic, g.host)
			} else { // the number identifies the SYN that it answers
				l.out(g.nic)
				pass(fromClient(headertest.RST, isn+1, 0, ""))
			}
			pass(fromClient(headertest.SYN, isn, 0, ""))
			if s := pass(answer(headertest.SYN|headertest.ACK, 888, isn+1)); s.seq != 888 || s.ack != isn+1 {
				t.Fatalf("the SYN-ACK left as %+v", s)
			}
			l.send(0, fromClient(headertest.ACK, isn+1-28, 889, "evil"))
			for frame, ok := g.nic.Take(nil); ok; frame, ok = g.nic.Take(nil) {
				if s := readSegment(frame); s.seq != isn+1 || !isHeader(frame) {
					t.Fatalf("the backend got %+v", s)
				}
			}
			if s := pass(fromClient(headertest.ACK, isn+1, 889, "")); s.seq != isn+1 ||
				!bytes.Equal(s.data, wantHeader(join(client4, 40000), join(vip4, 80))) {
				t.Errorf("first came %+v", s)
			}
			s := pass(fromClient(headertest.ACK, isn+1, 889, "data"))
			if s.seq != isn+1+28 || string(s.data) != "data" {
				t.Errorf("the data left as %+v", s)
			}
			l.nothing(g.nic, g.host)
		})
	}
}

// TestProxyDamaged: a segment with a bad checksum does not become the header, whose checksum would
// be good, and does not count as its acknowledgement. A damaged SYN-ACK is dropped.
func TestProxyDamaged(t *testing.T) {
	const first = headertest.ISN + 1
	l := newLab(t, labConfig{edit: proxied})
	g := l.workers[0]
	src, dst := l.proxyHandshake(t)
	l.send(0, fromClient(headertest.ACK, first, first, ""))
	l.out(g.nic)
	acked := headertest.TCP(dst, src, headertest.ACK)
	acked.Ack = first + 28
	for name, p := range map[string]*headertest.Packet{
		"the client's ACK":      fromClient(headertest.ACK, first, first, ""),
		"the client's RST":      fromClient(headertest.RST, first, 0, ""),
		"the backend's ACK":     headertest.TCP(dst, src, headertest.ACK),
		"its acknowledging ACK": acked,
	} {
		g.nic.Inject(damage(p.Bytes()))
		l.step(time.Microsecond)
		frame, ok := g.nic.Take(nil)
		if !ok || isHeader(frame) || headertest.Verify(frame) == nil {
			t.Errorf("%s left as %x", name, frame)
		}
		l.nothing(g.nic, g.host)
	}
	l.send(0, fromClient(headertest.ACK, first, first, ""))
	if frame, _ := l.out(g.nic); !isHeader(frame) {
		t.Errorf("%x, want the header: it is not acknowledged", frame)
	}
	l.send(0, fromClient(headertest.SYN, first+999, 0, ""))
	l.out(g.nic)
	answer := headertest.TCP(dst, src, headertest.SYN|headertest.ACK)
	answer.Ack = first + 1000
	g.nic.Inject(damage(answer.Bytes()))
	l.step(time.Microsecond)
	l.nothing(g.nic, g.host)
	l.wantDrop(reason.ProxyHandshake, 1)
}

// TestProxyNoLoop: a backend that must refuse the header answers each one with an ACK. Such an ACK
// goes to the client; it does not become the header again.
func TestProxyNoLoop(t *testing.T) {
	const first = headertest.ISN + 1
	l := newLab(t, labConfig{edit: proxied})
	g := l.workers[0]
	src, dst := l.proxyHandshake(t)
	l.send(0, fromClient(headertest.ACK, first, first, ""))
	l.out(g.nic)
	full := headertest.TCP(dst, src, headertest.ACK)
	frame := full.Bytes()
	closeWindow(frame)
	g.nic.Inject(frame)
	l.step(time.Microsecond)
	frame, h := l.out(g.nic)
	l.wantTuple(&h, join(vip4, 80), join(client4, 40000))
	if s := readSegment(frame); s.ack != first || s.window != 0 {
		t.Errorf("an ACK without a window left as %+v", s)
	}
	for _, seq := range []uint32{first + 1<<16, first - 1} {
		p := headertest.TCP(dst, src, headertest.ACK)
		p.Seq = seq
		l.send(0, p)
		frame, h = l.out(g.nic)
		if l.wantTuple(&h, join(vip4, 80), join(client4, 40000)); isHeader(frame) {
			t.Errorf("an ACK at %#x became the header", seq)
		}
	}
	l.send(0, headertest.TCP(dst, src, headertest.ACK))
	if frame, _ := l.out(g.nic); !isHeader(frame) {
		t.Errorf("%x, want the header", frame)
	}
	l.nothing(g.nic, g.host)
}

// closeWindow sets the window of a TCP segment over IPv4 without options to 0.
func closeWindow(frame []byte) {
	tcp := frame[14+20:]
	sum := uint32(^binary.BigEndian.Uint16(tcp[16:])) + uint32(^binary.BigEndian.Uint16(tcp[14:]))
	tcp[14], tcp[15] = 0, 0
	sum = sum&0xffff + sum>>16
	binary.BigEndian.PutUint16(tcp[16:], ^uint16(sum))
}

// TestProxyFragments: the first fragment of a segment may have no byte of the client, because all
// are in later ones. Until the header is acknowledged, the client cannot put its own bytes where
// the header belongs in this way either. Later it may fragment its segments.
func TestProxyFragments(t *testing.T) {
	const first = headertest.ISN + 1
	own := string(wantHeader("192.0.2.99:1", join(vip4, 80)))
	l := newLab(t, labConfig{edit: proxied})
	g := l.workers[0]
	src, dst := l.proxyHandshake(t)
	id := uint32(0)
	inParts := func(p *headertest.Packet) (sent int) {
		t.Helper()
		p.TCPOptions = []byte{1, 1, 1, 1} // the first 24 bytes are the TCP header
		id++
		for _, frame := range headertest.Split(p.Bytes(), 24, id) {
			g.nic.Inject(frame)
		}
		l.step(time.Microsecond)
		for {
			frame, ok := g.nic.Take(nil)
			if !ok {
				return sent
			}
			var h header.Packet
			if header.Parse(frame, &h); h.Fragment == header.FirstFragment {
				if s := readSegment(frame); len(s.data) != 0 || s.seq != p.Seq+28 {
					t.Errorf("a first fragment left as %+v", s)
				}
			}
			sent++
		}
	}
	firsts := func() uint64 { return l.drops()[reason.ProxyHandshake.String()] }
	inParts(fromClient(headertest.ACK, first, first, own))
	if n := firsts(); n != 1 {
		t.Errorf("before the handshake is proven: %d first fragments were dropped, want 1", n)
	}
	l.send(0, fromClient(headertest.ACK, first, first, ""))
	if frame, _ := l.out(g.nic); !isHeader(frame) {
		t.Fatalf("%x, want the header", frame)
	}
	inParts(fromClient(headertest.ACK, first-28, first, own))
	if n := firsts(); n != 2 {
		t.Errorf("before the header is acknowledged: %d first fragments were dropped, want 2", n)
	}
	acked := headertest.TCP(dst, src, headertest.ACK)
	acked.Ack = first + 28
	l.send(0, acked)
	l.out(g.nic)
	if n := inParts(fromClient(headertest.ACK, first, first, own)); n != 3 || firsts() != 2 {
		t.Errorf("after that %d fragments left, want 3; drops %v", n, l.drops())
	}
}
