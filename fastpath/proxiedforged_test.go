package fastpath_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"sluice.dev/sluice/fastpath/copies"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
	"sluice.dev/sluice/test/bed/memlink"
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

// proxyFlow is a lab with a flow whose header is acknowledged.
type proxyFlow struct {
	*lab
	nic      *memlink.Link
	src, dst string // towards the backend
	path     string // of the flow table; "": it is on the heap
}

func newProxyFlow(t *testing.T) *proxyFlow {
	t.Helper()
	return acknowledged(t, newLab(t, labConfig{edit: proxied}))
}

// acknowledged opens a connection in a lab, until the backend has acknowledged its header.
func acknowledged(t *testing.T, l *lab) *proxyFlow {
	t.Helper()
	f := &proxyFlow{lab: l, nic: l.workers[0].nic}
	f.src, f.dst = l.proxyHandshake(t)
	f.pass(t, fromClient(headertest.ACK, headertest.ISN+1, headertest.ISN+1, ""))
	f.pass(t, f.fromBackend(headertest.ACK, headertest.ISN+1, headertest.ISN+1+28))
	return f
}

func (f *proxyFlow) fromBackend(flags uint8, seq, ack uint32) *headertest.Packet {
	p := headertest.TCP(f.dst, f.src, flags)
	p.Seq, p.Ack = seq, ack
	return p
}

// pass sends a packet and returns the one packet that leaves.
func (f *proxyFlow) pass(t *testing.T, p *headertest.Packet) modelSegment {
	t.Helper()
	f.send(0, p)
	frame, _ := f.out(f.nic)
	f.nothing(f.nic, f.host())
	return readSegment(frame)
}

func (f *proxyFlow) host() *memlink.Link { return f.workers[0].host }

// TestProxyReopened: a client that opens a new connection on its flow gets a new header, whatever
// it sends meanwhile. The SYN that finds the backend without the connection ends the flow, and the
// client's next one makes another.
func TestProxyReopened(t *testing.T) {
	const first = headertest.ISN + 1
	for name, isn := range map[string]uint32{"the same number": headertest.ISN, "another number": 0xfffffff0} {
		for _, reset := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, RST %v", name, reset), func(t *testing.T) {
				f := newProxyFlow(t)
				if reset {
					f.pass(t, fromClient(headertest.RST, first, 0, ""))
				}
				syn := f.pass(t, fromClient(headertest.SYN, isn, 0, ""))
				if syn.seq == isn || syn.seq == isn+28 {
					t.Errorf("the SYN left with %#x, which its client knows", syn.seq)
				}
				if again := f.pass(t, fromClient(headertest.SYN, isn, 0, "")); again.seq != syn.seq {
					t.Errorf("the repeated SYN left with %#x, the first with %#x", again.seq, syn.seq)
				}
				f.pass(t, fromClient(headertest.ACK, first, first, "x"))
				rst := f.pass(t, f.fromBackend(headertest.SYN|headertest.ACK, 777, syn.seq+1))
				if rst.flags != headertest.RST || rst.seq != syn.seq+1 {
					t.Errorf("the backend's SYN-ACK was answered with %+v", rst)
				}
				f.send(0, fromClient(headertest.ACK, first, first, "late")) // the flow has ended
				f.nothing(f.nic, f.host())
				f.send(0, fromClient(headertest.SYN, isn, 0, ""))
				frame, h := f.out(f.nic)
				from, to := ends(&h.Tuple)
				if f.src, f.dst = from.String(), to.String(); readSegment(frame).seq != isn {
					t.Fatalf("the next SYN left as %x", frame)
				}
				if s := f.pass(t, f.fromBackend(headertest.SYN|headertest.ACK, 888, isn+1)); s.ack != isn+1 {
					t.Fatalf("the SYN-ACK left as %+v", s)
				}
				f.send(0, fromClient(headertest.ACK, isn+1-28, 889, "evil"))
				for frame, ok := f.nic.Take(nil); ok; frame, ok = f.nic.Take(nil) {
					if s := readSegment(frame); s.seq != isn+1 || !isHeader(frame) {
						t.Fatalf("the backend got %+v", s)
					}
				}
				if s := f.pass(t, fromClient(headertest.ACK, isn+1, 889, "")); s.seq != isn+1 ||
					!bytes.Equal(s.data, wantHeader(join(client4, 40000), join(vip4, 80))) {
					t.Errorf("first came %+v", s)
				}
				if s := f.pass(t, fromClient(headertest.ACK, isn+1, 889, "data")); s.seq != isn+1+28 ||
					string(s.data) != "data" {
					t.Errorf("the data left as %+v", s)
				}
			})
		}
	}
}

