package flowtable

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"sluice.dev/sluice/flowtable/conn"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/test/bed/size"
)

// oracle is the table made of plain maps: slow and simple, for one thread.
type oracle struct {
	byTuple  map[header.Tuple]*oracleFlow
	timeouts Timeouts
}

type oracleFlow struct {
	client, reply header.Tuple
	ref           Ref
	state         State
	notes         conn.Meta
	isn           uint32 // the backend's
	seen          Time   // of the last refresh
}

func (o *oracle) timeout(f *oracleFlow) time.Duration {
	t := &o.timeouts
	normal := map[State]time.Duration{
		SynSeen: t.SynSeen, SynRecv: t.SynAckSeen, Unconfirmed: t.Established, Established: t.Established,
		FinClient: t.Fin, FinBackend: t.Fin,
		LastAckClient: t.LastAck, LastAckBackend: t.LastAck, TimeWaitClient: t.TimeWaitClient,
		TimeWaitBackend: t.TimeWaitBackend, Closed: t.Reset, UDPNew: t.UDPUnreplied, UDPReplied: t.UDPUnreplied,
		UDPAssured: t.UDPReplied, ICMPEcho: t.ICMP,
	}[f.state]
	switch {
	case f.notes.Reset() && (f.state == Established || f.state == Unconfirmed):
		return min(normal, t.ResetEstablished)
	case f.notes.Reset():
		return min(normal, t.Reset)
	}
	return normal
}

// find returns the flow of a tuple if it has not expired. Ages are in whole ticks, and include the
// second by which a refresh may be late.
func (o *oracle) find(t *header.Tuple, now Time) *oracleFlow {
	f := o.byTuple[*t]
	if f == nil {
		return nil
	}
	age := time.Duration(now/Time(conn.Tick)-f.seen/Time(conn.Tick)) * conn.Tick
	if age > o.timeout(f)+time.Second {
		o.remove(f)
		return nil
	}
	return f
}

func (o *oracle) remove(f *oracleFlow) {
	delete(o.byTuple, f.client)
	delete(o.byTuple, f.reply)
}

func (o *oracle) create(n *NewFlow, ref Ref, reply header.Tuple, now Time) *oracleFlow {
	f := &oracleFlow{client: n.Client, reply: reply, ref: ref, state: conn.Initial(n.Client.Proto), seen: now}
	if n.Client.Proto == header.ProtoUDP {
		f.notes = conn.Born(header.ProtoUDP, 0) & conn.MetaQuestions
	}
	o.byTuple[f.client], o.byTuple[f.reply] = f, f
	return f
}

// freePort returns the port that the table should find for the flow, by trying the ports in order.
// First it tries ports that do not rest, according to rests; then, for TCP, resting ports; then it
// ends the first flow in the order of shedding and takes that flow's port.
func (o *oracle) freePort(n *NewFlow, rests func(*header.Tuple) bool, now Time) (port uint16, ok bool) {
	var holders []*oracleFlow
	for _, wake := range []bool{false, true} {
		if wake && !header.Stateful(n.Client.Proto) {
			break
		}
		for try := range maxPortTries {
			i := try
			if n.SourcePort != 0 {
				i--
			}
			if i >= int(n.Ports.Count) {
				break
			}
			port := n.SourcePort
			if i >= 0 {
				port = n.Ports.First + uint16((int(n.Ports.Start)+i*int(n.Ports.Stride))%int(n.Ports.Count))
			}
			reply := header.Tuple{Src: n.Backend, SrcPort: n.BackendPort, Dst: n.Source, DstPort: port,
				Proto: n.Client.Proto, V6: n.Client.V6}
			if reply.Proto == header.ProtoICMP || reply.Proto == header.ProtoICMPv6 {
				reply.SrcPort = port
			}
			if !wake && i >= 0 && rests(&reply) {
				continue
			}
			f := o.find(&reply, now)
			if f == nil {
				return port, true
			}
			if !slices.Contains(holders, f) {
				holders = append(holders, f)
			}
		}
	}
	var weakest *oracleFlow
	for _, f := range holders {
		if weakest == nil || f.before(weakest, holders, now) {
			weakest = f
		}
	}
	if weakest == nil || weakest.rank(now) == 0 {
		return 0, false
	}
	port = weakest.reply.DstPort
	o.remove(weakest)
	return port, true
}

