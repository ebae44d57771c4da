package flowtable

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/nat/header"
)

// The reference of the whole state machine, for a flow without notes. Columns are classes of
// segments; data is an ACK with payload. A cell is the effect of one packet: a state, "." for no
// effect, "r" for a refresh, "R" for the reset timer, "a" for remembering a SYN, "A" for no effect
// unless a SYN is remembered, "f" for remembering a FIN; "*" if the packet must acknowledge the
// backend's initial sequence number, "c" or "b" after a state if the client's or the backend's FIN
// is remembered.
const machine = `
                    client:                                       backend:
                    none ACK  data FIN  S+A  SYN  RST             none ACK  data FIN  S+A  SYN  RST
SynSeen             .    .    .    .    .    .    R               .    SR   SR   SR   SR   .    CL
SynRecv             .    ES*  ES*  FC*  .    .    R               .    .    ES   .    A    .    R
Unconfirmed         .    r    r    f    .    a    R               .    ES   ES   FB   A    .    CL
Established         .    r    r    FC   .    a    R               .    r    r    FB   A    .    R
FinClient           .    r    ESc  r    .    a    R               .    r    r    LC   A    .    R
FinBackend          .    r    r    LB   .    a    R               .    r    ESb  r    A    .    R
LastAckClient       .    TC   FBc  r    .    .    R               .    r    FCb  r    .    .    R
LastAckBackend      .    r    FBc  r    .    .    R               .    TB   FCb  r    .    .    R
TimeWaitClient      .    r    FBc  r    .    .    .               .    r    FCb  r    .    .    .
TimeWaitBackend     .    r    FBc  r    .    .    .               .    r    FCb  r    .    .    .
Closed              .    .    .    .    .    .    .               .    .    .    .    SR   .    .
`

// The cells that differ for an association, which has no sequence numbers.
var machineOfSCTP = strings.NewReplacer(
	"SynRecv             .    ES*  ES*  FC*  .    .    R               .    .    ES   .    A",
	"SynRecv             .    UN   UN   UNf  .    .    R               .    .    .    .    A",
)

var stateByName = map[string]State{
	"SynSeen": SynSeen, "SynRecv": SynRecv, "Unconfirmed": Unconfirmed, "Established": Established,
	"FinClient":  FinClient,
	"FinBackend": FinBackend, "LastAckClient": LastAckClient, "LastAckBackend": LastAckBackend,
	"TimeWaitClient": TimeWaitClient, "TimeWaitBackend": TimeWaitBackend, "Closed": Closed,
	"SR": SynRecv, "UN": Unconfirmed, "UNf": Unconfirmed, "ES": Established, "FC": FinClient, "FB": FinBackend,
	"ESc": Established, "ESb": Established, "FCb": FinClient, "FBc": FinBackend,
	"LC": LastAckClient,
	"LB": LastAckBackend, "TC": TimeWaitClient, "TB": TimeWaitBackend, "CL": Closed,
}

// columns are the columns of machine for one side.
var columns = []struct {
	class class
	data  bool
}{{classNone, false}, {classACK, false}, {classACK, true}, {classFIN, false}, {classSYNACK, false}, {classSYN, false},
	{classRST, false}}

// flagsOf returns every set of flags of a class.
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
	t.Run("TCP", func(t *testing.T) { testStateMachine(t, header.ProtoTCP, machine) })
	t.Run("SCTP", func(t *testing.T) { testStateMachine(t, header.ProtoSCTP, machineOfSCTP.Replace(machine)) })
}

func testStateMachine(t *testing.T, proto uint8, machine string) {
	cells := 0
	for _, line := range strings.Split(strings.TrimSpace(machine), "\n")[2:] {
		col := strings.Fields(line)
		for i, want := range col[1:] {
			side, column := Side(i/len(columns)), columns[i%len(columns)]
			cells++
			for _, flags := range flagsOf(column.class) {
				s := seg(side, flags&(tcpFIN|tcpSYN|tcpRST|tcpACK))
				s.Flags, s.Data = flags, column.data
				name := fmt.Sprintf("%s, side %d, flags %#02x, data %v", col[0], side, flags, s.Data)
				testCell(t, name, stateByName[col[0]], proto, side, s, want)
			}
		}
	}
	if want := int(Closed) * 2 * len(columns); cells != want {
		t.Errorf("the reference has %d cells, want %d", cells, want)
	}
}

