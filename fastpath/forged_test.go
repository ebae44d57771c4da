package fastpath_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
)

const (
	tcpSYN, tcpACK = headertest.SYN, headertest.ACK
	tcpFIN, tcpRST = headertest.FIN, headertest.RST
)

// tcpBackend answers like Linux TCP in SYN-RECV (tcp_check_req, net/ipv4/tcp_minisocks.c): it
// answers a SYN with another sequence number with a challenge ACK, and an ACK of another number
// with an RST. It ignores a segment with a bad checksum (tcp_v4_rcv).
type tcpBackend struct {
	t    testing.TB
	of   map[netip.AddrPort]*tcpPeer // by source of the received packets
	next uint32                      // initial sequence number
}

type tcpPeer struct {
	isn, client uint32 // initial sequence numbers
	open        bool
}

func newTCPBackend(t testing.TB) *tcpBackend {
	return &tcpBackend{t: t, of: map[netip.AddrPort]*tcpPeer{}, next: 3_999_999_999}
}

// receive takes a frame and returns the answer, or nil.
func (b *tcpBackend) receive(frame []byte) *headertest.Packet {
	b.t.Helper()
	var p header.Packet
	if r := header.Parse(frame, &p); r != reason.None {
		b.t.Fatalf("%v: %x", r, frame)
	}
	if headertest.Verify(frame) != nil {
		return nil
	}
	src, dst := ends(&p.Tuple)
	h := frame[p.L4:]
	seq, ack, payload := binary.BigEndian.Uint32(h[4:]), binary.BigEndian.Uint32(h[8:]), uint32(p.End-p.L4)-20
	answer := func(flags uint8, seq, ack uint32) *headertest.Packet {
		a := headertest.TCP(dst.String(), src.String(), flags)
		a.Seq, a.Ack = seq, ack
		return a
	}
	peer := b.of[src]
	switch {
	case p.TCPFlags&tcpRST != 0:
		if peer != nil && seq == peer.client+1 {
			delete(b.of, src)
		}
	case peer == nil && p.TCPFlags == tcpSYN:
		b.next += 1_000_003
		b.of[src] = &tcpPeer{isn: b.next, client: seq}
		return answer(tcpSYN|tcpACK, b.next, seq+1)
	case peer == nil:
		return answer(tcpRST, ack, 0)
	case p.TCPFlags == tcpSYN && seq == peer.client && !peer.open:
		return answer(tcpSYN|tcpACK, peer.isn, seq+1)
	case p.TCPFlags&tcpSYN != 0:
		return answer(tcpACK, peer.isn+1, peer.client+1)
	case !peer.open && ack != peer.isn+1:
		return answer(tcpRST, ack, 0)
	default:
		peer.open = true
		if payload > 0 {
			return answer(tcpACK, peer.isn+1, seq+payload)
		}
	}
	return nil
}

// damage makes a frame's transport checksum wrong.
func damage(frame []byte) []byte {
	var p header.Packet
	header.Parse(frame, &p)
	at := p.L4 + 16
	if p.Tuple.Proto == header.ProtoSCTP {
		at = p.L4 + 8
	}
	frame[at] ^= 0x55
	return frame
}

// exchange sends frames of a client at once, gives the forwarded packets to the backend, and its
// answers to the client. It returns the last packet that the client gets, or nil.
func (l *lab) exchange(b *tcpBackend, frames ...[]byte) (back []byte) {
	l.t.Helper()
	g := l.workers[0]
	for _, frame := range frames {
		if !g.nic.Inject(frame) {
			l.t.Fatal("the link took no more packets")
		}
	}
	l.step(time.Microsecond)
	var answers []*headertest.Packet
	for sent, ok := g.nic.Take(nil); ok; sent, ok = g.nic.Take(nil) {
		if a := b.receive(sent); a != nil {
			answers = append(answers, a)
		}
	}
	if len(answers) == 0 {
		return nil
	}
	l.send(0, answers...)
	for frame, ok := g.nic.Take(nil); ok; frame, ok = g.nic.Take(nil) {
		back = frame
	}
	return back
}

