package flowtable

import (
	"testing"
	"time"

	"sluice.dev/sluice/flowtable/conn"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/test/bed/size"
)

// step is one packet of a connection.
type step struct {
	side  Side
	flags uint8
	want  State
}

// The packet sequences of the kernel's conntrack tests that do not depend on sequence numbers.
func TestSegmentSequences(t *testing.T) {
	const C, B = ClientSide, ReplySide
	const S, A, F, R = uint8(header.TCPSYN), uint8(header.TCPACK), uint8(header.TCPFIN), uint8(header.TCPRST)
	const P, X, N = uint8(tcpPSH), uint8(header.TCPACK | tcpURG), uint8(tcpECE)
	// P has payload, X is a blind ACK, N is another handshake.
	open := []step{{C, S, SynSeen}, {B, S | A, SynRecv}, {C, A, Established}, {B, A, Established}}
	acked := open[:3]
	for _, c := range []struct {
		name    string
		steps   []step
		closing bool
	}{
		{"client closes", append(open[:4:4], step{C, F | A, FinClient}, step{B, A, FinClient},
			step{B, F | A, LastAckClient}, step{C, A, TimeWaitClient}), true},
		{"backend closes", append(open[:4:4], step{B, F | A, FinBackend}, step{C, A, FinBackend},
			step{C, F | A, LastAckBackend}, step{B, A, TimeWaitBackend}), true},
		{"both close at once", append(open[:4:4], step{C, F | A, FinClient}, step{B, F | A, LastAckClient},
			step{B, A, LastAckClient}, step{C, A, TimeWaitClient}), true},
		{"half-closed, data flows on", append(open[:4:4], step{C, F | A, FinClient}, step{B, A, FinClient},
			step{C, A, FinClient}), false},
		{"rejected", []step{{C, S, SynSeen}, {B, R | A, Closed}}, true},
		{"repeated SYN", []step{{C, S, SynSeen}, {C, S, SynSeen}, {B, S | A, SynRecv}, {C, S, SynRecv},
			{B, S | A, SynRecv}}, false},
		{"SYN into a live flow is challenged", append(open[:4:4], step{C, S, Established}, step{B, A, Established}),
			false},
		{"and the client resets it", append(open[:4:4], step{C, S, Established}, step{B, A, Established},
			step{C, R, Established}), false},
		{"and opens it again", append(open[:4:4], step{C, S, Established}, step{B, A, Established},
			step{C, R, Established},
			step{C, S, Established}, step{B, S | A, SynRecv}, step{C, A, Established}, step{B, A, Established}), false},
		{"a blind RST and SYN move nothing", append(open[:4:4], step{C, R, Established}, step{C, S, Established},
			step{B, A, Established}, step{C, A, Established}), false},
		{"reset, opened again", append(open[:4:4], step{C, R, Established}, step{C, S, Established},
			step{B, S | A, SynRecv}, step{C, A, Established}), false},
		{"reset while closing, opened again", append(open[:4:4], step{C, F | A, FinClient}, step{C, R, FinClient},
			step{C, S, FinClient}, step{B, S | A, SynRecv}, step{C, A, Established}), false},
		{"closing, forgotten by both, opened again", append(open[:4:4], step{B, F | A, FinBackend},
			step{C, S, FinBackend}, step{B, S | A, SynRecv}, step{C, A, Established}), false},
		{"opened again, refused", append(open[:4:4], step{C, R, Established}, step{C, S, Established},
			step{B, S | A, SynRecv}, step{B, R, SynRecv}, step{C, A, Established}), false},
		{"SYN-ACK without a SYN", append(open[:4:4], step{B, S | A, Established}), false},
		{"SYN-ACK after the challenge", append(open[:4:4], step{C, S, Established}, step{B, A, Established},
			step{B, S | A, Established}), false},
		{"handshake reset by the client, opened again", append(open[:2:2], step{C, R, SynRecv}, step{C, S, SynRecv},
			step{B, S | A | N, SynRecv}, step{C, A, SynRecv}, step{C, A | N, Established}), false},
		{"a blind RST is cleared", append(open[:4:4], step{C, R, Established}, step{B, A, Established}), false},
		{"challenge ACK to a first SYN", []step{{C, S, SynSeen}, {B, A, SynRecv}, {C, R, SynRecv}, {C, S, SynRecv},
			{B, S | A | N, SynRecv}, {C, A, SynRecv}, {C, A | N, Established}}, false},
		{"set up before this flow", []step{{C, A, SynSeen}, {B, A, SynRecv}, {C, X, SynRecv}, {C, A, Established},
			{B, A, Established}}, false},
		{"set up before this flow, the backend sends", []step{{C, A, SynSeen}, {B, A | P, SynRecv}, {C, X, SynRecv},
			{B, A | P, Established}}, false},
		{"FIN with the handshake's ACK", []step{{C, S, SynSeen}, {B, S | A, SynRecv}, {C, F | A, FinClient},
			{B, A, FinClient}, {B, F | A, LastAckClient}, {C, A, TimeWaitClient}}, true},
		{"FIN before the backend sent data", append(acked[:3:3], step{C, F | A, FinClient}, step{C, A, FinClient},
			step{B, F | A, LastAckClient}), true},
		{"the backend closes without data", append(acked[:3:3], step{B, F | A, FinBackend},
			step{C, F | A, LastAckBackend}), true},
		{"blind ACK, rejected", append(open[:2:2], step{C, X, SynRecv}, step{B, R, SynRecv}, step{C, X | P, SynRecv},
			step{B, R, SynRecv}), false},
		{"a blind ACK is rejected, the client's follows", append(open[:2:2], step{C, X, SynRecv}, step{B, R, SynRecv},
			step{C, A, Established}, step{B, A | P, Established}), false},
		{"a blind ACK overtakes the SYN", []step{{C, S, SynSeen}, {B, R, Closed}, {B, S | A, SynRecv},
			{C, A, Established}}, false},
		{"the backend sends before the client acknowledges", append(open[:2:2], step{B, A, SynRecv},
			step{B, A | P, Established}), false},
		{"a blind RST, data of the same side", append(open[:4:4], step{C, R, Established},
			step{C, A | P, Established}, step{C, F | A, FinClient}), false},
		{"a blind FIN, data of the same side", append(open[:4:4], step{C, F | A, FinClient},
			step{C, A | P, Established}, step{C, F | A, FinClient}), false},
		{"data after the client's FIN", append(open[:4:4], step{C, F | A, FinClient}, step{C, A | P, Established},
			step{B, A, Established}, step{B, F | A, LastAckClient}, step{C, A, TimeWaitClient}), true},
		{"data after the backend's FIN", append(open[:4:4], step{B, F | A, FinBackend},
			step{B, A | P, Established}, step{C, F | A, LastAckBackend}, step{B, A, TimeWaitBackend}), true},
		{"the SYN-ACK comes again, its ACK was lost", append(acked[:3:3], step{B, S | A, Established},
			step{C, A, Established}, step{B, A, Established}), false},
		{"a SYN after the handshake", append(acked[:3:3], step{C, S, Established}, step{B, A, Established},
			step{B, A, Established}), false},
		{"a blind RST is cleared before the backend sent data", append(acked[:3:3], step{C, R, Established},
			step{C, A, Established}, step{B, A, Established}), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			tb, h := testTable(t, 10, 0)
			n := newFlow(header.ProtoTCP, false, 1)
			r := h.mustCreate(t, bootTime, n)
			for i, s := range c.steps {
				h.Observe(r, s.side, seg(s.side, s.flags), bootTime+Time(i)*second)
				if got := h.Flow(r).State(); got != s.want {
					t.Fatalf("packet %d: %v, want %v", i, got, s.want)
				}
			}
			if got := h.Closing(r); got != c.closing {
				t.Errorf("Closing: %v, want %v", got, c.closing)
			}
			validate(t, tb)
		})
	}
}

