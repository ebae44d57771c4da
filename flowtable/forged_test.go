package flowtable

import (
	"testing"

	"sluice.dev/sluice/flowtable/conn"
	"sluice.dev/sluice/nat/header"
)

// A sender that forges addresses and does not receive the answers: SYN, any ACK or FIN, a second
// SYN, RST. Such flows fill a table that is small enough for probes of all records, and do not keep
// honest clients out.
func TestForgedHandshakesAreShed(t *testing.T) {
	const flows = 480
	const C, B = ClientSide, ReplySide
	const S, A, F, R = uint8(header.TCPSYN), uint8(header.TCPACK), uint8(header.TCPFIN), uint8(header.TCPRST)
	const X, P = uint8(header.TCPACK | tcpURG), uint8(tcpPSH) // a blind ACK, payload
	for _, c := range []struct {
		name  string
		proto uint8
		steps []step
	}{
		{"SYN, ACK", header.ProtoTCP, []step{{B, S | A, 0}, {C, X, 0}}},
		{"SYN, data", header.ProtoTCP, []step{{B, S | A, 0}, {C, X | P, 0}}},
		{"SYN, ACK, SYN-ACK again", header.ProtoTCP, []step{{B, S | A, 0}, {C, X, 0}, {B, S | A, 0}}},
		{"SYN, FIN", header.ProtoTCP, []step{{B, S | A, 0}, {C, F | X, 0}}},
		{"SYN, ACK, FIN", header.ProtoTCP, []step{{B, S | A, 0}, {C, X, 0}, {C, F | X, 0}}},
		{"SYN, ACK, refused", header.ProtoTCP, []step{{B, S | A, 0}, {C, X, 0}, {B, R, 0}}},
		{"SYN, ACK, refused, ACK", header.ProtoTCP, []step{{B, S | A, 0}, {C, X, 0}, {B, R, 0}, {C, X | P, 0}}},
		{"SYN, ACK, SYN, challenged", header.ProtoTCP, []step{{B, S | A, 0}, {C, X, 0}, {C, S, 0}, {B, A, 0},
			{C, X, 0}, {B, A, 0}}},
		{"SYN, challenged, reset, ACK", header.ProtoTCP, []step{{B, S | A, 0}, {C, S, 0}, {B, A, 0}, {C, R, 0},
			{C, X | P, 0}, {B, A, 0}}},
		{"before the SYN-ACK", header.ProtoTCP, []step{{C, X, 0}, {C, X | P, 0}, {B, A, 0}, {C, X, 0}, {B, A, 0}}},
		{"COOKIE ECHO", header.ProtoSCTP, []step{{B, S | A, 0}, {C, A, 0}}},
		{"UDP, one packet and its reply", header.ProtoUDP, []step{{B, 0, 0}}},
		{"UDP, one packet and many replies", header.ProtoUDP, []step{{B, 0, 0}, {B, 0, 0}, {B, 0, 0}}},
	} {
		tb, h := testTableOf(t, Config{IPv4Flows: flows, HalfOpen: flows + 1, Timeouts: DefaultTimeouts()})
		for n := range uint32(flows) {
			h.Enter(bootTime)
			r := h.mustCreate(t, bootTime, newFlow(c.proto, false, n))
			for _, s := range c.steps {
				h.Observe(r, s.side, seg(s.side, s.flags), bootTime)
			}
		}
		now := bootTime + second
		for n := range uint32(flows) {
			h.Enter(now)
			f := newFlow(header.ProtoTCP, false, 10_000+n)
			r, s := h.Create(now, &f)
			if s != Created {
				t.Errorf("%s: %d honest clients got in, then %v; states %v", c.name, n, s, tb.Counts().States)
				break
			}
			h.establish(r, now)
		}
		validate(t, tb)
	}
}