// connect makes a connection that sends data both ways, and reports whether that succeeded.
func (l *lab) connect(b *tcpBackend, client, vip string) bool {
	l.t.Helper()
	back := l.exchange(b, headertest.TCP(client, vip, tcpSYN).Bytes())
	if back == nil {
		return false
	}
	var p header.Packet
	header.Parse(back, &p)
	ack := headertest.TCP(client, vip, tcpACK)
	ack.Ack = binary.BigEndian.Uint32(back[p.L4+4:]) + 1
	if p.TCPFlags != tcpSYN|tcpACK || l.exchange(b, ack.Bytes()) != nil {
		return false
	}
	ack.Payload = []byte("GET")
	if back = l.exchange(b, ack.Bytes()); back == nil {
		return false
	}
	header.Parse(back, &p)
	return p.TCPFlags == tcpACK
}

// pastHalfOpen counts the flows beyond the half-open states.
func (l *lab) pastHalfOpen() (n uint64) {
	c := l.table.Counts()
	for s := flowtable.Unconfirmed; s < flowtable.NumStates; s++ {
		if s != flowtable.Closed {
			n += c.States[s]
		}
	}
	return n
}

// TestBlindSenderHoldsNoPort: a sender that sees no answers sends a SYN; an ACK with a bad
// checksum, and then a SYN with another sequence number, which the backend challenges; the real
// owner of the address sends an RST; the sender sends another bad ACK, with data. No packet brings
// a flow past the half-open states. If 30,000 such packets have taken all of a backend's ports,
// honest clients still get a port at once.
func TestBlindSenderHoldsNoPort(t *testing.T) {
	for family, c := range map[string]struct{ vip, blind, honest string }{
		"IPv4": {vip4, "198.18.%d.%d", "198.51.100.9"},
		"IPv6": {vip6, "2001:db8:bad:%x::%x", "2001:db8:c::9"},
	} {
		t.Run(family, func(t *testing.T) {
			l := newLab(t, labConfig{flows: 8192, snat: services.PortRange{First: 20000, Count: 1000}})
			b, vip, challenged := newTCPBackend(t), join(c.vip, 80), 0
			for n := range 6000 {
				client := join(fmt.Sprintf(c.blind, n>>8, n&255), 40000)
				l.step(2 * time.Millisecond)
				l.exchange(b, headertest.TCP(client, vip, tcpSYN).Bytes())
				second := headertest.TCP(client, vip, tcpSYN)
				second.Seq += 77777
				blind := headertest.TCP(client, vip, tcpACK)
				blind.Ack = uint32(n) * 2654435761
				back := l.exchange(b, second.Bytes(), damage(blind.Bytes()))
				if back != nil { // the client knows nothing of this
					challenged++
					rst := headertest.TCP(client, vip, tcpRST)
					rst.Seq = headertest.ISN + 1
					l.exchange(b, rst.Bytes())
				}
				blind.Payload = []byte("x")
				l.exchange(b, damage(blind.Bytes()))
				l.exchange(b, blind.Bytes())
			}
			if n := l.pastHalfOpen(); n != 0 || challenged < 1000 {
				t.Errorf("%d flows are past the half-open states (%v), %d challenged", n, l.table.Counts().States,
					challenged)
			}
			l.step(500 * time.Millisecond)
			for n := range uint16(20) {
				l.step(10 * time.Millisecond)
				if !l.connect(b, join(c.honest, 50000+n), vip) {
					t.Errorf("honest connection %d failed: drops %v", n, l.drops())
				}
			}
			if n := l.table.Counts().States[flowtable.Established]; n != 20 {
				t.Errorf("%d flows are established, want 20", n)
			}
		})
	}
}

// TestRefusedBlindACKLeavesTheHandshake: a blind ACK, which the backend answers with an RST,
// arrives before and after the SYN-ACK. The client's handshake still completes, and data flow in
// both directions.
func TestRefusedBlindACKLeavesTheHandshake(t *testing.T) {
	for name, early := range map[string]bool{"before the SYN-ACK": true, "behind the SYN-ACK": false} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, labConfig{})
			g, client, vip := l.workers[0], join(client4, 40000), join(vip4, 80)
			_, snat, be := l.open(client, vip)
			pass := func(p *headertest.Packet) {
				t.Helper()
				l.send(0, p)
				l.out(g.nic)
			}
			rst := headertest.TCP(be, snat, tcpRST)
			if early {
				pass(rst)
			}
			pass(headertest.TCP(be, snat, tcpSYN|tcpACK))
			if !early {
				blind := headertest.TCP(client, vip, tcpACK)
				blind.Ack = 12345
				pass(blind)
				pass(rst)
			}
			pass(headertest.TCP(client, vip, tcpACK))
			for range 3 {
				l.step(11 * time.Second)
				data, answer := headertest.TCP(client, vip, tcpACK), headertest.TCP(be, snat, tcpACK)
				data.Payload, answer.Payload = []byte("request"), []byte("response")
				pass(data)
				pass(answer)
			}
			if n := l.table.Counts().States[flowtable.Established]; n != 1 {
				t.Errorf("the connection is not established: %v", l.table.Counts().States)
			}
		})
	}
}