// testCell tests what one segment does to a flow without notes.
func testCell(t *testing.T, name string, state State, proto uint8, side Side, s Segment, want string) {
	t.Helper()
	const start, now = ticks(1000), ticks(1000 + 25)
	m := makeMeta(state, proto, start)
	got := m.observe(side, s, testISN, now)
	differ := func(what string) {
		t.Errorf("%s: %v, notes %x, seen %d; want %s", name, got.state(), got&metaNotes, got.seen(), what)
	}
	if bare := strings.TrimSuffix(want, "*"); bare != want {
		for _, wrong := range []uint32{testISN, s.Ack + 1, s.Ack + 1<<31} {
			other := s
			other.Ack = wrong
			if n := m.observe(side, other, testISN, now); n != m {
				t.Errorf("%s: %v by an acknowledgment of %d, want no change", name, n.state(), wrong)
			}
		}
		want = bare
	}
	switch want {
	case "a":
		if got != m|metaAgain {
			differ("nothing but a note")
		}
	case ".", "A":
		if got != m {
			differ("no change")
		}
	case "r":
		if got != m.at(now) {
			differ("a refresh")
		}
		if late := m.at(now-9).observe(side, s, testISN, now); late != m.at(now-9) {
			t.Errorf("%s: written less than a second after the last packet", name)
		}
	case "R":
		if got != m.at(now)|metaReset|meta(side)<<metaFlagsShift {
			differ("the reset timer")
		}
		for from := range Side(2) {
			if again := got.observe(from, s, testISN, now+50); s.Flags&tcpRST != 0 && again != got &&
				again.state() == state {
				t.Errorf("%s: another RST moved the timer", name)
			}
		}
	case "f", "UNf":
		if got != m.withState(Unconfirmed).at(now)|metaFin {
			differ("UNCONFIRMED with a FIN")
		}
		if again := got.observe(side, s, testISN, now+25); again != got.at(now+25) {
			t.Errorf("%s: a second FIN does not refresh", name)
		}
	case "ESc", "FBc":
		if got != m.withState(stateByName[want]).at(now)|metaFinClient {
			differ(stateByName[want].String() + " with the client's FIN")
		}
	case "ESb", "FCb":
		if got != m.withState(stateByName[want]).at(now)|metaFinBackend {
			differ(stateByName[want].String() + " with the backend's FIN")
		}
	default:
		if got != m.withState(stateByName[want]).at(now) {
			differ(want)
		}
	}
	if want == "A" {
		s.Seq++ // a segment of another handshake
		to := m.withState(SynRecv).at(now)
		if proto == header.ProtoSCTP && (state == Unconfirmed || state == Established) {
			to = m.at(now) // the server answers an INIT and keeps no state
		}
		if state == SynRecv {
			to |= metaRenewed
		}
		if got = (m | metaReset | metaAgain).observe(side, s, testISN, now); got != to {
			differ(fmt.Sprintf("%v after a SYN", to.state()))
		}
	}
}