// A flow is found until its timeout, and not from a second after it: lookups find no expired flow,
// even if the sweep is late.
func TestTimeouts(t *testing.T) {
	d, rfc, count := DefaultTimeouts(), RFCTimeouts(), 1000
	if size.Race {
		count = 100
	}
	open := []step{{ClientSide, header.TCPSYN, 0}, {ReplySide, header.TCPSYN | header.TCPACK, 0}, {ClientSide,
		header.TCPACK, 0},
		{ReplySide, header.TCPACK, 0}}
	fin := func(s Side) step { return step{s, header.TCPFIN | header.TCPACK, 0} }
	ack := func(s Side) step { return step{s, header.TCPACK, 0} }
	rst := func(s Side) step { return step{s, header.TCPRST, 0} }
	for _, c := range []struct {
		name   string
		proto  uint8
		steps  []step
		d, rfc time.Duration
	}{
		{"SYN seen", header.ProtoTCP, open[:1], d.SynSeen, rfc.SynSeen},
		{"SYN-ACK seen", header.ProtoTCP, open[:2], d.SynAckSeen, rfc.SynAckSeen},
		{"acknowledged, not confirmed", header.ProtoSCTP, open[:3], d.Established, rfc.Established},
		{"RST before it is confirmed", header.ProtoSCTP, append(open[:3:3], rst(ClientSide)), d.ResetEstablished,
			rfc.ResetEstablished},
		{"established", header.ProtoTCP, open, d.Established, rfc.Established},
		{"one FIN", header.ProtoTCP, append(open[:4:4], fin(ClientSide)), d.Fin, rfc.Fin},
		{"two FIN", header.ProtoTCP, append(open[:4:4], fin(ClientSide), fin(ReplySide)), d.LastAck, rfc.LastAck},
		{"client closed first", header.ProtoTCP, append(open[:4:4], fin(ClientSide), fin(ReplySide), ack(ClientSide)),
			d.TimeWaitClient, rfc.TimeWaitClient},
		{"backend closed first", header.ProtoTCP, append(open[:4:4], fin(ReplySide), fin(ClientSide), ack(ReplySide)),
			d.TimeWaitBackend, rfc.TimeWaitBackend},
		{"refused", header.ProtoTCP, append(open[:1:1], rst(ReplySide)), d.Reset, rfc.Reset},
		{"RST while established", header.ProtoTCP, append(open[:4:4], rst(ClientSide)), d.ResetEstablished,
			rfc.ResetEstablished},
		{"RST while closing", header.ProtoTCP, append(open[:4:4], fin(ClientSide), rst(ClientSide)), d.Reset,
			rfc.Reset},
		{"UDP unreplied", header.ProtoUDP, nil, d.UDPUnreplied, rfc.UDPUnreplied},
		{"UDP replied once", header.ProtoUDP, []step{ack(ReplySide)}, d.UDPUnreplied, rfc.UDPUnreplied},
		{"UDP replied", header.ProtoUDP, []step{ack(ReplySide), ack(ClientSide)}, d.UDPReplied, rfc.UDPReplied},
		{"ICMP", header.ProtoICMP, nil, d.ICMP, rfc.ICMP},
	} {
		for _, profile := range []struct {
			name string
			t    Timeouts
			want time.Duration
		}{{"default", d, c.d}, {"rfc", rfc, c.rfc}} {
			t.Run(c.name+"/"+profile.name, func(t *testing.T) {
				tb, h := testTableOf(t, Config{IPv4Flows: 1000, HalfOpen: 1001, Timeouts: profile.t,
					HashKey: testKey}) // with another key a chain may be full by chance, and a flow finds no place
				var flows []NewFlow
				for i := range uint32(count) {
					n := newFlow(c.proto, false, i)
					r := h.mustCreate(t, bootTime, n)
					for _, s := range c.steps {
						h.Observe(r, s.side, seg(s.side, s.flags), bootTime)
					}
					flows = append(flows, n)
				}
				found := func(now Time) (n int) {
					for i := range flows {
						if r, _ := h.lookup(&flows[i].Client, now); r != 0 {
							n++
						}
					}
					return n
				}
				last := bootTime + Time(profile.want) - second
				h.sweepAll(last)
				if n := found(last); n != count {
					t.Errorf("one second early: %d of %d flows left", n, count)
				}
				over := bootTime + Time(profile.want) + 2*second
				if n := found(over); n != 0 {
					t.Errorf("two seconds late: %d flows found before the sweep", n)
				}
				h.Enter(over)
				if _, n := h.sweepAll(over); n != count {
					t.Errorf("the sweep ended %d flows, want %d", n, count)
				}
				validate(t, tb)
			})
		}
	}
}