// forgedStep is a segment of a connection that would change its flow.
type forgedStep struct {
	name  string
	flags uint8
	data  bool
	state flowtable.State // after the good one
}

// TestBadChecksumsChangeNothing: a segment with a bad checksum is forwarded with a bad checksum,
// and changes no flow; the same segment with a good checksum does. This also holds for segments in
// several frames, and over IPv6.
func TestBadChecksumsChangeNothing(t *testing.T) {
	for _, c := range []struct {
		name, client, vip string
		payload           int
	}{
		{"IPv4", join(client4, 40000), join(vip4, 80), 1},
		{"IPv6", join(client6, 40000), join(vip6, 80), 1},
		{"several frames", join(client4, 40000), join(vip4, 80), 5001},
		{"several frames, IPv6", join(client6, 40000), join(vip6, 80), 5000},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, g := longLab(t, nil)
			_, snat, be := l.open(c.client, c.vip)
			l.send(0, headertest.TCP(be, snat, tcpSYN|tcpACK))
			l.out(g.nic)
			for i, s := range []forgedStep{
				{"the client's ACK", tcpACK, false, flowtable.Established},
				{"a FIN", tcpFIN | tcpACK, true, flowtable.FinClient},
				{"data behind it", tcpACK, true, flowtable.Established},
				{"a FIN without data", tcpFIN | tcpACK, false, flowtable.FinClient},
			} {
				p := headertest.TCP(c.client, c.vip, s.flags)
				if s.data {
					p.Payload = []byte(text(c.payload))
				}
				before := l.table.Counts().States
				g.nic.Inject(damage(p.Bytes()))
				l.step(time.Microsecond)
				frame, ok := g.nic.Take(nil)
				if !ok {
					t.Fatalf("%s: was not forwarded", s.name)
				}
				if err := headertest.Verify(frame); err == nil {
					t.Errorf("%s: was repaired", s.name)
				}
				if l.table.Counts().States != before || g.stats.WrongChecksums.Load() != uint64(i+1) {
					t.Fatalf("%s: %v, was %v; %d wrong checksums", s.name, l.table.Counts().States, before,
						g.stats.WrongChecksums.Load())
				}
				l.send(0, p)
				l.out(g.nic)
				if l.table.Counts().States[s.state] != 1 || g.stats.WrongChecksums.Load() != uint64(i+1) {
					t.Fatalf("%s: the good one: %v, want %v", s.name, l.table.Counts().States, s.state)
				}
			}
		})
	}
}

// TestForgedFINIsTakenBack: a forged FIN with a good checksum shortens a connection's timeout only
// until the client's next data: afterwards the connection survives two idle hours.
func TestForgedFINIsTakenBack(t *testing.T) {
	l := newLab(t, labConfig{})
	g, client, vip := l.workers[0], join(client4, 40000), join(vip4, 80)
	if b := newTCPBackend(t); !l.connect(b, client, vip) {
		t.Fatalf("no connection: %v", l.drops())
	}
	for range 3 {
		fin := headertest.TCP(client, vip, tcpFIN|tcpACK)
		fin.Seq += 99999
		data := headertest.TCP(client, vip, tcpACK)
		data.Payload = []byte("more")
		l.send(0, fin, data)
		l.out(g.nic)
		l.out(g.nic)
		l.step(2 * time.Hour)
		l.send(0, data)
		if _, p := l.out(g.nic); l.table.Counts().States[flowtable.Established] != 1 {
			t.Fatalf("%v after two hours, to %v", l.table.Counts().States, p.Tuple.Dst)
		}
	}
}

