package flowtable

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/nat/header"
)

// The whole state machine as the reference states it. A cell is what one packet
// does: a state, "." for nothing, "r" for a refresh, "R" for the reset timer, "a"
// for a SYN that is remembered, "A" for nothing unless one is, "f" for a FIN that is.
const machine = `
                    client:                                  backend:
                    none ACK  FIN  S+A  SYN  RST             none ACK  FIN  S+A  SYN  RST
SynSeen             .    .    .    .    .    R               .    SR   SR   SR   .    CL
SynRecv             .    UN   UNf  .    .    R               .    .    .    A    .    CL
Unconfirmed         .    r    f    .    a    R               .    ES   FB   A    .    CL
Established         .    r    FC   .    a    R               .    r    FB   A    .    R
FinClient           .    r    r    .    a    R               .    r    LC   A    .    R
FinBackend          .    r    LB   .    a    R               .    r    r    A    .    R
LastAckClient       .    TC   r    .    .    R               .    r    r    .    .    R
LastAckBackend      .    r    r    .    .    R               .    TB   r    .    .    R
TimeWaitClient      .    r    r    .    .    .               .    r    r    .    .    .
TimeWaitBackend     .    r    r    .    .    .               .    r    r    .    .    .
Closed              .    .    .    .    .    .               .    .    .    .    .    .
`

var stateByName = map[string]State{
	"SynSeen": SynSeen, "SynRecv": SynRecv, "Unconfirmed": Unconfirmed, "Established": Established,
	"FinClient":  FinClient,
	"FinBackend": FinBackend, "LastAckClient": LastAckClient, "LastAckBackend": LastAckBackend,
	"TimeWaitClient": TimeWaitClient, "TimeWaitBackend": TimeWaitBackend, "Closed": Closed,
	"SR": SynRecv, "UN": Unconfirmed, "UNf": Unconfirmed, "ES": Established, "FC": FinClient, "FB": FinBackend,
	"LC": LastAckClient,
	"LB": LastAckBackend, "TC": TimeWaitClient, "TB": TimeWaitBackend, "CL": Closed,
}

// flagsOf has every set of flags that a class may come with.
func flagsOf(c class) (sets []uint8) {
	for f := range 256 {
		rst, syn, fin, ack := f&tcpRST != 0, f&tcpSYN != 0, f&tcpFIN != 0, f&tcpACK != 0
		is := map[class]bool{
			classRST:    rst,
			classSYNACK: !rst && syn && ack,
			classSYN:    !rst && syn && !ack,
			classFIN:    !rst && !syn && fin,
			classACK:    !rst && !syn && !fin && ack,
			classNone:   !rst && !syn && !fin && !ack,
		}
		if is[c] {
			sets = append(sets, uint8(f))
		}
	}
	return sets
}

func TestStateMachine(t *testing.T) {
	for name, proto := range map[string]uint8{"TCP": header.ProtoTCP, "SCTP": header.ProtoSCTP} {
		t.Run(name, func(t *testing.T) { testStateMachine(t, proto) })
	}
}

func testStateMachine(t *testing.T, proto uint8) {
	const start, now = ticks(1000), ticks(1000 + 25)
	cells := 0
	for _, line := range strings.Split(strings.TrimSpace(machine), "\n")[2:] {
		col := strings.Fields(line)
		state := stateByName[col[0]]
		for i, want := range col[1:] {
			side, c := Side(i/int(numClasses)), class(i%int(numClasses))
			cells++
			for _, flags := range flagsOf(c) {
				m := makeMeta(state, proto, 0x5a, start)
				got := m.observe(side, flags, now)
				name := fmt.Sprintf("%s, side %d, flags %#02x", col[0], side, flags)
				switch want {
				case "a":
					if got != m|metaAgain {
						t.Errorf("%s: %v %v, seen %d; want nothing but a note", name, got.state(), got.reset(),
							got.seen())
					}
				case ".", "A":
					if got != m {
						t.Errorf("%s: changed to %v %v, seen %d; want no change", name, got.state(), got.reset(),
							got.seen())
					}
				case "r":
					if got != m.at(now) {
						t.Errorf("%s: %v %v, seen %d; want a refresh", name, got.state(), got.reset(), got.seen())
					}
					if late := m.at(now-9).observe(side, flags, now); late != m.at(now-9) {
						t.Errorf("%s: written less than a second after the last packet", name)
					}
				case "R":
					if got != m.at(now)|metaReset {
						t.Errorf("%s: %v %v, seen %d; want the reset timer", name, got.state(), got.reset(), got.seen())
					}
					if again := got.observe(side, flags, now+50); again != got {
						t.Errorf("%s: a second RST moved the timer", name)
					}
				case "f", "UNf":
					if got != m.withState(Unconfirmed).at(now)|metaFin {
						t.Errorf("%s: %v %v, seen %d; want UNCONFIRMED with a FIN", name, got.state(), got.reset(),
							got.seen())
					}
					if again := got.observe(side, flags, now+25); again != got.at(now+25) {
						t.Errorf("%s: a second FIN does not refresh", name)
					}
				default:
					if got != m.withState(stateByName[want]).at(now) {
						t.Errorf("%s: %v, seen %d; want %s", name, got.state(), got.seen(), want)
					}
				}
				if want == "r" || want == "f" || len(want) >= 2 {
					if back := (m | metaReset | metaAgain).observe(side, flags,
						start); back&(metaReset|metaAgain) != 0 {
						t.Errorf("%s: a packet of the flow did not take back the RST and the SYN", name)
					}
				}
				if want == "A" {
					again, to := (m|metaReset|metaAgain).observe(side, flags, now), SynRecv
					if proto == header.ProtoSCTP && (state == Unconfirmed || state == Established) {
						to = state // the server answers an INIT and forgets it
					}
					if again != m.withState(to).at(now) {
						t.Errorf("%s, after a SYN: %v %v, seen %d; want %v", name, again.state(), again.reset(),
							again.seen(), to)
					}
				}
			}
		}
	}
	if want := int(Closed) * 2 * int(numClasses); cells != want {
		t.Errorf("the reference has %d cells, want %d", cells, want)
	}
}