// One keep-alive in 7,000 seconds keeps a connection for a week; a retransmitted SYN keeps no flow
// alive.
func TestRefresh(t *testing.T) {
	_, h := testTable(t, 10, 0)
	n := newFlow(header.ProtoTCP, false, 1)
	r := h.mustCreate(t, bootTime, n)
	h.establish(r, bootTime)
	now := bootTime
	for ; now < bootTime+Time(7*24*time.Hour); now += 7000 * second {
		if got, _ := h.lookup(&n.Client, now); got != r {
			t.Fatalf("connection lost after %v", time.Duration(now-bootTime))
		}
		h.Observe(r, Side(now/(7000*second)&1), seg(Side(now/(7000*second)&1), header.TCPACK), now)
	}

	m := newFlow(header.ProtoTCP, false, 2)
	r = h.mustCreate(t, now, m)
	for range 20 {
		h.Observe(r, ClientSide, seg(ClientSide, header.TCPSYN), now)
		now += second
	}
	if got, _ := h.lookup(&m.Client, now); got != 0 {
		t.Error("SYNs kept a half-open flow alive")
	}
}

// A forged RST cuts an idle connection's life to four minutes, not further. A packet that shows
// that the connection lives on clears the reset. A client's ACK without data does not.
func TestBlindRST(t *testing.T) {
	for _, c := range []struct {
		name  string
		by    Side
		from  Side
		flags uint8
		lives bool
	}{
		{"the client's, its data", ClientSide, ClientSide, header.TCPACK | tcpPSH, true},
		{"the client's, the backend's data", ClientSide, ReplySide, header.TCPACK | tcpPSH, true},
		{"the client's, the backend's ACK", ClientSide, ReplySide, header.TCPACK, true},
		{"the client's, its ACK", ClientSide, ClientSide, header.TCPACK, false},
		{"the backend's, its data", ReplySide, ReplySide, header.TCPACK | tcpPSH, true},
		{"the backend's, its ACK", ReplySide, ReplySide, header.TCPACK, true},
		{"the backend's, the client's data", ReplySide, ClientSide, header.TCPACK | tcpPSH, true},
		{"the backend's, the client's ACK", ReplySide, ClientSide, header.TCPACK, false},
	} {
		_, h := testTable(t, 10, 0)
		n := newFlow(header.ProtoTCP, false, 1)
		r := h.mustCreate(t, bootTime, n)
		h.establish(r, bootTime)
		idle := bootTime + 7000*second
		for i := range Time(239) {
			h.Observe(r, c.by, seg(c.by, header.TCPRST), idle+i*second)
		}
		if got, _ := h.lookup(&n.Client, idle+239*second); got != r {
			t.Fatalf("%s: an RST ended an idle connection within four minutes", c.name)
		}
		h.Observe(r, c.from, seg(c.from, c.flags), idle+239*second)
		if got, _ := h.lookup(&n.Client, idle+7000*second); (got == r) != c.lives {
			t.Errorf("%s: lives on %v, want %v", c.name, got == r, c.lives)
		}
	}
}