// TestProxyGivenUp: a client that gives up before its SYN has an answer, and connects from the same
// port with another number, gets the answer to its second SYN at once. The answer to the first one
// does not reach it.
func TestProxyGivenUp(t *testing.T) {
	const second = headertest.ISN + 100_000
	l := newLab(t, labConfig{edit: proxied})
	f := beginProxied(l)
	f.pass(t, fromClient(headertest.SYN, second, 0, ""))
	if s := f.pass(t, f.fromBackend(headertest.SYN|headertest.ACK, 777, second+1)); s.ack != second+1 {
		t.Fatalf("the SYN-ACK left as %+v", s)
	}
	f.send(0, f.fromBackend(headertest.SYN|headertest.ACK, 555, headertest.ISN+1))
	f.nothing(f.nic, f.host())
	s := f.pass(t, fromClient(headertest.ACK, second+1, 778, ""))
	if s.seq != second+1 || !bytes.Equal(s.data, wantHeader(join(client4, 40000), join(vip4, 80))) {
		t.Errorf("first came %+v", s)
	}
}

// TestProxyOneAnswer: of the numbers with which a backend answers a SYN, the client gets the first
// in each answer: it is to know one SYN cookie only.
func TestProxyOneAnswer(t *testing.T) {
	f := beginProxied(newLab(t, labConfig{edit: proxied}))
	for _, isn := range []uint32{777, 999, 777} {
		if s := f.pass(t, f.fromBackend(headertest.SYN|headertest.ACK, isn, headertest.ISN+1)); s.seq != 777 {
			t.Errorf("the SYN-ACK left as %+v", s)
		}
	}
	if s := f.pass(t, fromClient(headertest.ACK, headertest.ISN+1, 778, "")); s.ack != 778 || len(s.data) != 28 {
		t.Errorf("first came %+v", s)
	}
}

// TestProxyForeignAnswer: in a group a SYN-ACK that answers none of the flow's SYNs may answer one
// that passed another gateway. It ends no connection in use, and no flow without an answer, which
// other gateways do not know.
func TestProxyForeignAnswer(t *testing.T) {
	const first = headertest.ISN + 1
	f := acknowledged(t, newLab(t, labConfig{edit: proxied, board: copies.NewBoard(1, func() {})}))
	foreign := f.fromBackend(headertest.SYN|headertest.ACK, 777, 4242)
	f.send(0, foreign)
	f.nothing(f.nic, f.host())
	if s := f.pass(t, fromClient(headertest.ACK, first, first, "data")); s.seq != first+28 {
		t.Errorf("the data left as %+v", s)
	}
	f.step(3 * time.Second)
	if s := f.pass(t, foreign); s.flags != headertest.RST {
		t.Errorf("the backend of an idle connection got %+v", s)
	}
	f = beginProxied(newLab(t, labConfig{edit: proxied, board: copies.NewBoard(1, func() {})}))
	f.send(0, f.fromBackend(headertest.SYN|headertest.ACK, 777, 4242))
	f.nothing(f.nic, f.host())
	if s := f.pass(t, f.fromBackend(headertest.SYN|headertest.ACK, 555, headertest.ISN+1)); s.seq != 555 {
		t.Errorf("the answer to the flow's SYN left as %+v", s)
	}
}

