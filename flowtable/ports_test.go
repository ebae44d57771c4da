package flowtable

import (
	"testing"

	"sluice.dev/sluice/nat/header"
)

const backendPorts = 13616 // of the range that is configured by default

// laterFragment in the flags of a step of UDP: a fragment that is not the first one.
const laterFragment = 1 << 7

// toOneBackend returns a flow from one source address to one backend, so that all such flows
// compete for the same ports.
func toOneBackend(proto uint8, v6 bool, n uint32) NewFlow {
	f := newFlow(proto, v6, n)
	f.Backend = addrN(v6, 11, 1)
	f.Ports = Ports{First: 16384, Count: backendPorts, Start: uint16(n * 7 % backendPorts), Stride: 257}
	return f
}

// A sender that holds all ports to a backend, with flows that are over or unproven, does not keep
// other clients out, although the table has room for a million flows.
func TestPortsGiveWay(t *testing.T) {
	const B, C = ReplySide, ClientSide
	synAck, closed := step{B, header.TCPSYN | header.TCPACK, 0}, []step{{B, header.TCPFIN | header.TCPACK, 0}, {C,
		header.TCPFIN | header.TCPACK, 0},
		{B, header.TCPACK, 0}}
	open := []step{synAck, {C, header.TCPACK, 0}, {B, header.TCPACK, 0}}
	ask, answer, fragment := step{C, 0, 0}, step{B, 0, 0}, step{B, laterFragment, 0}
	for i, c := range []struct {
		name  string
		proto uint8
		steps []step
		age   Time
		want  Shed
		used  Time // seconds with packets, if it is more than one
	}{
		{"TIME_WAIT", header.ProtoTCP, append(open[:3:3], closed...), 30 * second, ShedClosed, 0},
		{"rejected", header.ProtoTCP, []step{{B, header.TCPRST, 0}}, 0, ShedClosed, 0},
		{"UDP, answered", header.ProtoUDP, []step{ask, answer}, 6 * second / 5, ShedUnreplied, 0},
		{"UDP, two questions, both answered", header.ProtoUDP, []step{ask, ask, answer, answer}, 6 * second / 5,
			ShedUnreplied, 0},
		{"SYNs", header.ProtoTCP, nil, second, ShedHalfOpen, 0},
		{"answered SYNs", header.ProtoTCP, []step{synAck}, 20 * second, ShedHalfOpen, 0},
		{"blind ACKs", header.ProtoTCP, []step{synAck, {C, header.TCPACK | tcpURG, 0}}, 20 * second, ShedHalfOpen, 0},
		{"COOKIE ECHOs", header.ProtoSCTP, open[:2], 200 * second, ShedUnconfirmed, 0},
		{"UDP, two answered in turn, idle", header.ProtoUDP, []step{ask, answer, ask, answer}, 5 * second,
			ShedIdle, 0},
		{"UDP, used for 30 s, idle", header.ProtoUDP, []step{ask, answer, ask}, (30 + 121) * second, ShedIdle, 30},
		{"UDP, used for 100 s, idle", header.ProtoUDP, []step{ask, answer, ask}, 222 * second, ShedIdle, 100},
		{"reset", header.ProtoTCP, append(open[:3:3], step{B, header.TCPRST, 0}), 2 * second, ShedReset, 0},

		{"young SYNs", header.ProtoTCP, []step{synAck}, second / 5, shedNever, 0},
		{"young COOKIE ECHOs", header.ProtoSCTP, open[:2], second / 5, shedNever, 0},
		{"open connections", header.ProtoTCP, open, 7000 * second, shedNever, 0},
		{"half-closed connections", header.ProtoTCP, append(open[:3:3], closed[0]), 250 * second, shedNever, 0},
		{"UDP, not answered", header.ProtoUDP, []step{ask}, 29 * second, shedNever, 0},
		{"UDP, just answered", header.ProtoUDP, []step{ask, answer}, 4 * second / 5, shedNever, 0},
		{"UDP, one of two answered", header.ProtoUDP, []step{ask, ask, answer}, 29 * second, shedNever, 0},
		{"UDP, one of three answered", header.ProtoUDP, []step{ask, ask, ask, answer}, 29 * second, shedNever, 0},
		{"UDP, asked again", header.ProtoUDP, []step{ask, answer, ask}, 29 * second, shedNever, 0},
		{"UDP, answered in fragments", header.ProtoUDP, []step{ask, ask, answer, fragment}, 29 * second, shedNever, 0},
		{"UDP, used for 30 s, busy", header.ProtoUDP, []step{ask, answer, ask}, (29 + 119) * second, shedNever, 30},
		{"UDP, used for 100 s, busy", header.ProtoUDP, []step{ask, answer, ask}, 218 * second, shedNever, 100},
		{"just reset", header.ProtoTCP, append(open[:3:3], step{B, header.TCPRST, 0}), second / 2, shedNever, 0},
	} {
		// A table of each kind for each case, with the families in turn: their ports take seconds.
		tables := []struct{ v6, group bool }{{false, false}, {true, true}, {true, false}, {false, true}}
		if testing.Short() {
			tables = tables[i%4 : i%4+1]
		} else {
			tables = tables[i%2*2 : i%2*2+2]
		}
		for _, table := range tables {
			v6, group := table.v6, table.group
			tb, h := testTableOf(t, Config{
				IPv4Flows: 200_000, IPv6Flows: 200_000, Timeouts: DefaultTimeouts(), Group: group,
			})
			told := false
			held := uint32(0)
			for ; ; held++ {
				if held%64 == 0 {
					h.Enter(bootTime)
				}
				n := toOneBackend(c.proto, v6, held)
				if held == backendPorts {
					break
				}
				n.SourcePort = n.Ports.First + uint16(held) // including the spare ports
				n.Tracked = group
				r := h.mustCreate(t, bootTime, n)
				for _, s := range c.steps {
					observed := seg(s.side, s.flags)
					observed.Later = s.flags&laterFragment != 0
					h.Observe(r, s.side, observed, bootTime)
				}
				for used := Time(1); used < c.used; used++ {
					h.Observe(r, B, seg(B, 0), bootTime+used*second)
				}
				told = group && Answered(h.Flow(r).State()) && h.Report(r)
			}
			now := bootTime + c.age
			var one Info
			h.Enter(now)
			if h.info(&tb.arenas[family(v6)], 1, now.Ticks(), &one); one.YieldsPort != (c.want != shedNever) {
				t.Errorf("%s, %+v: yields its port: %v", c.name, table, one.YieldsPort)
			}
			const newcomers = 300
			made := uint64(0)
			for n := range uint32(newcomers) {
				h.Enter(now)
				h.releaseHeld()
				f := toOneBackend(c.proto, v6, 100_000+n)
				r, s := h.Create(now, &f)
				if s == Created {
					made++
					if c.proto != header.ProtoUDP {
						h.establish(r, now)
					} else {
						h.assure(r, now)
					}
				} else if s != PortsExhausted {
					t.Fatalf("%s: %v", c.name, s)
				}
			}
			counts, want := tb.Counts(), uint64(b2i(c.want != shedNever)*newcomers)
			ended := want
			if told && want > 0 { // a port is for the next newcomer, and one in reserve
				want, ended = want-1, ended+1
			}
			if made != want {
				t.Errorf("%s, %+v: %d of %d got a port, want %d", c.name, table, made, newcomers, want)
			}
			if c.want != shedNever && counts.Shed[c.want] != ended {
				t.Errorf("%s, %+v: shed %v, want %d %v", c.name, table, counts.Shed, ended, c.want)
			}
			if live := counts.Live[family(v6)]; live != backendPorts+made-ended {
				t.Errorf("%s, %+v: %d flows live, want %d", c.name, table, live, backendPorts+made-ended)
			}
			validate(t, tb)
		}
	}
}