// Packets in flight when an RST arrives do not clear the reset: the connection may be shed a second
// after the RST, and ends at its timeout.
func TestResetConnectionGivesWay(t *testing.T) {
	for by := range Side(2) {
		tb, h := testTable(t, 10, 0)
		n := newFlow(header.ProtoTCP, false, 1)
		r := h.mustCreate(t, bootTime, n)
		h.establish(r, bootTime)
		h.Observe(r, by, seg(by, header.TCPRST|header.TCPACK), bootTime)
		h.Observe(r, by^1, seg(by^1, header.TCPACK|tcpPSH), bootTime+second/2)
		h.Observe(r, ReplySide, seg(ReplySide, header.TCPACK), bootTime+second/2)
		h.Observe(r, ClientSide, seg(ClientSide, header.TCPFIN|header.TCPACK), bootTime+second/2)
		m := h.Flow(r).load()
		if tb.shedOf(m, (bootTime+second/2).Ticks()) != shedNever ||
			tb.shedOf(m, (bootTime+second).Ticks()) != ShedReset || m.ResetBy() != by ||
			m.Seen() != bootTime.Ticks() || m.Counts() {
			t.Errorf("side %d: %v, notes %x: not reset, or not since the RST", by, m.State(), m&conn.MetaNotes)
		}
		h.Observe(r, by, seg(by, header.TCPACK|tcpPSH), bootTime+second/2)
		m = h.Flow(r).load()
		if tb.shedOf(m, (bootTime+2*second).Ticks()) != shedNever || m.State() != Established || !m.Counts() {
			t.Errorf("side %d: %v, notes %x after data of the side that sent the RST", by, m.State(), m&conn.MetaNotes)
		}
		validate(t, tb)
	}
}