// TestProxyForged: a client that knows each number that a backend of Linux uses, because the
// backend's initial sequence numbers follow a clock, cannot put its own bytes first into a
// connection that the backend begins while the flow is of an earlier one. Neither can it learn the
// number of its SYN from any answer.
func TestProxyForged(t *testing.T) {
	const first = headertest.ISN + 1
	own := string(wantHeader("192.0.2.99:1", join(vip4, 80)))
	for _, isn := range []uint32{first - 1, first - 1000, first + 1000, first + 27} {
		f := newProxyFlow(t)
		f.pass(t, fromClient(headertest.RST, first, 0, ""))
		f.send(0, fromClient(headertest.SYN, isn, 0, ""), fromClient(headertest.ACK, first, first, "x"))
		frame, _ := f.out(f.nic)
		expected := readSegment(frame).seq + 1 // by the backend's new connection
		f.out(f.nic)
		toClient := 0
		attack := func() {
			t.Helper()
			for _, seq := range []uint32{first - 28, first, isn + 1 - 28, isn + 1, first - 1} {
				f.send(0, fromClient(headertest.ACK, seq, 778, own), fromClient(headertest.ACK, seq, 778, ""))
			}
			for frame, ok := f.nic.Take(nil); ok; frame, ok = f.nic.Take(nil) {
				s := readSegment(frame)
				if !isHeader(frame) && expected-s.seq < max(1, uint32(len(s.data))) && s.flags&headertest.RST == 0 {
					t.Errorf("SYN %#x: the backend's first bytes are %+v", isn, s)
				}
				if s.ack == expected || s.ack == expected-28 {
					toClient++
				}
			}
		}
		attack() // before the backend's answers arrive
		for _, answer := range []*headertest.Packet{
			f.fromBackend(headertest.ACK, 778, expected), // to a second SYN
			f.fromBackend(headertest.SYN|headertest.ACK, 777, expected),
			f.fromBackend(headertest.RST|headertest.ACK, 0, expected), // nothing listens
		} {
			f.send(0, answer)
			attack()
		}
		if toClient != 0 {
			t.Errorf("SYN %#x: %d packets show the number of the new connection", isn, toClient)
		}
	}
}

// TestProxyCookies: a backend with SYN cookies keeps no connection until it gets an ACK of one of
// its SYN-ACKs, so no ACK may pass but the header that acknowledges the noted SYN-ACK.
func TestProxyCookies(t *testing.T) {
	const first = headertest.ISN + 1
	own := string(wantHeader("192.0.2.99:1", join(vip4, 80)))
	t.Run("two SYNs", func(t *testing.T) {
		const lower = first - 1000 // the number of the second SYN
		l := newLab(t, labConfig{edit: proxied})
		src, dst := l.proxyHandshake(t)
		f := &proxyFlow{lab: l, nic: l.workers[0].nic, src: src, dst: dst}
		f.pass(t, fromClient(headertest.SYN, lower, 0, ""))
		f.send(0, f.fromBackend(headertest.SYN|headertest.ACK, 777, lower+1))
		f.nic.Take(nil)
		for _, p := range []*headertest.Packet{
			fromClient(headertest.ACK, first, first, ""), fromClient(headertest.ACK, lower+1, 778, ""),
			f.fromBackend(headertest.ACK, first, first), fromClient(headertest.ACK, first-28, first, own),
			fromClient(headertest.ACK, first, first, own),
		} {
			f.send(0, p)
			for frame, ok := f.nic.Take(nil); ok; frame, ok = f.nic.Take(nil) {
				s := readSegment(frame)
				if s.flags&headertest.RST == 0 && !isHeader(frame) && s.seq == first {
					t.Errorf("to the place of the header came %+v", s)
				}
			}
		}
	})
	t.Run("before the proof", func(t *testing.T) {
		l := newLab(t, labConfig{edit: proxied})
		l.proxyHandshake(t)
		l.send(0, fromClient(headertest.ACK, first, first+1, ""))
		l.nothing(l.workers[0].nic)
		l.wantDrop(reason.ProxyHandshake, 1)
	})
	t.Run("acknowledged", func(t *testing.T) { // by another connection, or out of all windows
		l := newLab(t, labConfig{edit: proxied})
		src, dst := l.proxyHandshake(t)
		f := &proxyFlow{lab: l, nic: l.workers[0].nic, src: src, dst: dst}
		f.pass(t, fromClient(headertest.ACK, first, first, ""))
		f.pass(t, f.fromBackend(headertest.ACK, first, first+1<<30))
		f.pass(t, f.fromBackend(headertest.ACK, first-1000, first+28))
		f.send(0, fromClient(headertest.ACK, first-28, first, own))
		f.nothing(f.nic)
	})
}