// Checks every state, with every note, and every segment, at several times, for forbidden steps,
// independently of the reference.
func TestStateMachineProperties(t *testing.T) {
	const start = ticks(1000)
	singles := []meta{metaReset, metaReset | metaResetBackend, metaAgain, metaFin, metaFinClient, metaFinBackend,
		7 << metaRepeatShift}
	checked := 0
	for _, proto := range []uint8{header.ProtoTCP, header.ProtoSCTP} {
		for state := SynSeen; state <= Closed; state++ {
			for set := range 1 << len(singles) {
				m := makeMeta(state, proto, start)
				for i, note := range singles {
					if set>>i&1 != 0 {
						m |= note
					}
				}
				for flags := range uint8(64) {
					for variant := range 16 {
						side, s := Side(variant&1), seg(Side(variant&1), flags)
						s.Data = variant&2 != 0
						if variant&4 != 0 {
							s.Ack, s.Seq = s.Ack+12345, s.Seq+12345
						}
						now := start + 4
						if variant&8 != 0 {
							now = start + ticks(resetGrace)
						}
						n := m.observe(side, s, testISN, now)
						checked++
						if why := forbidden(m, n, side, &s, now); why != "" {
							t.Fatalf("%v, notes %x, side %d, %+v, %d ticks later: %s: %v, notes %x, seen %d",
								state, m&metaNotes, side, s, now-start, why, n.state(), n&metaNotes, n.seen()-start)
						}
					}
				}
			}
		}
	}
	if checked < 1_000_000 {
		t.Errorf("%d steps", checked)
	}
}

// forbidden returns the reason why a step is forbidden, or "".
func forbidden(m, n meta, side Side, s *Segment, now ticks) string {
	from, to := m.state(), n.state()
	rst, syn, fin := s.Flags&tcpRST != 0, s.Flags&tcpSYN != 0, s.Flags&tcpFIN != 0
	late, tcp := now-m.seen() >= 10, m.proto() == header.ProtoTCP
	same := m&metaReset != 0 && (m&metaResetBackend != 0) == (side == ReplySide)
	proven := side == ClientSide && s.Ack == 0 || side == ReplySide && s.Data
	changed := n != m && to == from && n.seen() != m.seen() || to != from
	switch {
	case to == None || to > Closed || n.proto() != m.proto() || n.pending():
		return "no such flow"
	case to != from && !rst && n&(metaReset|metaAgain|metaResetBackend|metaRepeat) != 0:
		return "notes of another state"
	case n.seen() != m.seen() && n.seen() != now:
		return "a time that never was"
	case from == SynSeen && side == ClientSide && to != SynSeen:
		return "the client alone opened a connection"
	case from == SynRecv && tcp && to > SynRecv && (rst || syn || !proven):
		return "a handshake without proof"
	case from == SynRecv && tcp && to > SynRecv && side == ReplySide && m.reset() && !late && !same:
		return "data of the backend that were under way, behind the client's RST"
	case from == SynRecv && tcp && to == SynRecv && changed && !rst && (m&metaAgain == 0 || s.Seq == testISN):
		return "a half-open flow was refreshed"
	case rst && to != from && to != Closed:
		return "an RST opened"
	case from > SynRecv && from < Closed && m.reset() && !rst && !syn && n != m &&
		!(s.Data && (same || late)) && !(side == ReplySide && late):
		return "an RST was taken back"
	case from > SynRecv && from < LastAckClient && m.reset() && !rst && !syn && s.Flags&tcpACK != 0 && s.Data &&
		same && n.reset():
		return "data did not take back the RST"
	case from == FinClient && to == Established && (side != ClientSide || !s.Data || fin || n&metaFinClient == 0):
		return "the client's FIN was taken back"
	case from == FinBackend && to == Established && (side != ReplySide || !s.Data || fin || n&metaFinBackend == 0):
		return "the backend's FIN was taken back"
	case from >= LastAckClient && from <= TimeWaitBackend && to < from &&
		(!s.Data || rst || syn || fin || to != finStates[side^1] || n&finOf(side) == 0):
		return "a connection that both ends closed is open"
	case from >= FinClient && from <= TimeWaitBackend && to > SynRecv && to < LastAckClient && to != from &&
		m&metaFins&^n != 0:
		return "a FIN was forgotten"
	case from == Established && fin && !rst && !syn && !m.reset() && side == ReplySide && m&metaFinClient != 0 &&
		to != LastAckClient:
		return "the client's FIN was forgotten"
	case from == Established && fin && !rst && !syn && !m.reset() && side == ClientSide && m&metaFinBackend != 0 &&
		to != LastAckBackend:
		return "the backend's FIN was forgotten"
	}
	return ""
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
		// TCP flags have no effect for other protocols.
		for flags := range 256 {
			m := makeMeta(c.from, c.proto, 1000)
			want := m.withState(c.to).at(1020)
			if c.from == UDPAssured {
				want += 1 << metaUsedShift
			}
			if got := m.observe(c.side, seg(c.side, uint8(flags)), 0, 1020); got != want {
				t.Errorf("%s: %v seen %d, used for %d s; want %v seen 1020, %d s", c.name, got.state(), got.seen(),
					got.usedSeconds(), c.to, want.usedSeconds())
			}
		}
	}
}