// releaseHeld releases the ports of told flows that have ended, as if other gateways had
// acknowledged the ends.
func (h *Handle) releaseHeld() {
	h.Publish()
	h.t.Changed(func(r Ref) { h.Release(r, 0) })
}

// TestRecallIsBounded: while no other gateway acknowledges the end of a flow, few flows end for
// their ports. A flow that a gateway out of step may have a copy of does not end at all, and its
// port keeps no other from being recalled.
func TestRecallIsBounded(t *testing.T) {
	const held, newcomers = 1000, 400
	_, h := groupTable(t, 10_000, 0)
	now := bootTime + 2*second
	shed := func() uint64 { return h.t.Counts().Shed[ShedUnreplied] }
	flow := func(n uint32) NewFlow {
		f := toOneBackend(header.ProtoUDP, false, n)
		f.Ports.Count, f.Ports.Start, f.Tracked = held, uint16(n%held), true
		return f
	}
	ask := func(from uint32) (made int) {
		for n := range uint32(newcomers) {
			h.Enter(now)
			f := flow(from + n)
			if r, s := h.Create(now, &f); s == Created {
				made++
				h.assure(r, now)
				h.Report(r)
			}
		}
		return made
	}
	for n := range uint32(held) {
		f := flow(n)
		f.SourcePort = f.Ports.First + uint16(n)
		at := bootTime
		if n%2 != 0 {
			at += second / 2
		}
		r := h.mustCreate(t, at, f)
		h.Observe(r, ReplySide, Segment{}, at)
		h.Report(r)
	}
	h.t.OutOfStepSince(bootTime + second)
	if made := ask(10_000); made != 0 || shed() != 0 {
		t.Errorf("copies of all may be out of step: %d of %d got a port, %d flows ended", made, newcomers, shed())
	}
	h.t.OutOfStepSince(0)
	if made := ask(20_000); made != 0 || shed() != maxRecalls {
		t.Errorf("no acknowledgement: %d of %d got a port, %d flows ended, want %d", made, newcomers, shed(),
			maxRecalls)
	}
	h.t.OutOfStepSince(bootTime + second/4) // no port of these is released now
	now += 2 * second
	before := shed()
	made := 0
	for n := range uint32(100) {
		h.Enter(now)
		f := flow(30_000 + n)
		if r, s := h.Create(now, &f); s == Created {
			made++
			h.assure(r, now)
			h.Report(r)
		}
		h.Publish()
		h.t.Changed(func(r Ref) {
			if Ticks(h.Flow(r).word()).Since(bootTime.Ticks()) > 2 {
				h.Release(r, 0)
			}
		})
	}
	if ended := shed() - before; made != 99 || ended < 100 || ended > 120 {
		t.Errorf("a gateway is out of step: %d of 100 got a port, %d flows ended, want 99, 100 to 120", made, ended)
	}
	validate(t, h.t)
}