// A connection on which neither end has sent data yet, as in a connection pool, has the timeout of
// an idle connection, and does not count as half-open.
func TestUnconfirmedConnectionTimeout(t *testing.T) {
	tb, h := testTable(t, 10, 0)
	n := newFlow(header.ProtoSCTP, false, 1)
	r := h.mustCreate(t, bootTime, n)
	h.Observe(r, ReplySide, seg(ReplySide, header.TCPSYN|header.TCPACK), bootTime)
	h.Observe(r, ClientSide, seg(ClientSide, header.TCPACK), bootTime)
	if c := tb.Counts(); c.HalfOpen != 0 || c.States[Unconfirmed] != 1 {
		t.Errorf("%d half-open, states %v", c.HalfOpen, c.States)
	}
	if got, _ := h.lookup(&n.Client, bootTime+7400*second); got != r {
		t.Error("gone before it was used")
	}
}

// At the half-open cap half-open flows are shed, and no flow whose client has acknowledged, even an
// old one.
func TestUnconfirmedAreNotUnderTheCap(t *testing.T) {
	const halfOpen = 20
	tb, h := testTableOf(t, Config{IPv4Flows: 1000, HalfOpen: halfOpen, Timeouts: DefaultTimeouts()})
	for n := range uint32(10 * halfOpen) {
		r := h.mustCreate(t, bootTime, newFlow(header.ProtoSCTP, false, n))
		h.Observe(r, ReplySide, seg(ReplySide, header.TCPSYN|header.TCPACK), bootTime)
		h.Observe(r, ClientSide, seg(ClientSide, header.TCPACK), bootTime)
	}
	for n := range uint32(5 * halfOpen) {
		now := bootTime + Time(n)*second/10
		h.Enter(now)
		h.mustCreate(t, now, newFlow(header.ProtoTCP, false, 10_000+n))
	}
	if c := tb.Counts(); c.States[Unconfirmed] != 10*halfOpen || c.HalfOpen != halfOpen ||
		c.Shed[ShedHalfOpen] != 4*halfOpen {
		t.Errorf("states %v, shed %v", c.States, c.Shed)
	}
	validate(t, tb)
}

// Under pressure old connections without data are shed, and none whose handshake has just been
// completed.
func TestUnconfirmedAreShedByAge(t *testing.T) {
	const flows = 1000
	tb, h := testTable(t, flows, 0)
	now := bootTime + 100*second
	ack := func(r Ref, at Time) {
		h.Observe(r, ReplySide, seg(ReplySide, header.TCPSYN|header.TCPACK), at)
		h.Observe(r, ClientSide, seg(ClientSide, header.TCPACK), at)
	}
	for n := range uint32(flows) {
		born := bootTime + Time(n%2)*99*second
		ack(h.mustCreate(t, born, newFlow(header.ProtoSCTP, false, n)), born)
	}
	for n := range uint32(flows / 4) {
		h.Enter(now)
		h.establish(h.mustCreate(t, now, newFlow(header.ProtoTCP, false, 10_000+n)), now)
	}
	old := 0
	for n := uint32(0); n < flows; n += 2 {
		f := newFlow(header.ProtoSCTP, false, n)
		if r, _ := h.lookup(&f.Client, now); r != 0 {
			old++
		}
	}
	if old > flows/4+flows/20 {
		t.Errorf("of 500 old connections %d are left after 250 were shed: younger ones were shed", old)
	}
	for n := uint32(0); ; n++ { // until only the new ones are left
		h.Enter(now)
		f := newFlow(header.ProtoSCTP, false, 20_000+n)
		r, s := h.Create(now, &f)
		if s == TableFull {
			break
		}
		ack(r, now)
		if n > flows {
			t.Fatal("handshakes that have just been completed are shed")
		}
	}
	if c := tb.Counts(); c.Live[0] != flows || c.Refused[TableFull] != 1 {
		t.Errorf("%+v", c)
	}
	validate(t, tb)
}