// A FIN that the client did not send shortens the timeout of a connection only until the client's
// next data. The ACKs of a client that has closed leave the connection closed.
func TestBlindFIN(t *testing.T) {
	for by := range Side(2) {
		_, h := testTable(t, 10, 0)
		n := newFlow(header.ProtoTCP, false, 1)
		r := h.mustCreate(t, bootTime, n)
		h.establish(r, bootTime)
		now := bootTime
		for range 3 {
			h.Observe(r, by, seg(by, header.TCPFIN|header.TCPACK), now)
			now += 299 * second
			h.Observe(r, by, seg(by, header.TCPACK), now)
			if s := h.Flow(r).State(); s != FinClient+State(by) {
				t.Fatalf("side %d: %v after a FIN and an ACK", by, s)
			}
			h.Observe(r, by, seg(by, header.TCPACK|tcpPSH), now)
			now += 7000 * second
			if got, _ := h.lookup(&n.Client, now); got != r {
				t.Fatalf("side %d: gone, though the side that sent a FIN sent data after it", by)
			}
		}
	}
}

// One side has closed, and FINs that the other side did not send make the connection look over.
// Data of the other side revokes its FIN; so does data of the first side, if its FIN was forged
// too.
func TestBlindFINs(t *testing.T) {
	for by := range Side(2) {
		for _, genuine := range []bool{true, false} { // the FIN of the first side
			tb, h := testTable(t, 10, 0)
			n := newFlow(header.ProtoTCP, false, 1)
			r := h.mustCreate(t, bootTime, n)
			h.establish(r, bootTime)
			now, want, life := bootTime, []State{FinClient, FinBackend}[by^1], 299*second
			if !genuine {
				want, life = Established, 7000*second
			}
			for range 3 {
				h.Observe(r, by^1, seg(by^1, header.TCPFIN|header.TCPACK), now)
				h.Observe(r, by, seg(by, header.TCPFIN|header.TCPACK), now+second)
				h.Observe(r, by^1, seg(by^1, header.TCPACK), now+2*second) // acknowledges data before the FIN
				if s := h.Flow(r).State(); s < LastAckClient || s > TimeWaitBackend {
					t.Fatalf("side %d: %v after both FINs and an ACK", by, s)
				}
				now += 3 * second
				h.Observe(r, by, seg(by, header.TCPACK|tcpPSH), now)
				if !genuine {
					h.Observe(r, by^1, seg(by^1, header.TCPACK|tcpPSH), now)
				}
				h.Observe(r, by^1, seg(by^1, header.TCPACK), now)
				if s := h.Flow(r).State(); s != want || h.Closing(r) {
					t.Fatalf("side %d: %v after data, want %v", by, s, want)
				}
				if kind := tb.shedOf(h.Flow(r).load(), now.Ticks()+9); kind != shedNever {
					t.Errorf("side %d: may be shed as %v, though it is in use", by, kind)
				}
				if kind := tb.shedOf(h.Flow(r).load(), now.Ticks()+10); kind != ShedReset {
					t.Errorf("side %d: idle for a second, it may be shed as %v, want ShedReset", by, kind)
				}
				now += life
				if got, _ := h.lookup(&n.Client, now); got != r {
					t.Fatalf("side %d: gone, though the side that sent a FIN sent data after it", by)
				}
			}
			validate(t, tb)
		}
	}
}