// A packet of an older batch must not make a flow look older.
func TestObserveNeverStepsBack(t *testing.T) {
	m := makeMeta(Established, header.ProtoTCP, 1000)
	for _, flags := range []uint8{tcpACK, tcpFIN, tcpRST} {
		if got := m.observe(ClientSide, seg(ClientSide, flags), 0, 950); got.seen() != 1000 {
			t.Errorf("flags %#x: seen %d, want 1000", flags, got.seen())
		}
	}
}

// step is one packet of a connection.
type step struct {
	side  Side
	flags uint8
	want  State
}

// The packet sequences of the kernel's conntrack tests that do not depend on sequence numbers.
func TestSegmentSequences(t *testing.T) {
	const C, B = ClientSide, ReplySide
	const S, A, F, R = uint8(tcpSYN), uint8(tcpACK), uint8(tcpFIN), uint8(tcpRST)
	const P, X, N = uint8(tcpPSH), uint8(tcpACK | tcpURG), uint8(tcpECE) // payload, a blind ACK, another handshake
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
				for i := range uint32(1000) {
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
		h.Observe(r, Side(now/(7000*second)&1), seg(Side(now/(7000*second)&1), tcpACK), now)
	}

	m := newFlow(header.ProtoTCP, false, 2)
	r = h.mustCreate(t, now, m)
	for range 20 {
		h.Observe(r, ClientSide, seg(ClientSide, tcpSYN), now)
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
		{"the client's, its data", ClientSide, ClientSide, tcpACK | tcpPSH, true},
		{"the client's, the backend's data", ClientSide, ReplySide, tcpACK | tcpPSH, true},
		{"the client's, the backend's ACK", ClientSide, ReplySide, tcpACK, true},
		{"the client's, its ACK", ClientSide, ClientSide, tcpACK, false},
		{"the backend's, its data", ReplySide, ReplySide, tcpACK | tcpPSH, true},
		{"the backend's, its ACK", ReplySide, ReplySide, tcpACK, true},
		{"the backend's, the client's data", ReplySide, ClientSide, tcpACK | tcpPSH, true},
		{"the backend's, the client's ACK", ReplySide, ClientSide, tcpACK, false},
	} {
		_, h := testTable(t, 10, 0)
		n := newFlow(header.ProtoTCP, false, 1)
		r := h.mustCreate(t, bootTime, n)
		h.establish(r, bootTime)
		idle := bootTime + 7000*second
		for i := range Time(239) {
			h.Observe(r, c.by, seg(c.by, tcpRST), idle+i*second)
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
		h.Observe(r, by, seg(by, tcpRST|tcpACK), bootTime)
		h.Observe(r, by^1, seg(by^1, tcpACK|tcpPSH), bootTime+second/2)
		h.Observe(r, ReplySide, seg(ReplySide, tcpACK), bootTime+second/2)
		h.Observe(r, ClientSide, seg(ClientSide, tcpFIN|tcpACK), bootTime+second/2)
		m := h.Flow(r).load()
		if tb.shedOf(m, (bootTime+second/2).ticks()) != shedNever ||
			tb.shedOf(m, (bootTime+second).ticks()) != ShedReset || m.resetBy() != by ||
			m.seen() != bootTime.ticks() || m.counts() {
			t.Errorf("side %d: %v, notes %x: not reset, or not since the RST", by, m.state(), m&metaNotes)
		}
		h.Observe(r, by, seg(by, tcpACK|tcpPSH), bootTime+second/2)
		m = h.Flow(r).load()
		if tb.shedOf(m, (bootTime+2*second).ticks()) != shedNever || m.state() != Established || !m.counts() {
			t.Errorf("side %d: %v, notes %x after data of the side that sent the RST", by, m.state(), m&metaNotes)
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
			h.Observe(r, by, seg(by, tcpFIN|tcpACK), now)
			now += 299 * second
			h.Observe(r, by, seg(by, tcpACK), now)
			if s := h.Flow(r).State(); s != FinClient+State(by) {
				t.Fatalf("side %d: %v after a FIN and an ACK", by, s)
			}
			h.Observe(r, by, seg(by, tcpACK|tcpPSH), now)
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
			now, want, life := bootTime, finStates[by^1], 299*second
			if !genuine {
				want, life = Established, 7000*second
			}
			for range 3 {
				h.Observe(r, by^1, seg(by^1, tcpFIN|tcpACK), now)
				h.Observe(r, by, seg(by, tcpFIN|tcpACK), now+second)
				h.Observe(r, by^1, seg(by^1, tcpACK), now+2*second) // acknowledges data before the FIN
				if s := h.Flow(r).State(); s < LastAckClient || s > TimeWaitBackend {
					t.Fatalf("side %d: %v after both FINs and an ACK", by, s)
				}
				now += 3 * second
				h.Observe(r, by, seg(by, tcpACK|tcpPSH), now)
				if !genuine {
					h.Observe(r, by^1, seg(by^1, tcpACK|tcpPSH), now)
				}
				h.Observe(r, by^1, seg(by^1, tcpACK), now)
				if s := h.Flow(r).State(); s != want || h.Closing(r) {
					t.Fatalf("side %d: %v after data, want %v", by, s, want)
				}
				if kind := tb.shedOf(h.Flow(r).load(), now.ticks()+9); kind != shedNever {
					t.Errorf("side %d: may be shed as %v, though it is in use", by, kind)
				}
				if kind := tb.shedOf(h.Flow(r).load(), now.ticks()+10); kind != ShedReset {
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
		for _, notes := range []meta{0, metaReset, metaAgain, metaReset | metaAgain, metaFinClient} {
			for flags := range uint8(64) {
				for side := range Side(2) {
					for _, s := range []Segment{seg(side, flags), seg(side, flags|tcpECE)} {
						m := makeMeta(state, header.ProtoTCP, bootTime.ticks()) | notes
						f.meta.Store(uint64(m))
						f.created = ticks(testISN & 0xffffffff)
						changes := h.Changes(r, side, s, bootTime+5*second)
						s.Unverified = true
						h.Observe(r, side, s, bootTime+5*second)
						if f.load().at(0) != m.at(0) || f.word() != testISN {
							t.Fatalf("%v, notes %x, side %d, %+v: notes %x, word %d", state, notes, side, s,
								f.load()&metaNotes, f.word())
						}
						s.Unverified = false
						h.Observe(r, side, s, bootTime+5*second)
						if did := f.load().at(0) != m.at(0) || f.word() != testISN; did != changes {
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
		{"handshake", []step{{B, tcpSYN | tcpACK, 0}}, d.Reset},
		{"acknowledged", []step{{B, tcpSYN | tcpACK, 0}, {C, tcpACK, 0}}, d.ResetEstablished},
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
				h.Observe(r, side, seg(side, flags), now)
			}
			for _, s := range append(c.steps, step{C, tcpRST, 0}) {
				say(s.side, s.flags)
			}
			now += Time(c.left)
			say(C, tcpSYN)
			if h.Closing(r) {
				t.Error("a new backend would be selected for the SYN")
			}
			now += second
			say(B, tcpSYN|tcpACK|tcpECE)
			now += 5 * second
			say(C, tcpACK|tcpECE)
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
		h.Observe(r, ClientSide, seg(ClientSide, tcpSYN), now)
		h.Observe(r, ReplySide, seg(ReplySide, tcpSYN|tcpACK), now)
		now += second
	}
	if got, _ := h.lookup(&n.Client, now); got != 0 {
		t.Error("SYNs keep a half-open flow alive")
	}
}