func TestDatagramStates(t *testing.T) {
	for _, c := range []struct {
		name     string
		proto    uint8
		from, to State
		side     Side
	}{
		{"UDP client again", header.ProtoUDP, UDPNew, UDPNew, ClientSide},
		{"UDP reply", header.ProtoUDP, UDPNew, UDPReplied, ReplySide},
		{"UDP second reply", header.ProtoUDP, UDPReplied, UDPReplied, ReplySide},
		{"UDP client after the first reply", header.ProtoUDP, UDPReplied, UDPAssured, ClientSide},
		{"UDP client again, assured", header.ProtoUDP, UDPAssured, UDPAssured, ClientSide},
		{"UDP reply, assured", header.ProtoUDP, UDPAssured, UDPAssured, ReplySide},
		{"DCCP reply", 33, UDPNew, UDPReplied, ReplySide},
		{"ICMP request", header.ProtoICMP, ICMPEcho, ICMPEcho, ClientSide},
		{"ICMP reply", header.ProtoICMP, ICMPEcho, ICMPEcho, ReplySide},
		{"ICMPv6 reply", header.ProtoICMPv6, ICMPEcho, ICMPEcho, ReplySide},
	} {
		// TCP flags of other protocols are nobody's business.
		for flags := range 256 {
			m := makeMeta(c.from, c.proto, 1, 1000)
			want := m.withState(c.to).at(1020)
			if c.from == UDPAssured {
				want += 1 << metaUsedShift
			}
			if got := m.observe(c.side, uint8(flags), 1020); got != want {
				t.Errorf("%s: %v seen %d, used for %d s; want %v seen 1020, %d s", c.name, got.state(), got.seen(),
					got.usedSeconds(), c.to, want.usedSeconds())
			}
		}
	}
}

// A packet of an older batch must not make a flow look older.
func TestObserveNeverStepsBack(t *testing.T) {
	m := makeMeta(Established, header.ProtoTCP, 0, 1000)
	for _, flags := range []uint8{tcpACK, tcpFIN, tcpRST} {
		if got := m.observe(ClientSide, flags, 950); got.seen() != 1000 {
			t.Errorf("flags %#x: seen %d, want 1000", flags, got.seen())
		}
	}
}

// step is one packet of a conversation.
type step struct {
	side  Side
	flags uint8
	want  State
}

