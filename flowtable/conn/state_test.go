package conn

import (
	"fmt"
	"strings"
	"testing"

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
		rst, syn, fin, ack := f&header.TCPRST != 0, f&header.TCPSYN != 0, f&header.TCPFIN != 0, f&header.TCPACK != 0
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
				s := seg(side, flags&(header.TCPFIN|header.TCPSYN|header.TCPRST|header.TCPACK))
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
	const start, now = Ticks(1000), Ticks(1000 + 25)
	m := MakeMeta(state, proto, start)
	got := m.Observe(side, s, testISN, now)
	differ := func(what string) {
		t.Errorf("%s: %v, notes %x, seen %d; want %s", name, got.State(), got&MetaNotes, got.Seen(), what)
	}
	if bare := strings.TrimSuffix(want, "*"); bare != want {
		for _, wrong := range []uint32{testISN, s.Ack + 1, s.Ack + 1<<31} {
			other := s
			other.Ack = wrong
			if n := m.Observe(side, other, testISN, now); n != m {
				t.Errorf("%s: %v by an acknowledgment of %d, want no change", name, n.State(), wrong)
			}
		}
		want = bare
	}
	switch want {
	case "a":
		if got != m|MetaAgain {
			differ("nothing but a note")
		}
	case ".", "A":
		if got != m {
			differ("no change")
		}
	case "r":
		if got != m.At(now) {
			differ("a refresh")
		}
		if late := m.At(now-9).Observe(side, s, testISN, now); late != m.At(now-9) {
			t.Errorf("%s: written less than a second after the last packet", name)
		}
	case "R":
		if got != m.At(now)|MetaReset|Meta(side)<<MetaFlagsShift {
			differ("the reset timer")
		}
		for from := range Side(2) {
			if again := got.Observe(from, s, testISN, now+50); s.Flags&header.TCPRST != 0 && again != got &&
				again.State() == state {
				t.Errorf("%s: another RST moved the timer", name)
			}
		}
	case "f", "UNf":
		if got != m.WithState(Unconfirmed).At(now)|MetaFin {
			differ("UNCONFIRMED with a FIN")
		}
		if again := got.Observe(side, s, testISN, now+25); again != got.At(now+25) {
			t.Errorf("%s: a second FIN does not refresh", name)
		}
	case "ESc", "FBc":
		if got != m.WithState(stateByName[want]).At(now)|MetaFinClient {
			differ(stateByName[want].String() + " with the client's FIN")
		}
	case "ESb", "FCb":
		if got != m.WithState(stateByName[want]).At(now)|MetaFinBackend {
			differ(stateByName[want].String() + " with the backend's FIN")
		}
	default:
		if got != m.WithState(stateByName[want]).At(now) {
			differ(want)
		}
	}
	if want == "A" {
		s.Seq++ // a segment of another handshake
		to := m.WithState(SynRecv).At(now)
		if proto == header.ProtoSCTP && (state == Unconfirmed || state == Established) {
			to = m.At(now) // the server answers an INIT and keeps no state
		}
		if state == SynRecv {
			to |= MetaRenewed
		}
		if got = (m | MetaReset | MetaAgain).Observe(side, s, testISN, now); got != to {
			differ(fmt.Sprintf("%v after a SYN", to.State()))
		}
	}
}