// beginProxied sends a client's SYN, which the backend has not answered yet.
func beginProxied(l *lab) *proxyFlow {
	f := &proxyFlow{lab: l, nic: l.workers[0].nic}
	l.send(0, fromClient(headertest.SYN, headertest.ISN, 0, ""))
	_, h := l.out(f.nic)
	from, to := ends(&h.Tuple)
	f.src, f.dst = from.String(), to.String()
	return f
}

// TestProxyOldConnection: a backend that answers the SYN with an ACK has another connection. The
// client gets the ACK, to reset that one, and cannot make it the flow's own.
func TestProxyOldConnection(t *testing.T) {
	l := newLab(t, labConfig{edit: proxied})
	f := beginProxied(l)
	if s := f.pass(t, f.fromBackend(headertest.ACK, 500, headertest.ISN+1)); s.seq != 500 {
		t.Errorf("the ACK left as %+v", s)
	}
	f.send(0, fromClient(headertest.ACK, headertest.ISN+1, 500, ""))
	f.nothing(f.nic)
	if s := f.pass(t, fromClient(headertest.RST, headertest.ISN+1, 0, "")); s.flags != headertest.RST {
		t.Errorf("the RST left as %+v", s)
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

// TestProxyComesRound: after 4 GiB the client's bytes and the backend's ACKs have the header's
// numbers again, within the two minutes in which a cookie is valid as well. They pass.
func TestProxyComesRound(t *testing.T) {
	const first = headertest.ISN + 1
	f := newProxyFlow(t)
	for at := uint32(first); at-first < 7<<29; at += 1 << 29 {
		f.pass(t, fromClient(headertest.ACK, at, first+99, "x"))
		f.pass(t, f.fromBackend(headertest.ACK, first+99, at+28))
	}
	f.pass(t, f.fromBackend(headertest.ACK, first+99, first-1))
	if s := f.pass(t, fromClient(headertest.ACK, first-28, first+99, "data")); s.seq != first || s.ack != first+99 {
		t.Errorf("the client's bytes left as %+v", s)
	}
	if s := f.pass(t, f.fromBackend(headertest.ACK, first+99, first+4)); s.ack != first+4-28 {
		t.Errorf("the backend's ACK left as %+v", s)
	}
}

// TestProxyBreaksCookies: in no state of the flow, and in no process, does a segment leave but the
// header whose acknowledgement number is a SYN cookie for its sequence number. A backend that has
// the connection gets the bytes and the acknowledgement all the same.
func TestProxyBreaksCookies(t *testing.T) {
	const first = headertest.ISN + 1
	const ack, fin, rst = headertest.ACK, headertest.FIN | headertest.ACK, headertest.RST
	send := func(packets ...func(f *proxyFlow) *headertest.Packet) func(*testing.T, *proxyFlow) {
		return func(t *testing.T, f *proxyFlow) {
			for _, p := range packets {
				f.pass(t, p(f))
			}
		}
	}
	client := func(flags uint8, seq, ack uint32, data string) func(*proxyFlow) *headertest.Packet {
		return func(*proxyFlow) *headertest.Packet { return fromClient(flags, seq, ack, data) }
	}
	backend := func(flags uint8, seq, ack uint32) func(*proxyFlow) *headertest.Packet {
		return func(f *proxyFlow) *headertest.Packet { return f.fromBackend(flags, seq, ack) }
	}
	closed := []func(*proxyFlow) *headertest.Packet{client(fin, first, first, ""), backend(fin, first, first+29),
		client(ack, first+1, first+1, "")}
	for name, before := range map[string]func(*testing.T, *proxyFlow){
		"pending":             nil,
		"open":                send(),
		"the client's RST":    send(client(rst, first, 0, "")),
		"the backend's RST":   send(backend(rst|ack, first, first+28)),
		"an RST, and data":    send(client(rst, first, 0, ""), client(ack, first, first, "x")),
		"an RST, and a reply": send(client(rst, first, 0, ""), backend(ack, first, first+28)),
		"closed":              send(closed...),
		"FINs revoked":        send(append(closed, client(ack, first, first, "x"))...),
		"another process":     func(t *testing.T, f *proxyFlow) { f.reboot(t) },
		"another process, an RST": func(t *testing.T, f *proxyFlow) {
			f.pass(t, fromClient(rst, first, 0, ""))
			f.reboot(t)
		},
	} {
		for _, distance := range []uint32{0, 28, 56, 1028, 1 << 20} {
			t.Run(fmt.Sprintf("%s, at %d", name, distance), func(t *testing.T) {
				f := proxyFlowInFile(t)
				if before != nil {
					f.pass(t, f.fromBackend(ack, first, first+28))
					before(t, f)
				}
				for delta := -4; delta <= 4; delta++ {
					for _, data := range []string{"data", ""} {
						seq := first + distance - 28
						p := fromClient(ack, seq, first+distance+uint32(delta), data)
						f.send(0, p)
						f.wantNoCookie(t, p, delta != -4 && delta != 4, before == nil && distance < 28 && data != "")
					}
				}
			})
		}
	}
}

// wantNoCookie checks the frames that leave after a client's segment p. cookie: the acknowledgement
// number of p is a SYN cookie for its sequence number. lost: p is dropped.
func (f *proxyFlow) wantNoCookie(t *testing.T, p *headertest.Packet, cookie, lost bool) {
	t.Helper()
	const first = headertest.ISN + 1
	seq, headers, others := p.Seq+28, 0, 0
	for frame, ok := f.nic.Take(nil); ok; frame, ok = f.nic.Take(nil) {
		s := readSegment(frame)
		if isHeader(frame) {
			if headers++; s.seq != first || cookie && s.ack != first {
				t.Errorf("the header left as %+v", s)
			}
			continue
		}
		others++
		switch more, less := s.seq-seq, p.Ack-s.ack; {
		case string(s.data) != string(p.Payload), more > 7, less > 7, more != 0 && len(s.data) > 0,
			less != 0 && len(s.data) == 0, !cookie && more+less != 0:
			t.Errorf("%+v left as %+v", p, s)
		case s.ack-s.seq+3 <= 6:
			t.Errorf("%+v left as %+v, which begins a connection", p, s)
		}
	}
	becameHeader := p.Ack == first && len(p.Payload) == 0 && headers == 1
	if lost != (others == 0) && !becameHeader || others > 1 || cookie && len(p.Payload) == 0 && headers != 1 {
		t.Errorf("for %+v %d segments and %d headers left", p, others, headers)
	}
}

// proxyFlowInFile returns a flow whose header is sent, in a table that outlives its process.
func proxyFlowInFile(t *testing.T) *proxyFlow {
	t.Helper()
	f := &proxyFlow{path: filepath.Join(t.TempDir(), "flows")}
	f.boot(t)
	f.src, f.dst = f.proxyHandshake(t)
	f.pass(t, fromClient(headertest.ACK, headertest.ISN+1, headertest.ISN+1, ""))
	return f
}

func (f *proxyFlow) boot(t *testing.T) {
	t.Helper()
	file, err := flowtable.OpenFile(f.path, flowtable.Config{IPv4Flows: 256, IPv6Flows: 256,
		Timeouts: flowtable.DefaultTimeouts()}, flowtable.Time(time.Hour), flowtable.ResizeFit)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() }) // after its workers
	f.lab = newLab(t, labConfig{edit: proxied, table: file.Table, now: uint64(time.Hour)})
	f.nic = f.workers[0].nic
}

// reboot ends the process as kill -9 does, and starts another one with a copy of the table's file.
func (f *proxyFlow) reboot(t *testing.T) {
	t.Helper()
	b, err := os.ReadFile(f.path)
	if err != nil {
		t.Fatal(err)
	}
	f.path += "+"
	if err := os.WriteFile(f.path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	f.boot(t)
}