func (f *oracleFlow) meta() conn.Meta {
	return conn.MakeMeta(f.state, f.client.Proto, f.seen.Ticks()) | f.notes
}

func (f *oracleFlow) idle(now Time) time.Duration {
	return time.Duration(now/Time(conn.Tick)-f.seen/Time(conn.Tick)) * conn.Tick
}

// rank is higher for a flow that loses its port sooner; 0 means never.
func (f *oracleFlow) rank(now Time) int {
	if f.awaitsAnswer(now) {
		return 0
	}
	young := f.idle(now) < time.Second/2
	if f.notes.Reset() && f.state >= Unconfirmed && f.state <= LastAckBackend {
		return 5 * b2i(f.idle(now) >= time.Second)
	}
	switch f.state {
	case Closed, TimeWaitClient, TimeWaitBackend:
		return 6
	case Established, FinClient, FinBackend:
		return 5 * b2i(f.meta().BothFins() && f.idle(now) >= time.Second)
	case UDPNew, UDPReplied:
		return 4
	case SynSeen, SynRecv:
		if !young {
			return 3
		}
	case Unconfirmed:
		if !young {
			return 2
		}
	case UDPAssured:
		if f.idle(now) > min(4*f.used(), 120)*time.Second {
			return 1
		}
	}
	return 0
}

// awaitsAnswer reports whether the backend of a UDP flow may still answer.
func (f *oracleFlow) awaitsAnswer(now Time) bool {
	switch f.state {
	case UDPNew:
		return f.idle(now) < 31*time.Second
	case UDPReplied, UDPAssured:
		if f.notes&conn.MetaQuestions == conn.AllAnswered<<conn.MetaQuestionsShift {
			return f.idle(now) < 1100*time.Millisecond
		}
		return f.idle(now) < 31*time.Second
	}
	return false
}

func (f *oracleFlow) used() time.Duration { return time.Duration(f.notes.UsedSeconds()) }

// held returns how many of the holders have clients in the flow's prefix.
func (f *oracleFlow) held(holders []*oracleFlow) (n int) {
	prefix := func(f *oracleFlow) string {
		if f.client.V6 {
			return string(f.client.Src[:7])
		}
		return string(f.client.Src[:15])
	}
	for _, g := range holders {
		n += b2i(prefix(f) == prefix(g))
	}
	return n
}

func (f *oracleFlow) before(g *oracleFlow, holders []*oracleFlow, now Time) bool {
	a, b := f.rank(now), g.rank(now)
	if a == b && f.state == UDPAssured {
		if f.used() != g.used() {
			return f.used() < g.used()
		}
		if n, most := f.held(holders), g.held(holders); n != most {
			return n > most
		}
	}
	return a > b || a == b && f.idle(now) > g.idle(now)
}

// observe mirrors the state machine. It uses meta.observe, which state_test.go compares with the
// reference table.
func (o *oracle) observe(f *oracleFlow, side Side, s Segment, now Time) {
	m := f.meta()
	n := m.Observe(side, s, f.isn, now.Ticks())
	ack := s.Flags&header.TCPACK != 0 || s.Flags&(header.TCPFIN|header.TCPSYN) == header.TCPFIN
	if n.Provable() && side == ReplySide && (f.state == SynSeen || ack && s.Flags&header.TCPRST == 0) {
		if f.isn = s.Seq; !s.SYNACK() {
			f.isn--
		}
	}
	if n != m {
		f.state, f.notes = n.State(), n&(conn.MetaNotes|conn.MetaUsed)
		if n.Seen() != m.Seen() {
			f.seen = now
		}
	}
}