// TestRecalledPortIsFound: searches of another handle find ports that are recalled. Few flows are
// refused for that.
func TestRecalledPortIsFound(t *testing.T) {
	const ports, newcomers = 2000, 10_000
	tb, h := groupTable(t, 10_000, 0)
	other, err := tb.Register()
	if err != nil {
		t.Fatal(err)
	}
	flow := func(n uint32) NewFlow {
		f := toOneBackend(header.ProtoUDP, false, n)
		f.Ports, f.Tracked = Ports{First: 7000, Count: ports, Start: uint16(n * 7 % ports), Stride: 13}, true
		return f
	}
	refused := 0
	for n := range uint32(newcomers) {
		now := bootTime + Time(n)*second/500
		by := h
		if n%8 == 7 {
			by = other // it has no recalled port
		}
		by.Enter(now)
		f := flow(n)
		r, s := by.Create(now, &f)
		if s == Created {
			by.Observe(r, ReplySide, Segment{}, now)
			by.Report(r)
		} else if n > 2*ports {
			refused++
		}
		by.Leave()
		h.Enter(now)
		h.releaseHeld()
	}
	if refused > newcomers/2000 {
		t.Errorf("%d of %d flows are refused", refused, newcomers-2*ports)
	}
	validate(t, tb)
}

// TestRecalledPortsRest: other gateways have forwarded questions by their copies, so released ports
// rest. Each refused flow still ends one flow at most, until maxRecalls ports are recalled, and the
// recalled ports are taken when they no longer rest.
func TestRecalledPortsRest(t *testing.T) {
	const held = 1000
	_, h := groupTable(t, 10_000, 0)
	flow := func(n uint32) NewFlow {
		f := toOneBackend(header.ProtoUDP, false, n)
		f.Ports.Count, f.Ports.Start, f.Tracked = held, uint16(n%held), true
		return f
	}
	for n := range uint32(held) {
		f := flow(n)
		f.SourcePort = f.Ports.First + uint16(n)
		r := h.mustCreate(t, bootTime, f)
		h.Observe(r, ReplySide, Segment{}, bootTime)
		h.Report(r)
	}
	shed := func() uint64 { return h.t.Counts().Shed[ShedUnreplied] }
	now := bootTime + 2*second
	for n := range uint32(400) {
		h.Enter(now)
		f := flow(10_000 + n)
		if _, s := h.Create(now, &f); s == Created {
			t.Fatal("a port that rests is taken")
		}
		h.Publish()
		h.t.Changed(func(r Ref) { h.Release(r, now) }) // a question was forwarded now
		if ended := shed(); ended > uint64(min(n+1, maxRecalls)) {
			t.Fatalf("%d flows have ended for %d refused ones", ended, n+1)
		}
	}
	now += 32 * second
	made := 0
	for n := range uint32(100) {
		h.Enter(now)
		f := flow(20_000 + n)
		f.Ports.Count, f.Ports.First = 1, f.Ports.First+uint16(n) // its own search finds no free port
		if _, s := h.Create(now, &f); s == Created {
			made++
		}
	}
	if made < 90 {
		t.Errorf("%d of 100 flows got a port after the rest", made)
	}
	validate(t, h.t)
}