// Checks every state, with every note, and every segment, at several times, for forbidden steps,
// independently of the reference.
func TestStateMachineProperties(t *testing.T) {
	const start = Ticks(1000)
	singles := []Meta{MetaReset, MetaReset | MetaResetBackend, MetaAgain, MetaFin, MetaFinClient, MetaFinBackend,
		7 << MetaRepeatShift}
	checked := 0
	for _, proto := range []uint8{header.ProtoTCP, header.ProtoSCTP} {
		for state := SynSeen; state <= Closed; state++ {
			for set := range 1 << len(singles) {
				m := MakeMeta(state, proto, start)
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
							now = start + Ticks(ResetGrace)
						}
						n := m.Observe(side, s, testISN, now)
						checked++
						if why := forbidden(m, n, side, &s, now); why != "" {
							t.Fatalf("%v, notes %x, side %d, %+v, %d ticks later: %s: %v, notes %x, seen %d",
								state, m&MetaNotes, side, s, now-start, why, n.State(), n&MetaNotes, n.Seen()-start)
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
func forbidden(m, n Meta, side Side, s *Segment, now Ticks) string {
	from, to := m.State(), n.State()
	rst, syn, fin := s.Flags&header.TCPRST != 0, s.Flags&header.TCPSYN != 0, s.Flags&header.TCPFIN != 0
	late, tcp := now-m.Seen() >= 10, m.Proto() == header.ProtoTCP
	same := m&MetaReset != 0 && (m&MetaResetBackend != 0) == (side == ReplySide)
	proven := side == ClientSide && s.Ack == 0 || side == ReplySide && s.Data
	changed := n != m && to == from && n.Seen() != m.Seen() || to != from
	switch {
	case to == None || to > Closed || n.Proto() != m.Proto() || n.Pending():
		return "no such flow"
	case to != from && !rst && n&(MetaReset|MetaAgain|MetaResetBackend|MetaRepeat) != 0:
		return "notes of another state"
	case n.Seen() != m.Seen() && n.Seen() != now:
		return "a time that never was"
	case from == SynSeen && side == ClientSide && to != SynSeen:
		return "the client alone opened a connection"
	case from == SynRecv && tcp && to > SynRecv && (rst || syn || !proven):
		return "a handshake without proof"
	case from == SynRecv && tcp && to > SynRecv && side == ReplySide && m.Reset() && !late && !same:
		return "data of the backend that were under way, behind the client's RST"
	case from == SynRecv && tcp && to == SynRecv && changed && !rst && (m&MetaAgain == 0 || s.Seq == testISN):
		return "a half-open flow was refreshed"
	case rst && to != from && to != Closed:
		return "an RST opened"
	case from > SynRecv && from < Closed && m.Reset() && !rst && !syn && n != m &&
		!(s.Data && (same || late)) && !(side == ReplySide && late):
		return "an RST was taken back"
	case from > SynRecv && from < LastAckClient && m.Reset() && !rst && !syn && s.Flags&header.TCPACK != 0 && s.Data &&
		same && n.Reset():
		return "data did not take back the RST"
	case from == FinClient && to == Established && (side != ClientSide || !s.Data || fin || n&MetaFinClient == 0):
		return "the client's FIN was taken back"
	case from == FinBackend && to == Established && (side != ReplySide || !s.Data || fin || n&MetaFinBackend == 0):
		return "the backend's FIN was taken back"
	case from >= LastAckClient && from <= TimeWaitBackend && to < from &&
		(!s.Data || rst || syn || fin || to != finStates[side^1] || n&finOf(side) == 0):
		return "a connection that both ends closed is open"
	case from >= FinClient && from <= TimeWaitBackend && to > SynRecv && to < LastAckClient && to != from &&
		m&MetaFins&^n != 0:
		return "a FIN was forgotten"
	case from == Established && fin && !rst && !syn && !m.Reset() && side == ReplySide && m&MetaFinClient != 0 &&
		to != LastAckClient:
		return "the client's FIN was forgotten"
	case from == Established && fin && !rst && !syn && !m.Reset() && side == ClientSide && m&MetaFinBackend != 0 &&
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
			m := MakeMeta(c.from, c.proto, 1000)
			want := m.WithState(c.to).At(1020)
			if c.from == UDPAssured {
				want += 1 << MetaUsedShift
			}
			if got := m.Observe(c.side, seg(c.side, uint8(flags)), 0, 1020); got != want {
				t.Errorf("%s: %v seen %d, used for %d s; want %v seen 1020, %d s", c.name, got.State(), got.Seen(),
					got.UsedSeconds(), c.to, want.UsedSeconds())
			}
		}
	}
}

// A packet of an older batch must not make a flow look older.
func TestObserveNeverStepsBack(t *testing.T) {
	m := MakeMeta(Established, header.ProtoTCP, 1000)
	for _, flags := range []uint8{header.TCPACK, header.TCPFIN, header.TCPRST} {
		if got := m.Observe(ClientSide, seg(ClientSide, flags), 0, 950); got.Seen() != 1000 {
			t.Errorf("flags %#x: seen %d, want 1000", flags, got.Seen())
		}
	}
}

// TestRepliesMatchAfterParse: a client alone, with any packets, cannot bring its flow to a state in
// which a plain reply matches. So header.Parse checks the first reply of any tuple, and
// header.Plain need not check tuples again.
func TestRepliesMatchAfterParse(t *testing.T) {
	timeouts := DefaultTimeouts()
	l, err := timeouts.Lifetimes()
	if err != nil {
		t.Fatal(err)
	}
	steady := l.Steady()
	seen := map[Meta]bool{}
	for _, proto := range []uint8{header.ProtoTCP, header.ProtoUDP} {
		for todo := []Meta{MakeMeta(Initial(proto), proto, 1000)}; len(todo) > 0; {
			m := todo[0]
			if todo = todo[1:]; seen[m&^MetaSeen] {
				continue
			}
			seen[m&^MetaSeen] = true
			if steady[ReplySide][uint8(m>>MetaStateShift)] >= 0 {
				t.Errorf("protocol %d: %v matches replies", proto, m.State())
			}
			for flags := range 256 {
				for _, now := range []Ticks{1000, 1015, 1600} {
					todo = append(todo, m.Observe(ClientSide, seg(ClientSide, uint8(flags)), testISN, now))
				}
			}
		}
	}
	if len(seen) < 3 {
		t.Errorf("%d states: too few for this test", len(seen))
	}
}

// The backend's initial sequence number in segments of seg, and flags with a special meaning for
// seg: the segment has data, acknowledges a guessed number, or is of a later handshake with another
// number.
const (
	testISN = 4_294_967_295 // its SYN-ACK is acknowledged by 0
	tcpPSH  = header.TCPPSH
	tcpURG  = header.TCPURG
	tcpECE  = header.TCPECE
)

// seg returns a segment of a connection on which neither end has sent data, with the backend's
// sequence number, or the client's acknowledgment number.
func seg(from Side, flags uint8) Segment {
	s := Segment{Flags: flags, Data: flags&tcpPSH != 0}
	switch {
	case from == ClientSide && flags&tcpURG != 0:
		s.Ack = 12345
	case from == ClientSide:
		s.Ack = (testISN + 1) & 0xffffffff
	case flags&header.TCPSYN != 0:
		s.Seq = testISN
	default:
		s.Seq = (testISN + 1) & 0xffffffff
	}
	if flags&tcpECE != 0 {
		s.Seq, s.Ack = s.Seq+1000, s.Ack+1000
	}
	return s
}

// TestHeaderAckedOfDatagrams: the seconds in which a UDP flow was used share a bit with the note of
// a PROXY header, which such a flow never has.
func TestHeaderAckedOfDatagrams(t *testing.T) {
	m := MakeMeta(UDPAssured, header.ProtoUDP, 0)
	for now := range Ticks(3000) {
		if m = m.Observe(ClientSide, Segment{}, 0, now); m.HeaderAcked() {
			t.Fatalf("after %d ticks the flow has a header", now)
		}
	}
}