// TestBadCRCsChangeNothing: SCTP packets with a bad CRC, in one frame or several, change no flow.
func TestBadCRCsChangeNothing(t *testing.T) {
	l := newLab(t, labConfig{long: true, edit: func(b *services.Builder) {
		both(b, 30, ruleVIP, header.ProtoSCTP, set(b, 30, 30, header.ProtoSCTP, backend4))
	}})
	l.mtu(9000, 9000)
	g, client, vip := l.workers[0], join(client4, 40000), join(ruleVIP, 80)
	l.send(0, headertest.SCTP(client, vip, header.SCTPInit))
	_, p := l.out(g.nic)
	src, dst := ends(&p.Tuple)
	for i, s := range []struct {
		packet *headertest.Packet
		state  flowtable.State
	}{
		{headertest.SCTP(dst.String(), src.String(), header.SCTPInitAck), flowtable.SynRecv},
		{headertest.SCTP(client, vip, header.SCTPCookieEcho), flowtable.Unconfirmed},
		{headertest.SCTP(dst.String(), src.String(), header.SCTPCookieAck), flowtable.Established},
		{headertest.SCTP(client, vip, header.SCTPShutdown), flowtable.FinClient},
	} {
		if s.packet.Chunk == header.SCTPCookieEcho {
			s.packet.Payload = []byte(text(5000))
		}
		before := l.table.Counts().States
		g.nic.Inject(damage(s.packet.Bytes()))
		l.step(time.Microsecond)
		if _, ok := g.nic.Take(nil); !ok || l.table.Counts().States != before ||
			g.stats.WrongChecksums.Load() != uint64(i+1) {
			t.Fatalf("chunk %d with a bad CRC: forwarded %v, %v, was %v", s.packet.Chunk, ok, l.table.Counts().States,
				before)
		}
		l.send(0, s.packet)
		l.out(g.nic)
		if l.table.Counts().States[s.state] != 1 {
			t.Fatalf("chunk %d: %v, want %v", s.packet.Chunk, l.table.Counts().States, s.state)
		}
	}
}

// TestUnfinishedChecksums: a stack that leaves checksums to a device sends the sum of the
// pseudo-header in their place, and for SCTP no CRC. Such segments change no flow, and are counted
// separately.
func TestUnfinishedChecksums(t *testing.T) {
	l := newLab(t, labConfig{edit: func(b *services.Builder) {
		both(b, 30, ruleVIP, header.ProtoSCTP, set(b, 30, 30, header.ProtoSCTP, backend4))
	}})
	g := l.workers[0]
	for i, packet := range []*headertest.Packet{
		headertest.TCP(join(client4, 40000), join(vip4, 80), tcpSYN),
		headertest.TCP(join(client6, 40000), join(vip6, 80), tcpSYN),
		headertest.SCTP(join(client4, 40000), join(ruleVIP, 80), header.SCTPInit),
	} {
		l.send(0, packet)
		_, p := l.out(g.nic)
		src, dst := ends(&p.Tuple)
		answer := headertest.TCP(dst.String(), src.String(), tcpSYN|tcpACK)
		if p.Tuple.Proto == header.ProtoSCTP {
			answer = headertest.SCTP(dst.String(), src.String(), header.SCTPInitAck)
		}
		frame := answer.Bytes()
		header.Parse(frame, &p)
		if p.Tuple.Proto == header.ProtoSCTP {
			clear(frame[p.L4+8 : p.L4+12])
		} else {
			a, b := p.Tuple.Src.Sum(), p.Tuple.Dst.Sum()
			sum := uint32(a) + uint32(b) + header.ProtoTCP + uint32(p.End-p.L4)
			for sum>>16 != 0 {
				sum = sum>>16 + sum&0xffff
			}
			binary.BigEndian.PutUint16(frame[p.L4+16:], uint16(sum))
		}
		before := l.table.Counts().States
		g.nic.Inject(frame)
		l.step(time.Microsecond)
		if _, ok := g.nic.Take(nil); !ok || l.table.Counts().States != before {
			t.Errorf("packet %d: forwarded %v, %v, was %v", i, ok, l.table.Counts().States, before)
		}
		if n, w := g.stats.UnfinishedChecksums.Load(), g.stats.WrongChecksums.Load(); n != uint64(i+1) || w != 0 {
			t.Errorf("packet %d: %d unfinished, %d wrong", i, n, w)
		}
	}
	if strings.Contains(fmt.Sprint(l.drops()), ":") {
		t.Errorf("drops %v", l.drops())
	}
}