// TestUntoldFirst: a flow gets the port of a flow without copies, if it finds one. The next flow
// gets the port of one with copies.
func TestUntoldFirst(t *testing.T) {
	_, h := groupTable(t, 100, 0)
	flow := func(n uint32) NewFlow {
		f := toOneBackend(header.ProtoTCP, false, n)
		f.Ports, f.Tracked = Ports{First: 7000, Count: 2, Stride: 1}, true
		return f
	}
	told := h.mustCreate(t, bootTime, flow(1))
	h.Observe(told, ReplySide, seg(ReplySide, header.TCPRST), bootTime) // ShedClosed
	h.Report(told)
	h.mustCreate(t, bootTime, flow(2))
	now := bootTime + second // ShedHalfOpen
	h.Enter(now)
	h.mustCreate(t, now, flow(3))
	if c := h.t.Counts(); c.Shed[ShedHalfOpen] != 1 || c.Shed[ShedClosed] != 1 {
		t.Errorf("shed %v: want the flow without copies, and one for the next flow", c.Shed)
	}
	h.releaseHeld()
	h.mustCreate(t, now, flow(4))
	validate(t, h.t)
}

// Create ends the holder of a tried port that is first by kind and the oldest of its kind, even if
// its port is tried last.
func TestPortHolderShedOrder(t *testing.T) {
	const B, C = ReplySide, ClientSide
	tb, h := testTable(t, 100, 0)
	now := bootTime + 200*second
	flow := func(proto uint8, n uint32, port uint16) NewFlow {
		f := newFlow(proto, false, n)
		f.Backend, f.SourcePort, f.Ports = addrN(false, 11, 1), port, Ports{}
		return f
	}
	open := []step{{B, header.TCPSYN | header.TCPACK, 0}, {C, header.TCPACK, 0}, {B, header.TCPACK, 0}}
	for i, k := range []struct {
		age   Time
		steps []step
	}{
		{100, open},                        // 7000
		{20, open[:2]},                     // 7001
		{30, open[:2]},                     // 7002
		{1, nil},                           // 7003
		{2, open[:1]},                      // 7004
		{0, nil},                           // 7005: too young
		{1, []step{{B, header.TCPRST, 0}}}, // 7006
		{2, []step{{B, header.TCPRST, 0}}}, // 7007
	} {
		born := now - k.age*second
		r := h.mustCreate(t, born, flow(header.ProtoSCTP, uint32(i), 7000+uint16(i)))
		for _, s := range k.steps {
			h.Observe(r, s.side, seg(s.side, s.flags), born)
		}
	}
	for i, want := range []uint16{7007, 7006, 7004, 7003, 7002, 7001, 0} {
		n := newFlow(header.ProtoSCTP, false, uint32(100+i))
		n.Backend, n.Ports = addrN(false, 11, 1), Ports{First: 7000, Count: 8, Start: uint16(i), Stride: 1}
		r, s := h.Create(now, &n)
		if want == 0 {
			if s != PortsExhausted {
				t.Errorf("no flow left to shed: %v", s)
			}
			break
		}
		if s != Created || h.reply(r).DstPort != want {
			t.Fatalf("flow %d: %v at port %d, want %d", i, s, h.reply(r).DstPort, want)
		}
		h.establish(r, now)
	}
	validate(t, tb)
}