// The backend's FIN passes while a window is in flight, and a segment of it is lost: the client
// acknowledges data before the FIN, and the backend sends the rest again. The flow stays as long as
// both ends send, but may be shed: if there were only ACKs, as a closed flow; if there was data,
// only while it is idle, because then the FIN may be forged and the connection live.
func TestTailLossInTimeWait(t *testing.T) {
	const C, B = ClientSide, ReplySide
	for _, c := range []struct {
		name   string
		first  Side
		state  State
		speaks []Side
	}{
		{"download, both send", C, FinClient, []Side{B, C}},
		{"download, data alone", C, FinClient, []Side{B}},
		{"download, ACKs alone", C, TimeWaitClient, []Side{C}},
		{"upload, both send", B, FinBackend, []Side{B, C}},
		{"upload, data alone", B, FinBackend, []Side{C}},
	} {
		tb, h := testTable(t, 10, 0)
		n := newFlow(header.ProtoTCP, false, 1)
		r := h.mustCreate(t, bootTime, n)
		h.establish(r, bootTime)
		h.Observe(r, c.first, seg(c.first, header.TCPFIN|header.TCPACK), bootTime)
		h.Observe(r, c.first^1, seg(c.first^1, header.TCPFIN|header.TCPACK), bootTime)
		h.Observe(r, c.first, seg(c.first, header.TCPACK), bootTime) // of data long before the FIN
		now := bootTime
		for range 40 {
			now += 4 * second
			h.Enter(now)
			if got, _ := h.lookup(&n.Client, now); got != r {
				t.Fatalf("%s: gone %d s after the FIN, with packets all the time", c.name, (now-bootTime)/second)
			}
			for _, side := range c.speaks {
				flags := uint8(header.TCPACK)
				if side != c.first {
					flags |= tcpPSH
				}
				h.Observe(r, side, seg(side, flags), now)
			}
		}
		want, idle := ShedReset, Ticks(conn.ResetGrace)
		if c.state >= TimeWaitClient {
			want, idle = ShedClosed, 0
		}
		if s := h.Flow(r).State(); s != c.state || h.Closing(r) != (want == ShedClosed) ||
			tb.shedOf(h.Flow(r).load(), now.Ticks()+idle) != want {
			t.Errorf("%s: %v, Closing %v; want %v, shed as %v", c.name, s, h.Closing(r), c.state, want)
		}
		now += Time(DefaultTimeouts().Fin) + 2*second
		if got, _ := h.lookup(&n.Client, now); got != 0 {
			t.Errorf("%s: lives on in silence", c.name)
		}
		validate(t, tb)
	}
}

// TestForgedHandshakesEnd: a sender that sees no answers cannot keep a half-open flow alive by
// resetting its own handshake and opening it again, and cannot make the flow young more than once.
func TestForgedHandshakesEnd(t *testing.T) {
	_, h := testTable(t, 10, 0)
	n := newFlow(header.ProtoTCP, false, 1)
	r := h.mustCreate(t, bootTime, n)
	now, isn := bootTime, uint32(1000)
	for range 30 {
		now += 2 * second
		isn += 64000
		if got, _ := h.lookup(&n.Client, now); got != r {
			return
		}
		h.Observe(r, ClientSide, Segment{Flags: header.TCPRST}, now)
		h.Observe(r, ClientSide, Segment{Flags: header.TCPSYN}, now)
		h.Observe(r, ReplySide, Segment{Flags: header.TCPSYN | header.TCPACK, Seq: isn}, now)
	}
	t.Errorf("half open for %d s, seen at %d", (now-bootTime)/second, h.Flow(r).load().Seen()-bootTime.Ticks())
}