// A segment whose checksum is not known to be good changes only the flow's last-seen time, in any
// state.
func TestUnverifiedSegmentsChangeNothing(t *testing.T) {
	_, h := testTable(t, 10, 0)
	r := h.mustCreate(t, bootTime, newFlow(header.ProtoTCP, false, 1))
	f, changing := h.Flow(r), 0
	for state := SynSeen; state <= Closed; state++ {
		for _, notes := range []conn.Meta{0, conn.MetaReset, conn.MetaAgain, conn.MetaReset | conn.MetaAgain,
			conn.MetaFinClient} {
			for flags := range uint8(64) {
				for side := range Side(2) {
					for _, s := range []Segment{seg(side, flags), seg(side, flags|tcpECE)} {
						m := conn.MakeMeta(state, header.ProtoTCP, bootTime.Ticks()) | notes
						f.meta.Store(uint64(m))
						f.created = Ticks(testISN & 0xffffffff)
						changes := h.Changes(r, side, s, bootTime+5*second)
						s.Unverified = true
						h.Observe(r, side, s, bootTime+5*second)
						if f.load().At(0) != m.At(0) || f.word() != testISN {
							t.Fatalf("%v, notes %x, side %d, %+v: notes %x, word %d", state, notes, side, s,
								f.load()&conn.MetaNotes, f.word())
						}
						s.Unverified = false
						h.Observe(r, side, s, bootTime+5*second)
						if did := f.load().At(0) != m.At(0) || f.word() != testISN; did != changes {
							t.Fatalf("%v, notes %x, side %d, %+v: Changes returned %v", state, notes, side, s, changes)
						} else if did {
							changing++
						}
					}
				}
			}
		}
	}
	if changing < 1000 {
		t.Errorf("%d segments change something: too few for this test", changing)
	}
}

// A client resets a connection and opens another from the same port, just before the timeout after
// the RST: the new connection has a full timeout.
func TestReopenedAfterReset(t *testing.T) {
	const C, B = ClientSide, ReplySide
	d := DefaultTimeouts()
	for _, c := range []struct {
		name  string
		steps []step // before the RST
		left  time.Duration
	}{
		{"handshake", []step{{B, header.TCPSYN | header.TCPACK, 0}}, d.Reset},
		{"acknowledged", []step{{B, header.TCPSYN | header.TCPACK, 0}, {C, header.TCPACK, 0}}, d.ResetEstablished},
		{"established", []step{{B, header.TCPSYN | header.TCPACK, 0}, {C, header.TCPACK, 0}, {B, header.TCPACK, 0}},
			d.ResetEstablished},
		{"closing", []step{{B, header.TCPSYN | header.TCPACK, 0}, {C, header.TCPACK, 0}, {B, header.TCPACK, 0}, {C,
			header.TCPFIN, 0}}, d.Reset},
	} {
		t.Run(c.name, func(t *testing.T) {
			tb, h := testTable(t, 10, 0)
			n := newFlow(header.ProtoTCP, false, 1)
			r := h.mustCreate(t, bootTime, n)
			now := bootTime
			say := func(side Side, flags uint8) {
				t.Helper()
				if got, _ := h.lookup(&n.Client, now); got != r {
					t.Fatalf("flags %#x find no flow", flags)
				}
				h.Observe(r, side, seg(side, flags), now)
			}
			for _, s := range append(c.steps, step{C, header.TCPRST, 0}) {
				say(s.side, s.flags)
			}
			now += Time(c.left)
			say(C, header.TCPSYN)
			if h.Closing(r) {
				t.Error("a new backend would be selected for the SYN")
			}
			now += second
			say(B, header.TCPSYN|header.TCPACK|tcpECE)
			now += 5 * second
			say(C, header.TCPACK|tcpECE)
			say(B, header.TCPACK)
			now += 7000 * second
			say(C, header.TCPACK)
			if s := h.Flow(r).State(); s != Established {
				t.Errorf("%v, want ESTABLISHED", s)
			}
			validate(t, tb)
		})
	}
}

// SYNs and the answers to them do not refresh a half-open flow.
func TestSYNsDoNotRefreshHalfOpenFlows(t *testing.T) {
	_, h := testTable(t, 10, 0)
	n := newFlow(header.ProtoTCP, false, 1)
	r := h.mustCreate(t, bootTime, n)
	now := bootTime
	for range 32 {
		h.Observe(r, ClientSide, seg(ClientSide, header.TCPSYN), now)
		h.Observe(r, ReplySide, seg(ReplySide, header.TCPSYN|header.TCPACK), now)
		now += second
	}
	if got, _ := h.lookup(&n.Client, now); got != 0 {
		t.Error("SYNs keep a half-open flow alive")
	}
}