// A holder that changes after it was noted is not shed.
func TestChangedPortHolderIsNotShed(t *testing.T) {
	tb, h := testTable(t, 10, 0)
	held := toOneBackend(header.ProtoUDP, false, 1)
	r := h.mustCreate(t, bootTime, held)
	h.Observe(r, ClientSide, Segment{}, bootTime)
	h.Observe(r, ReplySide, Segment{}, bootTime)
	later := bootTime + 2*second
	ps := portSearch{a: &tb.arenas[0], now: later.Ticks()}
	ps.noteHolder(h, r.index(), h.reply(r).DstPort)
	if ps.holders != 1 || h.holders[0].kind != ShedUnreplied {
		t.Fatalf("%d noted, %v", ps.holders, h.holders[0].kind)
	}
	h.Observe(r, ClientSide, Segment{}, later)
	if _, s := ps.takeHeld(h); s != PortsExhausted {
		t.Errorf("%v", s)
	}
	if got, _ := h.lookup(&held.Client, later); got != r {
		t.Error("a flow whose client asked again was ended for another")
	}
	validate(t, tb)
}

// A Create that gets no record sheds no flow.
func TestCreateWithoutRecordShedsNothing(t *testing.T) {
	tb, h := testTable(t, 10, 0)
	for n := range uint32(10) {
		h.mustCreate(t, bootTime, newFlow(header.ProtoUDP, false, n))
	}
	a := &tb.arenas[0]
	var hoard []uint32
	for i := h.local[0].get(tb, a); i != 0; i = h.local[0].get(tb, a) {
		hoard = append(hoard, i)
	}
	later := bootTime + 100*second // the ten are expired: the first search would find them
	h.Enter(later)
	n := newFlow(header.ProtoUDP, false, 100)
	if _, s := h.Create(later, &n); s != TableFull {
		t.Errorf("Create without a record: %v", s)
	}
	if c := tb.Counts(); c.Live[0] != 10 || c.Shed != [NumSheds]uint64{} {
		t.Errorf("%d of 10 flows live, shed %v", c.Live[0], c.Shed)
	}
	for _, i := range hoard {
		h.local[0].put(tb, a, a.ref(i))
	}
	validate(t, tb)
}

// A Create that fails in admit frees its record.
func TestRefusedAdmissionKeepsNoRecord(t *testing.T) {
	tb, h := testTable(t, 10, 0)
	for n := range uint32(10) {
		h.assure(h.mustCreate(t, bootTime, newFlow(header.ProtoUDP, false, n)), bootTime)
	}
	for range 2 * tb.arenas[0].records {
		n := newFlow(header.ProtoUDP, false, 100)
		if _, s := h.Create(bootTime, &n); s != TableFull {
			t.Fatal(s)
		}
	}
	validate(t, tb)
}

// TestSparePorts: for UDP, clients of one network get all ports except the spare ones, and a client
// of another network gets a spare one. For TCP, and in a small range, clients of one network get
// all ports.
func TestSparePorts(t *testing.T) {
	for _, c := range []struct {
		proto        uint8
		ports, spare uint16
	}{
		{header.ProtoUDP, 1000, 125}, {header.ProtoUDP, minSpareRange, 32}, {header.ProtoUDP, minSpareRange - 1, 0},
		{header.ProtoTCP, 1000, 0},
	} {
		for _, v6 := range []bool{false, true} {
			_, h := testTable(t, 10_000*b2u(!v6), 10_000*b2u(v6))
			create := func(src header.Addr, n uint16) (port uint16, s Status) {
				f := toOneBackend(c.proto, v6, 0)
				f.Client.Src, f.Client.SrcPort = src, n
				f.Ports.Count, f.Ports.Start = c.ports, n*7919%c.ports
				r, s := h.Create(bootTime, &f)
				if s == Created {
					port = h.reply(r).DstPort - f.Ports.First
				}
				return port, s
			}
			taken := map[uint16]bool{}
			for n := range 20 * c.ports {
				if port, s := create(addrN(v6, 13, 1), n); s == Created {
					taken[port] = true
				}
			}
			if want := int(c.ports - c.spare); len(taken) != want {
				t.Errorf("protocol %d, IPv6 %v: one network has %d of %d ports, want %d", c.proto, v6, len(taken),
					c.ports, want)
			}
			port, s := create(addrN(v6, 14, 1), 1)
			if got := s == Created && port >= c.ports-c.spare; got != (c.spare > 0) {
				t.Errorf("protocol %d, IPv6 %v: another network gets port %d of %d: %v", c.proto, v6, port, c.ports, s)
			}
		}
	}
}