// A backend sends two SYN-ACKs with different numbers before the client's ACK passes. If the client
// acknowledges the second, the connection is established. If it acknowledges the first, the
// connection is established by the client's next segment after an ACK of the backend, even if the
// backend sends no data. An RST of the backend proves nothing, because a forged ACK chooses its
// number.
func TestTwoSYNACKs(t *testing.T) {
	const other = 777_777
	synack := func(isn uint32) Segment { return Segment{Flags: header.TCPSYN | header.TCPACK, Seq: isn} }
	ack := func(isn uint32, data bool) Segment { return Segment{Flags: header.TCPACK, Ack: isn + 1, Data: data} }
	bare := func(flags uint8, isn uint32) Segment { return Segment{Flags: flags, Seq: isn + 1} }
	type packet struct {
		from Side
		s    Segment
	}
	const C, B = ClientSide, ReplySide
	for _, c := range []struct {
		name  string
		after []packet
		lives bool
	}{
		{"the second is acknowledged", []packet{{C, ack(other, false)}}, true},
		{"the first is acknowledged, an upload", []packet{{C, ack(testISN, false)}, {C, ack(testISN, true)},
			{B, bare(header.TCPACK, testISN)}, {C, ack(testISN, true)}}, true},
		{"the first is acknowledged, the backend closes", []packet{{C, ack(testISN, true)},
			{B, bare(header.TCPFIN|header.TCPACK, testISN)}, {C, ack(testISN, true)}}, true},
		{"a forged ACK and the RST for it", []packet{{C, ack(12345, true)}, {B, bare(header.TCPRST, 12345)},
			{C, ack(12345, true)}}, false},
		{"a forged ACK and an RST with ACK", []packet{{C, ack(12345, true)}, {B, bare(header.TCPRST|header.TCPACK,
			12345)},
			{C, ack(12345, true)}}, false},
		{"forged ACKs, challenged", []packet{{C, ack(12345, true)}, {B, bare(header.TCPACK, other)},
			{C, ack(12345, true)}}, false},
	} {
		_, h := testTable(t, 10, 0)
		n := newFlow(header.ProtoTCP, false, 1)
		r := h.mustCreate(t, bootTime, n)
		h.Observe(r, B, synack(testISN), bootTime)
		h.Observe(r, B, synack(other), bootTime)
		for _, p := range c.after {
			h.Observe(r, p.from, p.s, bootTime+second)
		}
		if got, _ := h.lookup(&n.Client, bootTime+200*second); (got == r) != c.lives {
			t.Errorf("%s: lives on %v, want %v; %v", c.name, got == r, c.lives, h.Flow(r).State())
		}
	}
}

// Another client had the source port of a flow before, and segments of that connection arrive late.
// They do not replace the number by which the client's ACK proves the handshake.
func TestLateSegmentsOfThePort(t *testing.T) {
	const syn, old, oldAck = 0xfffffff0, 777_777, 0x40000000
	isn := uint32(testISN)
	for name, late := range map[string]Segment{
		"SYN-ACK":      {Flags: header.TCPSYN | header.TCPACK, Seq: old, Ack: oldAck},
		"ACK":          {Flags: header.TCPACK, Seq: old, Ack: oldAck},
		"FIN":          {Flags: header.TCPFIN | header.TCPACK, Seq: old, Ack: oldAck},
		"ACK before":   {Flags: header.TCPACK, Seq: old, Ack: syn},
		"FIN, no ACK":  {Flags: header.TCPFIN, Seq: old, Ack: syn + 1},
		"RST with ACK": {Flags: header.TCPRST | header.TCPACK, Seq: old, Ack: syn + 1},
	} {
		t.Run(name, func(t *testing.T) {
			_, h := testTable(t, 10, 0)
			n := newFlow(header.ProtoTCP, false, 1)
			n.SYN, n.HasSYN = syn, true
			r := h.mustCreate(t, bootTime, n)
			h.Observe(r, ReplySide, Segment{Flags: header.TCPSYN | header.TCPACK, Seq: testISN, Ack: syn + 1}, bootTime)
			if h.Changes(r, ReplySide, late, bootTime) && late.Flags&header.TCPRST == 0 {
				t.Error("the late segment would change the flow")
			}
			h.Observe(r, ReplySide, late, bootTime)
			h.Observe(r, ClientSide, Segment{Flags: header.TCPACK, Seq: syn + 9, Ack: isn + 1}, bootTime)
			if s := h.Flow(r).State(); s != Established {
				t.Errorf("%v after the client's ACK", s)
			}
		})
	}
}