// The sequences of the kernel's conntrack tests, as far as sequence numbers do not matter.
func TestSegmentSequences(t *testing.T) {
	const C, B = ClientSide, ReplySide
	const S, A, F, R = uint8(tcpSYN), uint8(tcpACK), uint8(tcpFIN), uint8(tcpRST)
	open := []step{{C, S, SynSeen}, {B, S | A, SynRecv}, {C, A, Unconfirmed}, {B, A, Established}}
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
		{"refused", []step{{C, S, SynSeen}, {B, R | A, Closed}}, true},
		{"SYN again and again", []step{{C, S, SynSeen}, {C, S, SynSeen}, {B, S | A, SynRecv}, {C, S, SynRecv},
			{B, S | A, SynRecv}}, false},
		{"SYN into a live flow is challenged", append(open[:4:4], step{C, S, Established}, step{B, A, Established}),
			false},
		{"and the client resets it", append(open[:4:4], step{C, S, Established}, step{B, A, Established},
			step{C, R, Established}), false},
		{"and opens it again", append(open[:4:4], step{C, S, Established}, step{B, A, Established},
			step{C, R, Established},
			step{C, S, Established}, step{B, S | A, SynRecv}, step{C, A, Unconfirmed}, step{B, A, Established}), false},
		{"a blind RST and SYN move nothing", append(open[:4:4], step{C, R, Established}, step{C, S, Established},
			step{B, A, Established}, step{C, A, Established}), false},
		{"reset, opened again", append(open[:4:4], step{C, R, Established}, step{C, S, Established},
			step{B, S | A, SynRecv}, step{C, A, Unconfirmed}), false},
		{"reset while closing, opened again", append(open[:4:4], step{C, F | A, FinClient}, step{C, R, FinClient},
			step{C, S, FinClient}, step{B, S | A, SynRecv}, step{C, A, Unconfirmed}), false},
		{"closing, forgotten by both, opened again", append(open[:4:4], step{B, F | A, FinBackend},
			step{C, S, FinBackend}, step{B, S | A, SynRecv}, step{C, A, Unconfirmed}), false},
		{"opened again, refused", append(open[:4:4], step{C, R, Established}, step{C, S, Established},
			step{B, S | A, SynRecv}, step{B, R, Closed}), true},
		{"SYN-ACK without a SYN", append(open[:4:4], step{B, S | A, Established}), false},
		{"SYN-ACK after the challenge", append(open[:4:4], step{C, S, Established}, step{B, A, Established},
			step{B, S | A, Established}), false},
		{"handshake reset by the client, opened again", append(open[:2:2], step{C, R, SynRecv}, step{C, S, SynRecv},
			step{B, S | A, SynRecv}, step{C, A, Unconfirmed}), false},
		{"a blind RST is taken back", append(open[:4:4], step{C, R, Established}, step{B, A, Established}), false},
		{"challenge ACK to a first SYN", []step{{C, S, SynSeen}, {B, A, SynRecv}, {C, R, SynRecv}, {C, S, SynRecv},
			{B, S | A, SynRecv}, {C, A, Unconfirmed}}, false},
		{"set up before our time", []step{{C, A, SynSeen}, {B, A, SynRecv}, {C, A, Unconfirmed}, {B, A, Established}},
			false},
		{"FIN with the handshake's ACK", []step{{C, S, SynSeen}, {B, S | A, SynRecv}, {C, F | A, Unconfirmed},
			{B, A, FinClient}, {B, F | A, LastAckClient}, {C, A, TimeWaitClient}}, true},
		{"FIN before the backend spoke", append(acked[:3:3], step{C, F | A, Unconfirmed}, step{C, A, Unconfirmed},
			step{B, F | A, LastAckClient}), true},
		{"the backend closes as its first word", append(acked[:3:3], step{B, F | A, FinBackend},
			step{C, F | A, LastAckBackend}), true},
		{"a blind ACK is refused", append(acked[:3:3], step{B, R, Closed}), true},
		{"the SYN-ACK comes again, its ACK was lost", append(acked[:3:3], step{B, S | A, Unconfirmed},
			step{C, A, Unconfirmed}, step{B, A, Established}), false},
		{"the answer to a SYN confirms no ACK", append(acked[:3:3], step{C, S, Unconfirmed}, step{B, A, Unconfirmed},
			step{B, A, Established}), false},
		{"a blind RST is taken back before the backend spoke", append(acked[:3:3], step{C, R, Unconfirmed},
			step{C, A, Unconfirmed}, step{B, A, Established}), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			tb, h := testTable(t, 10, 0)
			n := newFlow(header.ProtoTCP, false, 1)
			r := h.mustCreate(t, bootTime, n)
			for i, s := range c.steps {
				h.Observe(r, s.side, s.flags, bootTime+Time(i)*second)
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

// A flow is found until its timeout and not once it is a second over: lookups see
// no expired flow however late the sweep comes.
func TestTimeouts(t *testing.T) {
	d, rfc := DefaultTimeouts(), RFCTimeouts()
	open := []step{{ClientSide, tcpSYN, 0}, {ReplySide, tcpSYN | tcpACK, 0}, {ClientSide, tcpACK, 0},
		{ReplySide, tcpACK, 0}}
	fin := func(s Side) step { return step{s, tcpFIN | tcpACK, 0} }
	ack := func(s Side) step { return step{s, tcpACK, 0} }
	rst := func(s Side) step { return step{s, tcpRST, 0} }
	for _, c := range []struct {
		name   string
		proto  uint8
		steps  []step
		d, rfc time.Duration
	}{
		{"SYN seen", header.ProtoTCP, open[:1], d.SynSeen, rfc.SynSeen},
		{"SYN-ACK seen", header.ProtoTCP, open[:2], d.SynAckSeen, rfc.SynAckSeen},
		{"connected, nobody speaks", header.ProtoTCP, open[:3], d.Established, rfc.Established},
		{"RST while nobody speaks", header.ProtoTCP, append(open[:3:3], rst(ClientSide)), d.ResetEstablished,
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
				tb, h := testTableOf(t, Config{IPv4Flows: 1000, HalfOpen: 1001, Timeouts: profile.t})
				var flows []NewFlow
				for i := range uint32(1000) {
					n := newFlow(c.proto, false, i)
					r := h.mustCreate(t, bootTime, n)
					for _, s := range c.steps {
						h.Observe(r, s.side, s.flags, bootTime)
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
				if n := found(last); n != 1000 {
					t.Errorf("one second early: %d of 1000 flows left", n)
				}
				over := bootTime + Time(profile.want) + 2*second
				if n := found(over); n != 0 {
					t.Errorf("two seconds late: %d flows found before the sweep", n)
				}
				h.Enter(over)
				if _, n := h.sweepAll(over); n != 1000 {
					t.Errorf("the sweep ended %d flows, want 1000", n)
				}
				validate(t, tb)
			})
		}
	}
}

// One keep-alive in 7,000 seconds holds a connection for a week; a retransmitted
// SYN holds nothing.
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
		h.Observe(r, Side(now/(7000*second)&1), tcpACK, now)
	}

	m := newFlow(header.ProtoTCP, false, 2)
	r = h.mustCreate(t, now, m)
	for range 20 {
		h.Observe(r, ClientSide, tcpSYN, now)
		now += second
	}
	if got, _ := h.lookup(&m.Client, now); got != 0 {
		t.Error("a half-open flow was held by its SYNs")
	}
}

// A forged RST cuts an idle connection's life to four minutes, and no further.
func TestBlindRST(t *testing.T) {
	_, h := testTable(t, 10, 0)
	n := newFlow(header.ProtoTCP, false, 1)
	r := h.mustCreate(t, bootTime, n)
	h.establish(r, bootTime)
	idle := bootTime + 7000*second
	for i := range Time(239) {
		h.Observe(r, ReplySide, tcpRST, idle+i*second)
	}
	if got, _ := h.lookup(&n.Client, idle+239*second); got != r {
		t.Fatal("an RST ended an idle connection within four minutes")
	}
	h.Observe(r, ClientSide, tcpACK, idle+239*second)
	if got, _ := h.lookup(&n.Client, idle+7000*second); got != r {
		t.Fatal("a packet after an RST did not restore the connection")
	}
}

// A client that resets a connection and opens another from the same port, at the
// last moment of what the RST left it: the new one has the time of a new one.
func TestReopenedAfterReset(t *testing.T) {
	const C, B = ClientSide, ReplySide
	d := DefaultTimeouts()
	for _, c := range []struct {
		name  string
		steps []step // before the RST
		left  time.Duration
	}{
		{"handshake", []step{{B, tcpSYN | tcpACK, 0}}, d.Reset},
		{"unconfirmed", []step{{B, tcpSYN | tcpACK, 0}, {C, tcpACK, 0}}, d.ResetEstablished},
		{"established", []step{{B, tcpSYN | tcpACK, 0}, {C, tcpACK, 0}, {B, tcpACK, 0}}, d.ResetEstablished},
		{"closing", []step{{B, tcpSYN | tcpACK, 0}, {C, tcpACK, 0}, {B, tcpACK, 0}, {C, tcpFIN, 0}}, d.Reset},
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
				h.Observe(r, side, flags, now)
			}
			for _, s := range append(c.steps, step{C, tcpRST, 0}) {
				say(s.side, s.flags)
			}
			now += Time(c.left)
			say(C, tcpSYN)
			if h.Closing(r) {
				t.Error("the SYN is scheduled anew")
			}
			now += second
			say(B, tcpSYN|tcpACK)
			now += 5 * second
			say(C, tcpACK)
			say(B, tcpACK)
			now += 7000 * second
			say(C, tcpACK)
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
		h.Observe(r, ClientSide, tcpSYN, now)
		h.Observe(r, ReplySide, tcpSYN|tcpACK, now)
		now += second
	}
	if got, _ := h.lookup(&n.Client, now); got != 0 {
		t.Error("a half-open flow is held by SYNs")
	}
}