// Random operations on few clients and few ports, so that all combinations occur: the table and the
// maps must agree on every result.
func TestOracle(t *testing.T) {
	rnd := rand.New(rand.NewPCG(testSeed(t), 1))
	protos := []uint8{header.ProtoTCP, header.ProtoUDP, header.ProtoICMP}
	tb, h := testTableOf(t, Config{IPv4Flows: 4000, IPv6Flows: 4000, HalfOpen: 4000, Timeouts: DefaultTimeouts()})
	o := oracle{byTuple: map[header.Tuple]*oracleFlow{}, timeouts: DefaultTimeouts()}
	now := bootTime
	rests := func(t *header.Tuple) bool {
		if tb.restingOf(t.Proto).has(h.Hash(t), now.Ticks()) {
			return true
		}
		var k key
		k.from(t)
		a := h.arena(t.V6)
		slot := a.find(h.Hash(t), &k)
		if slot == 0 {
			return false
		}
		m := a.flow(slotIndex(slot)).load() // an expired holder that no sweep has ended
		return tb.lifetimes.Expired(m, now.Ticks()) && tb.restsUntil(m, now.Ticks()).Since(now.Ticks()) > 0
	}
	operations := 300_000
	if testing.Short() || size.Race {
		operations = 10_000
	}
	for op := range operations {
		if op%50 == 0 {
			now += Time(rnd.IntN(int(2 * second)))
			h.Enter(now)
			h.Sweep(now, rnd.IntN(500))
		}
		client := uint32(rnd.IntN(500))
		n := newFlow(protos[rnd.IntN(3)], rnd.IntN(2) == 0, client)
		n.Client.Src[6+8*b2i(!n.Client.V6)] = byte(client % 5) // the last byte of its /56 or /24
		n.Ports = Ports{First: 5000, Count: 40, Start: uint16(rnd.IntN(40)), Stride: 7}
		n.Backend = addrN(n.Client.V6, 11, uint32(rnd.IntN(3)))
		if rnd.IntN(4) == 0 {
			n.SourcePort = 5000 + uint16(rnd.IntN(40))
		}
		want := o.find(&n.Client, now)
		got, side := h.lookup(&n.Client, now)
		if (want == nil) != (got == 0) || want != nil && (got != want.ref || side != ClientSide) {
			t.Fatalf("operation %d: Lookup gave %d side %d, the oracle has %+v", op, got, side, want)
		}
		if want != nil {
			if r, s := h.lookup(&want.reply, now); r != want.ref || s != ReplySide {
				t.Fatalf("operation %d: Lookup of the reply gave %d side %d, want %d", op, r, s, want.ref)
			}
		}
		switch do := rnd.IntN(10); {
		case want == nil || do == 0:
			port, free := uint16(0), false
			if want == nil {
				port, free = o.freePort(&n, rests, now)
			}
			r, s := h.Create(now, &n)
			switch {
			case want != nil:
				if s != Exists || r != want.ref {
					t.Fatalf("operation %d: Create gave %v %d, want the existing %d", op, s, r, want.ref)
				}
			case !free:
				if s != PortsExhausted || r != 0 {
					t.Fatalf("operation %d: Create gave %v %d, no port is free", op, s, r)
				}
			case s != Created:
				t.Fatalf("operation %d: Create gave %v, port %d is free", op, s, port)
			default:
				reply := h.reply(r)
				if reply.DstPort != port {
					t.Fatalf("operation %d: port %d, want %d", op, reply.DstPort, port)
				}
				o.create(&n, r, reply, now)
			}
		case do < 3:
			h.Delete(want.ref)
			o.remove(want)
		default:
			side := Side(rnd.IntN(2))
			s := seg(side, uint8(rnd.IntN(32)))
			s.Ack, s.Seq = s.Ack+uint32(rnd.IntN(2)), s.Seq+uint32(rnd.IntN(2))
			h.Observe(want.ref, side, s, now)
			o.observe(want, side, s, now)
			if st := h.Flow(want.ref).State(); st != want.state {
				t.Fatalf("operation %d: state %v, the oracle has %v", op, st, want.state)
			}
		}
		if op%10_000 == 0 {
			validate(t, tb)
		}
	}
	validate(t, tb)
	live := map[*oracleFlow]bool{}
	for tuple := range o.byTuple {
		if f := o.find(&tuple, now); f != nil {
			live[f] = true
		}
	}
	h.Enter(now)
	h.sweepAll(now)
	if c := tb.Counts(); c.Live[0]+c.Live[1] != uint64(len(live)) {
		t.Errorf("Counts returns %v flows, the oracle has %d", c.Live, len(live))
	}
	seen := 0
	buf := make([]Info, 37)
	for cursor := uint64(0); ; {
		next, n := h.Dump(cursor, buf, now)
		for _, i := range buf[:n] {
			f := o.byTuple[i.Client]
			if f == nil || f.ref != i.Ref || f.reply != i.Reply || f.state != i.State || f.notes.Reset() != i.Reset {
				t.Fatalf("Dump shows %+v, the oracle has %+v", i, f)
			}
			seen++
		}
		if cursor = next; next == 0 {
			break
		}
	}
	if seen != len(live) {
		t.Errorf("Dump shows %d flows, the oracle has %d", seen, len(live))
	}
}
