package flowtable

import (
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"sluice.dev/sluice/flowtable/conn"
	"sluice.dev/sluice/nat/header"
)

func groupTable(t testing.TB, flows4, flows6 uint32) (*Table, *Handle) {
	t.Helper()
	return testTableOf(t, Config{IPv4Flows: flows4, IPv6Flows: flows6, Timeouts: DefaultTimeouts(), Group: true})
}

// tracked is newFlow for a flow that other gateways shall have.
func tracked(v6 bool, n uint32) NewFlow {
	f := newFlow(header.ProtoTCP, v6, n)
	f.Tracked = true
	return f
}

// foreign returns the record of the n-th client's flow at another gateway.
func foreign(v6 bool, n uint32, s State) conn.Record {
	f := newFlow(header.ProtoTCP, v6, n)
	source := addrN(v6, 173, 1)
	return conn.Record{Client: f.Client, State: s, Reply: header.Tuple{
		Src: f.Backend, SrcPort: f.BackendPort, Dst: source, DstPort: uint16(1024 + n), Proto: header.ProtoTCP, V6: v6,
	}}
}

// onlyPort returns f with the source port of another flow's reply tuple as the only choice.
func onlyPort(f NewFlow, reply header.Tuple) NewFlow {
	f.Backend, f.BackendPort, f.Source, f.SourcePort = reply.Src, reply.SrcPort, reply.Dst, reply.DstPort
	f.Ports = Ports{}
	return f
}

func TestHeldPorts(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, told := range []bool{false, true} {
			tb, h := groupTable(t, 100, 100)
			r := h.mustCreate(t, bootTime, tracked(v6, 1))
			reply := h.reply(r)
			if told && !h.Report(r) {
				t.Fatal("Report says that the flow has ended")
			}
			h.Delete(r)
			if got := h.Held(r); got != told || tb.HeldPorts() != b2i(told) {
				t.Errorf("told %t: held %t, %d held ports", told, got, tb.HeldPorts())
			}
			validate(t, tb)
			if got, _ := h.lookup(&reply, bootTime); got != 0 {
				t.Error("the backend's packets find a flow that has ended")
			}
			again := onlyPort(tracked(v6, 2), reply)
			want := map[bool]Status{false: Created, true: PortsExhausted}[told]
			if _, s := h.Create(bootTime, &again); s != want {
				t.Errorf("told %t: a new flow with the port gets %v, want %v", told, s, want)
			}
			h.mustCreate(t, bootTime, tracked(v6, 1)) // the client is free to connect again
			h.Release(r, h.now)
			h.Release(r, h.now)
			if _, s := h.Create(bootTime, &again); told && s != Created {
				t.Errorf("after the release: %v", s)
			}
			validate(t, tb)
		}
	}
}

// TestReleasedPortRests: the port of a UDP flow of which another gateway has forwarded a datagram
// rests until the backend does not answer that one any more, also if the flow itself had long been
// over. Otherwise it does not, nor does a connection's.
func TestReleasedPortRests(t *testing.T) {
	const released = bootTime + 300*second
	for _, v6 := range []bool{false, true} {
		for _, tt := range []struct {
			proto     uint8
			forwarded Time
			until     Time
		}{
			{header.ProtoUDP, released - 20*second, released + 11*second},
			{header.ProtoUDP, released - 200*second, released},
			{header.ProtoUDP, math.MaxInt64, released + 31*second},
			{header.ProtoUDP, 0, released},
			{header.ProtoTCP, released, released},
		} {
			tb, h := groupTable(t, 100, 100)
			flow := func(n uint32) NewFlow {
				f := newFlow(tt.proto, v6, n)
				f.Backend, f.Ports, f.Tracked = addrN(v6, 11, 1), Ports{First: 7000, Count: 1}, true
				return f
			}
			r := h.mustCreate(t, bootTime, flow(1))
			h.Observe(r, ReplySide, Segment{Flags: header.TCPSYN | header.TCPACK}, bootTime)
			if !h.Report(r) {
				t.Fatal("Report says that the flow has ended")
			}
			h.Enter(bootTime + 20*second)
			h.Delete(r)
			h.Enter(released)
			h.Release(r, tt.forwarded)
			other := flow(2)
			for at := Time(released); ; at += second {
				h.Enter(at)
				if _, s := h.Create(at, &other); s == Created {
					if at != tt.until {
						t.Errorf("%+v: another client gets the port after %d s, want %d", tt, (at-released)/second,
							(tt.until-released)/second)
					}
					break
				}
			}
			validate(t, tb)
		}
	}
}

// TestLastDatagram: the gateway that ends a copy knows whether datagrams have passed it, also the
// first one, in the same moment, at a worker whose time is earlier. Records of the owner are no
// datagrams.
func TestLastDatagram(t *testing.T) {
	for _, state := range []State{UDPReplied, UDPAssured} {
		for _, tt := range []struct {
			name  string
			at    Time // when a datagram passes
			seen  bool
			ticks int32 // 10 s after the copy was made
		}{
			{"none", 0, false, 0}, {"at once", bootTime, true, 99},
			{"at an earlier worker", bootTime - second/5, true, 101}, {"later", bootTime + 7*second, true, 29},
			{"now", bootTime + 10*second, true, 0},
		} {
			_, h := groupTable(t, 100, 100)
			rec := foreign(true, 1, state)
			rec.Client.Proto, rec.Reply.Proto = header.ProtoUDP, header.ProtoUDP
			r, s := h.Copy(bootTime, 1, &rec)
			if s != Created {
				t.Fatal(s)
			}
			if tt.seen {
				h.Observe(r, ClientSide, Segment{}, tt.at)
			}
			if rec.State = UDPAssured; state == UDPReplied {
				h.UpdateCopy(r, &rec, bootTime+second)
			}
			if ticks, seen := h.EndCopy(r, bootTime+10*second); ticks != tt.ticks || seen != tt.seen || h.Live(r) {
				t.Errorf("%v, %s: seen %t %d ticks ago, want %t, %d", state, tt.name, seen, ticks, tt.seen, tt.ticks)
			}
		}
	}
	_, h := groupTable(t, 100, 0)
	rec := foreign(false, 1, Established)
	r, _ := h.Copy(bootTime, 1, &rec)
	if _, seen := h.EndCopy(r, bootTime); seen {
		t.Error("a connection has datagrams")
	}
}

// TestHeldPortsOutliveTheProcess: killed, or replaced by another process, or moved to a larger
// table.
func TestHeldPortsOutliveTheProcess(t *testing.T) {
	c := Config{IPv4Flows: 100, IPv6Flows: 100, Timeouts: DefaultTimeouts(), Group: true}
	size, err := Size(c)
	if err != nil {
		t.Fatal(err)
	}
	ends := map[string]func(mem []byte, old *Table) (*Table, error){
		"killed": func(mem []byte, _ *Table) (*Table, error) {
			tb, rec, err := Recover(mem, c, bootTime)
			if rec.Torn+rec.Expired != 0 || rec.Recovered != 1 {
				t.Errorf("recovery %+v", rec)
			}
			return tb, err
		},
		"handed over": func(mem []byte, old *Table) (*Table, error) {
			used, err := old.Used()
			if err != nil {
				return nil, err
			}
			tb, err := Share(mem, c)
			if err == nil {
				err = tb.Assume(used, bootTime)
			}
			return tb, err
		},
		"moved": func(_ []byte, old *Table) (*Table, error) {
			large := c
			large.IPv4Flows = 200
			size, _ := Size(large)
			tb, rec, err := moveFlows(old, readerOf(headVersion), heapMemory(size), large, bootTime, false)
			if rec.Torn != 0 || rec.Recovered != 1 {
				t.Errorf("recovery %+v", rec)
			}
			return tb, err
		},
	}
	for name, next := range ends {
		t.Run(name, func(t *testing.T) {
			mem := heapMemory(size)
			old, err := New(mem, c)
			if err != nil {
				t.Fatal(err)
			}
			h, _ := old.Register()
			h.Enter(bootTime)
			r, stays := h.mustCreate(t, bootTime, tracked(false, 1)), tracked(false, 3)
			reply := h.reply(r)
			h.Report(r)
			h.Delete(r)
			h.mustCreate(t, bootTime, stays)
			h.Leave()
			tb, err := next(mem, old)
			if err != nil {
				t.Fatal(err)
			}
			validate(t, tb)
			h, _ = tb.Register()
			h.Enter(bootTime)
			again := onlyPort(tracked(false, 2), reply)
			if _, s := h.Create(bootTime, &again); s != PortsExhausted || tb.HeldPorts() != 1 {
				t.Errorf("the port is asked for: %v; %d held ports", s, tb.HeldPorts())
			}
			if r, _ := h.lookup(&stays.Client, bootTime); r == 0 {
				t.Error("the flow that lives is gone")
			}
			for slot := range tb.Slots() {
				if r := tb.AtSlot(slot); r != 0 && h.Held(r) {
					h.Release(r, h.now)
				}
			}
			if _, s := h.Create(bootTime, &again); s != Created {
				t.Errorf("after the release: %v", s)
			}
			validate(t, tb)
		})
	}
}

// TestHeldPortsWithoutGroup: a process without a group frees the ports that the one before it held.
func TestHeldPortsWithoutGroup(t *testing.T) {
	c := Config{IPv4Flows: 100, IPv6Flows: 100, Timeouts: DefaultTimeouts(), Group: true}
	alone := c
	alone.Group = false
	for _, v6 := range []bool{false, true} {
		for name, next := range map[string]func(mem []byte, old *Table) (*Table, error){
			"killed": func(mem []byte, _ *Table) (*Table, error) {
				tb, _, err := Recover(mem, alone, bootTime)
				return tb, err
			},
			"handed over": func(mem []byte, old *Table) (*Table, error) {
				used, err := old.Used()
				if err != nil {
					return nil, err
				}
				tb, err := Share(mem, alone)
				if err == nil {
					err = tb.Assume(used, bootTime)
				}
				return tb, err
			},
		} {
			size, err := Size(c)
			if err != nil {
				t.Fatal(err)
			}
			mem := heapMemory(size)
			old, err := New(mem, c)
			if err != nil {
				t.Fatal(err)
			}
			h, _ := old.Register()
			h.Enter(bootTime)
			r, stays := h.mustCreate(t, bootTime, tracked(v6, 1)), tracked(v6, 3)
			reply := h.reply(r)
			h.Report(r)
			h.Delete(r)
			h.mustCreate(t, bootTime, stays)
			h.Leave()
			tb, err := next(mem, old)
			if err != nil {
				t.Fatal(err)
			}
			validate(t, tb)
			h, _ = tb.Register()
			h.Enter(bootTime)
			again := onlyPort(newFlow(header.ProtoTCP, v6, 2), reply)
			if _, s := h.Create(bootTime, &again); s != Created || tb.HeldPorts() != 0 {
				t.Errorf("%s: the port is asked for: %v; %d held ports", name, s, tb.HeldPorts())
			}
			if r, _ := h.lookup(&stays.Client, bootTime); r == 0 {
				t.Errorf("%s: the flow that lives is gone", name)
			}
			validate(t, tb)
		}
	}
}

// TestHeldPortsThatDoNotFit: held ports that do not fit into a smaller table count as flows that do
// not fit.
func TestHeldPortsThatDoNotFit(t *testing.T) {
	c := Config{IPv4Flows: 4000, Timeouts: DefaultTimeouts(), Group: true}
	size, err := Size(c)
	if err != nil {
		t.Fatal(err)
	}
	old, err := New(heapMemory(size), c)
	if err != nil {
		t.Fatal(err)
	}
	h, _ := old.Register()
	const held = 3000
	h.Enter(bootTime)
	for n := range uint32(held) {
		r := h.mustCreate(t, bootTime, tracked(false, n))
		h.Report(r)
		h.Delete(r)
	}
	h.Leave()
	small := c
	small.IPv4Flows = 100
	size, _ = Size(small)
	if _, _, err := moveFlows(old, readerOf(headVersion), heapMemory(size), small, bootTime, false); err != errNoFit {
		t.Errorf("%d held ports are moved to a table of 100 flows: %v, want %v", held, err, errNoFit)
	}
	tb, rec, err := moveFlows(old, readerOf(headVersion), heapMemory(size), small, bootTime, true)
	if err != nil {
		t.Fatal(err)
	}
	if rec.Lost == 0 || rec.Lost+tb.HeldPorts() != held {
		t.Errorf("by force: %d are lost, %d held, want %d together", rec.Lost, tb.HeldPorts(), held)
	}
	validate(t, tb)
}

// TestDamagedHeldPort: a port that is not held any more, because its record is damaged, is counted.
func TestDamagedHeldPort(t *testing.T) {
	c := Config{IPv4Flows: 100, Timeouts: DefaultTimeouts(), Group: true}
	tb, h := testTableOf(t, c)
	r := h.mustCreate(t, bootTime, tracked(false, 1))
	h.Report(r)
	h.Delete(r)
	h.Flow(r).sum++
	want := Recovery{Torn: 1, Damaged: 1}
	if _, _, rec := recovered(t, copyOf(tb.mem), c, bootTime); rec != want {
		t.Errorf("%+v, want %+v", rec, want)
	}
	size, _ := Size(c)
	_, rec, err := moveFlows(tb, readerOf(headVersion), heapMemory(size), c, bootTime, false)
	if rec.Torn != want.Torn || rec.Damaged != want.Damaged || err != nil {
		t.Errorf("moved: %+v, %v, want %+v", rec, err, want)
	}
}

// TestLossesAreNoted: a process that is killed after it has dropped flows leaves a note of that for
// the next one, until the group knows of the loss.
func TestLossesAreNoted(t *testing.T) {
	c := Config{IPv4Flows: 100, Timeouts: DefaultTimeouts(), Group: true}
	small := c
	small.IPv4Flows = 2
	size, err := Size(c)
	if err != nil {
		t.Fatal(err)
	}
	move := func(c Config, force bool) func(*testing.T, []byte) *Table {
		return func(t *testing.T, mem []byte) *Table {
			old, err := openView(mem, Config{IPv4Flows: 100, Timeouts: c.Timeouts, Group: true})
			if err != nil {
				t.Fatal(err)
			}
			tb, _, err := moveFlows(old, readerOf(headVersion), heapMemory(size), c, bootTime, force)
			if err != nil {
				t.Fatal(err)
			}
			return tb
		}
	}
	inPlace := func(t *testing.T, mem []byte) *Table { tb, _, _ := recovered(t, mem, c, bootTime); return tb }
	for _, k := range []struct {
		name   string
		lose   func(t *testing.T, mem []byte) *Table
		damage func(h *Handle, live, held Ref)
		noted  bool
	}{
		{"nothing is lost", inPlace, func(*Handle, Ref, Ref) {}, false},
		{"a flow", inPlace, func(h *Handle, live, _ Ref) { h.Flow(live).sum++ }, true},
		{"a held port", inPlace, func(h *Handle, _, held Ref) { h.Flow(held).sum++ }, true},
		{"nothing is lost by a move", move(c, false), func(*Handle, Ref, Ref) {}, false},
		{"a flow of a moved table", move(c, false), func(h *Handle, live, _ Ref) { h.Flow(live).sum++ }, true},
		{"flows that do not fit", move(small, true), func(*Handle, Ref, Ref) {}, true},
	} {
		t.Run(k.name, func(t *testing.T) {
			tb, h := testTableOf(t, c)
			for n := range uint32(4) {
				h.mustCreate(t, bootTime, tracked(false, 10+n))
			}
			live, held := h.mustCreate(t, bootTime, tracked(false, 1)), h.mustCreate(t, bootTime, tracked(false, 2))
			h.Report(held)
			h.Delete(held)
			k.damage(h, live, held)
			tb = k.lose(t, copyOf(tb.mem))
			c := c
			c.IPv4Flows = tb.arenas[0].flows
			for range 2 {
				var rec Recovery
				if tb, _, rec = recovered(t, copyOf(tb.mem), c, bootTime); rec.Unnoted != k.noted || rec.Damaged != 0 {
					t.Errorf("the next process: %+v, want unnoted losses: %t", rec, k.noted)
				}
			}
			tb.NoteLosses()
			if _, _, rec := recovered(t, copyOf(tb.mem), c, bootTime); rec.Unnoted {
				t.Error("the loss was noted")
			}
		})
	}
}

func TestHoldPort(t *testing.T) {
	tb, h := groupTable(t, 100, 0)
	rec := foreign(false, 1, Established)
	r, ok := h.HoldPort(bootTime, &rec)
	if !ok || tb.HeldPorts() != 1 {
		t.Fatalf("%t, %d held ports", ok, tb.HeldPorts())
	}
	validate(t, tb)
	again := onlyPort(tracked(false, 2), rec.Reply)
	if _, s := h.Create(bootTime, &again); s != PortsExhausted {
		t.Errorf("the port is asked for: %v", s)
	}
	if _, ok := h.HoldPort(bootTime, &rec); ok {
		t.Error("a port is held twice")
	}
	h.Release(r, h.now)
	h.mustCreate(t, bootTime, again)
	validate(t, tb)
}

// TestCopiesStay: a copy neither expires nor makes room for other flows, until its owner follows
// the clock.
func TestCopiesStay(t *testing.T) {
	tb, h := groupTable(t, 100, 100)
	day := bootTime + 86400*second
	for _, v6 := range []bool{false, true} {
		var copies []conn.Record
		for n := range uint32(100 / copyShare) {
			rec := foreign(v6, n, SynRecv)
			if _, s := h.Copy(bootTime, 1, &rec); s != Created {
				t.Fatal(s)
			}
			copies = append(copies, rec)
		}
		rec := foreign(v6, 99, Established)
		if _, s := h.Copy(bootTime, 1, &rec); s != TableFull {
			t.Errorf("beyond the owner's share: %v", s)
		}
		if _, s := h.Copy(bootTime, 2, &rec); s != Created {
			t.Errorf("of another owner: %v", s)
		}
		for n := range uint32(200) {
			f := newFlow(header.ProtoTCP, v6, 1000+n)
			h.Create(day, &f)
		}
		for range 20 {
			h.Enter(day)
			h.Sweep(day, SweepRecords)
		}
		for _, c := range copies {
			for side, tuple := range []header.Tuple{c.Client, c.Reply} {
				r, got := h.lookup(&tuple, day)
				if r == 0 || got != Side(side) || h.OwnerOf(r) != 1 {
					t.Fatalf("%v finds flow %d, side %d", tuple, r, got)
				}
			}
		}
		validate(t, tb)
	}
	if n := h.halfOpenFlows(); n > int32(tb.Counts().MaxHalfOpen) || tb.CopiesOf(1) != 100 {
		t.Errorf("%d half-open flows of %d, %d copies", n, tb.Counts().MaxHalfOpen, tb.CopiesOf(1))
	}
	tb.FollowClock(1, true)
	later := day + 86400*second
	for range 20 {
		h.Enter(later)
		h.Sweep(later, SweepRecords)
	}
	if tb.CopiesOf(1) != 0 || tb.CopiesOf(2) != 2 || tb.group.halfOpen.Load() != 0 {
		t.Errorf("%d copies are left, %d of the other owner, %d half-open", tb.CopiesOf(1), tb.CopiesOf(2),
			tb.group.halfOpen.Load())
	}
	validate(t, tb)
}

// TestOpenCopies: copies count as open connections by their state.
func TestOpenCopies(t *testing.T) {
	tb, h := groupTable(t, 100, 100)
	want := func(n int) {
		t.Helper()
		if got := tb.OpenCopies(); got != n {
			t.Errorf("%d copies of open connections, want %d", got, n)
		}
		validate(t, tb)
	}
	over, udp, rec := foreign(true, 1, TimeWaitClient), foreign(false, 2, UDPAssured), foreign(false, 3, SynRecv)
	udp.Client.Proto, udp.Reply.Proto = header.ProtoUDP, header.ProtoUDP
	for _, r := range []*conn.Record{&over, &udp} {
		if _, s := h.Copy(bootTime, 1, r); s != Created {
			t.Fatal(s)
		}
	}
	want(0)
	r, _ := h.Copy(bootTime, 2, &rec)
	want(1)
	h.Observe(r, ClientSide, seg(ClientSide, header.TCPACK), bootTime)
	want(1)
	rec.State = TimeWaitClient
	h.UpdateCopy(r, &rec, bootTime)
	want(0)
	h.Observe(r, ClientSide, Segment{Flags: header.TCPACK, Data: true}, bootTime) // revokes the FIN
	want(1)
	h.Delete(r)
	want(0)
	own := h.mustCreate(t, bootTime, tracked(false, 4))
	h.MarkCopy(own, 1, bootTime)
	want(1)
}

// TestRevokedAfterTakeOver: an end that an owner revokes while another process takes the table over
// does not return to the owner.
func TestRevokedAfterTakeOver(t *testing.T) {
	_, h := groupTable(t, 100, 100)
	rec := foreign(false, 1, FinClient)
	r, _ := h.Copy(bootTime, 1, &rec)
	h.MarkCopy(r, 1, bootTime)
	rec.State = Established
	if h.UpdateCopy(r, &rec, bootTime); h.Flow(r).State() != Established {
		t.Errorf("the copy is %v, want %v", h.Flow(r).State(), Established)
	}
}

// TestProofIsTold: a member tells of a proof until it knows that the owner has one. A process that
// is given a table tells of proofs that may be of its predecessor's last moment.
func TestProofIsTold(t *testing.T) {
	_, h := groupTable(t, 100, 100)
	want := func(r Ref, want bool) {
		t.Helper()
		if s := h.CopyState(r); s.State != Established || s.Proof != want {
			t.Errorf("the copy is %v, its proof to tell %t, want %t", s.State, s.Proof, want)
		}
	}
	rec := foreign(false, 1, SynRecv)
	r, _ := h.Copy(bootTime, 1, &rec)
	h.Observe(r, ClientSide, Segment{Flags: header.TCPACK, Ack: rec.ISN + 1}, bootTime)
	want(r, true)
	h.UpdateCopy(r, &rec, bootTime) // the owner does not know yet
	want(r, true)
	h.MarkCopy(r, 1, bootTime)
	want(r, true)
	h.MarkCopy(r, 1, bootTime+Time(2*DefaultTimeouts().SynAckSeen))
	want(r, false)

	rec = foreign(false, 2, Established)
	r, _ = h.Copy(bootTime, 1, &rec)
	want(r, false)
	rec.State, rec.ISN = SynRecv, 7
	h.UpdateCopy(r, &rec, bootTime) // a new handshake
	h.Observe(r, ClientSide, Segment{Flags: header.TCPACK, Ack: rec.ISN + 1}, bootTime)
	want(r, true)
	rec.State, rec.ISN = Established, 0
	h.UpdateCopy(r, &rec, bootTime)
	want(r, false)
}

// TestAcknowledgedHeaderStays: a copy whose PROXY header the backend has acknowledged keeps that,
// and its owner is to learn of it, until the owner's record is of another handshake.
func TestAcknowledgedHeaderStays(t *testing.T) {
	tb, h := groupTable(t, 100, 100)
	rec := foreign(false, 1, Established)
	rec.Proxied, rec.Opening, rec.ISN = true, 5000, 7000
	r, _ := h.Copy(bootTime, 1, &rec)
	changes := func() (n int) {
		h.Publish()
		tb.Changed(func(Ref) { n++ })
		return n
	}
	h.HeaderAcked(r)
	want := func(what string, acked bool, told int) {
		t.Helper()
		if s, n := h.CopyState(r), changes(); s.HeaderAcked != acked || h.Insertion(r).Acked != acked || n != told {
			t.Errorf("%s: acknowledged %t, to tell %t, %d changes", what, h.Insertion(r).Acked, s.HeaderAcked, n)
		}
	}
	want("here", true, 1)
	h.UpdateCopy(r, &rec, bootTime)
	want("the owner does not know", true, 1)
	rec.ISN++
	h.UpdateCopy(r, &rec, bootTime)
	want("another handshake", false, 0)
	rec.ISN, rec.HeaderAcked = 0, true
	h.UpdateCopy(r, &rec, bootTime)
	want("the owner says so", true, 0)
}

// TestCopyIsItsFlow: a copy of each state has the record of the flow that it was made of, and
// follows it.
func TestCopyIsItsFlow(t *testing.T) {
	_, h := groupTable(t, 100, 100)
	_, member := groupTable(t, 100, 100)
	check := func(of, r Ref) {
		t.Helper()
		var want, got conn.Record
		if !h.Record(of, &want) || !member.Record(r, &got) || got != want {
			t.Fatalf("the copy is %+v, the flow %+v", got, want)
		}
	}
	for n, proxied := range []bool{false, true} {
		f := tracked(n == 1, uint32(n))
		f.Proxied, f.SYN, f.HasSYN = proxied, 7000, true
		r := h.mustCreate(t, bootTime, f)
		if h.Record(r, new(conn.Record)) {
			t.Error("a flow without an answer has a record")
		}
		observe := func(from Side, s Segment) { h.Observe(r, from, s, bootTime) }
		syn := Segment{Flags: header.TCPSYN | header.TCPACK, Seq: testISN, Ack: 7001}
		observe(ReplySide, syn)
		var rec conn.Record
		h.Record(r, &rec)
		if rec.State != SynRecv || rec.ISN != testISN || !rec.Possible() {
			t.Errorf("record %+v", rec)
		}
		c, s := member.Copy(bootTime, 1, &rec)
		if s != Created {
			t.Fatal(s)
		}
		check(r, c)
		for _, step := range []func(){
			func() { observe(ClientSide, seg(ClientSide, header.TCPACK)) },
			func() { h.HeaderAcked(r) },
			func() { observe(ClientSide, seg(ClientSide, header.TCPFIN|header.TCPACK)) },
			func() { observe(ReplySide, seg(ReplySide, header.TCPFIN|header.TCPACK)) },
		} {
			step()
			h.Record(r, &rec)
			member.UpdateCopy(c, &rec, bootTime)
			check(r, c)
		}
	}
}

// TestEndsStay: a copy keeps the ends of its connection that packets have shown here, and reports
// them to the owner, until the owner's record has them. The owner can revoke ends that its record
// had.
func TestEndsStay(t *testing.T) {
	tb, h := groupTable(t, 100, 100)
	const fin = header.TCPFIN | header.TCPACK
	for n, k := range []struct {
		owner []State // of its records
		here  []Side  // FINs after the first record; the ACK of the last FIN follows two
		want  State
		told  bool
	}{
		{[]State{Established, Established}, []Side{ClientSide}, FinClient, true},
		{[]State{Established, Established}, []Side{ReplySide}, FinBackend, true},
		{[]State{Established, FinClient}, []Side{ClientSide}, FinClient, false},
		{[]State{Established, FinClient}, []Side{ReplySide}, LastAckClient, true},
		{[]State{Established, FinBackend}, []Side{ClientSide}, LastAckBackend, true},
		{[]State{Established, Established}, []Side{ReplySide, ClientSide}, TimeWaitBackend, true},
		{[]State{Established, FinClient}, []Side{ReplySide, ClientSide}, TimeWaitClient, true},
		{[]State{Established, TimeWaitClient}, []Side{ReplySide, ClientSide}, TimeWaitClient, false},
		{[]State{FinClient, Established}, nil, Established, false},
		{[]State{LastAckClient, FinBackend}, nil, FinBackend, false},
		{[]State{FinClient, FinClient}, []Side{ReplySide}, TimeWaitClient, true},
		{[]State{FinClient, Established}, []Side{ReplySide}, FinBackend, true},
		{[]State{FinBackend, LastAckBackend}, []Side{ClientSide}, TimeWaitBackend, true},
	} {
		rec := foreign(n%2 == 1, uint32(n), k.owner[0])
		r, s := h.Copy(bootTime, 1, &rec)
		if s != Created {
			t.Fatal(s)
		}
		for _, side := range k.here {
			h.Observe(r, side, seg(side, fin), bootTime)
		}
		if m := h.Flow(r).State(); len(k.here) > 0 && (m == LastAckClient || m == LastAckBackend) {
			first := Side(b2i(m == LastAckBackend))
			h.Observe(r, first, seg(first, header.TCPACK), bootTime)
		}
		h.Publish()
		tb.Changed(func(Ref) {})
		told := 0
		rec.State = k.owner[1]
		h.UpdateCopy(r, &rec, bootTime)
		h.Publish()
		tb.Changed(func(Ref) { told++ })
		if got := h.Flow(r).State(); got != k.want || (told > 0) != k.told {
			t.Errorf("records %v, FINs here of %v: %v, to tell %t; want %v, %t", k.owner, k.here, got, told > 0, k.want,
				k.told)
		}
		rec.State = h.Flow(r).State() // the owner knows
		h.UpdateCopy(r, &rec, bootTime)
		rec.State = Established // the owner has revoked them
		if h.UpdateCopy(r, &rec, bootTime); h.Flow(r).State() != Established {
			t.Errorf("records %v, FINs here of %v: %v after the owner has revoked them", k.owner, k.here,
				h.Flow(r).State())
		}
		validate(t, tb)
	}
}

// TestSawAssociation: the owner of an association learns of its handshake and of its end as packets
// show them at another gateway.
func TestSawAssociation(t *testing.T) {
	_, h := groupTable(t, 100, 100)
	_, member := groupTable(t, 100, 100)
	for n, together := range []bool{false, true} {
		f := newFlow(header.ProtoSCTP, n == 1, uint32(n))
		f.Tracked = true
		r := h.mustCreate(t, bootTime, f)
		h.Observe(r, ReplySide, Segment{Flags: header.TCPSYN | header.TCPACK}, bootTime)
		var rec conn.Record
		h.Record(r, &rec)
		c, s := member.Copy(bootTime, 1, &rec)
		if s != Created {
			t.Fatal(s)
		}
		for _, step := range []struct {
			from  Side
			flags uint8
			want  State
		}{
			{ClientSide, header.TCPACK, Unconfirmed},
			{ReplySide, header.TCPACK, Established},
			{ClientSide, header.TCPFIN | header.TCPACK, FinClient},
			{ReplySide, header.TCPFIN | header.TCPACK, LastAckClient},
			{ClientSide, header.TCPACK, TimeWaitClient},
		} {
			member.Observe(c, step.from, Segment{Flags: step.flags}, bootTime)
			if together && step.want != TimeWaitClient {
				continue
			}
			h.ApplyCopyState(r, member.CopyState(c), bootTime)
			if at := h.Flow(r).State(); at != step.want || member.Flow(c).State() != step.want {
				t.Errorf("the owner's flow is %v, the copy %v, want %v", at, member.Flow(c).State(), step.want)
			}
		}
	}
}

// TestCopyOfResetFlow: a flow that is made of a record with an RST is live, and has the RST until
// the owner's record has none. It ends as any other.
func TestCopyOfResetFlow(t *testing.T) {
	tb, h := groupTable(t, 100, 100)
	for n, own := range []bool{false, true} {
		for side := range Side(2) {
			rec := foreign(side == 1, uint32(n), Established)
			rec.Reset, rec.ResetBy = true, side
			r, s := h.Copy(bootTime, 1, &rec)
			if own {
				h.Delete(r)
				r, s = h.Restore(bootTime, &rec)
			}
			var got conn.Record
			if s != Created || !h.Live(r) || !h.Record(r, &got) || got != rec {
				t.Fatalf("own %t, side %d: %v, live %t, %+v", own, side, s, h.Live(r), got)
			}
			if own && !h.Report(r) {
				t.Errorf("side %d: the flow is not told", side)
			}
			rec.Reset, rec.ResetBy = false, 0
			if h.UpdateCopy(r, &rec, bootTime); !own && h.Flow(r).load().Reset() {
				t.Errorf("side %d: the owner's record has no RST, and the copy has", side)
			}
			if err := tb.Validate(); err != nil {
				t.Error(err)
			}
			h.Delete(r)
			if own {
				h.Release(r, 0)
			}
			if err := tb.Validate(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestLostStays: the owner learns that a copy's backend has lost the connection, also if a record
// of the owner arrives first.
func TestLostStays(t *testing.T) {
	tb, h := groupTable(t, 100, 0)
	rec := foreign(false, 1, Established)
	r, _ := h.Copy(bootTime, 1, &rec)
	h.EndLost(r)
	for range 2 {
		told := false
		h.Publish()
		tb.Changed(func(of Ref) { told = told || of == r })
		if !told || !h.Live(r) {
			t.Error("the owner is not told")
		}
		h.UpdateCopy(r, &rec, bootTime) // the next stream has the record
	}
	if !h.CopyState(r).Lost {
		t.Error("a record that was under way has removed the note")
	}
	if h.UpdateCopy(r, &rec, bootTime); h.CopyState(r).Lost {
		t.Error("the owner has been told, and its record changes nothing")
	}
}

func TestChanged(t *testing.T) {
	tb, h := groupTable(t, 2*changesSize, 0)
	changed := func() (list []Ref, more bool) {
		h.Publish()
		more = tb.Changed(func(r Ref) { list = append(list, r) })
		return list, more
	}
	f := tracked(false, 1)
	r, own := h.mustCreate(t, bootTime, f), h.mustCreate(t, bootTime, newFlow(header.ProtoTCP, false, 2))
	steps := []struct {
		name string
		do   func()
		want int
	}{
		{"made", func() {}, 0},
		{"answered", func() { h.Observe(r, ReplySide, seg(ReplySide, header.TCPSYN|header.TCPACK), bootTime) }, 1},
		{"a flow of no group", func() {
			h.Observe(own, ReplySide, seg(ReplySide, header.TCPSYN|header.TCPACK), bootTime)
		}, 0},
		{"another number of the backend", func() {
			h.Observe(r, ReplySide, Segment{Flags: header.TCPACK, Seq: 9}, bootTime)
		}, 1},
		{"ended, and told", func() { h.Report(r); h.Delete(r) }, 1},
		{"nothing", func() {}, 0},
	}
	for _, s := range steps {
		s.do()
		list, more := changed()
		if more || len(list) != s.want || s.want == 1 && list[0] != r {
			t.Errorf("%s: changed %v, more %t", s.name, list, more)
		}
	}
}

// TestManyChanges: if a ring is full, records that have changed are found, and no others. Each call
// has bounded work. The end of a copy is found also if its record has another flow.
func TestManyChanges(t *testing.T) {
	const flows, changed = 80_000, 3 * changesSize
	tb, h := groupTable(t, flows, 100)
	var all []Ref
	for n := range uint32(flows - 1) {
		if n%64 == 0 {
			h.Enter(bootTime)
		}
		f := newFlow(header.ProtoUDP, false, n)
		f.Tracked = true
		all = append(all, h.mustCreate(t, bootTime, f))
	}
	rec := foreign(true, 1, Established)
	last, _ := h.Copy(bootTime, 1, &rec)
	find := func(what string, want map[Ref]bool) {
		t.Helper()
		h.Publish()
		calls := 0
		for more := true; more; calls++ {
			n := 0
			more = tb.Changed(func(r Ref) {
				if n++; !want[r] {
					t.Fatalf("%s: record %d has not changed, or is found twice", what, r)
				}
				delete(want, r)
			})
			if n > changesSize+missedCalls || calls > 1000 {
				t.Fatalf("%s: %d records in a call, %d calls", what, n, calls)
			}
		}
		if len(want) > 0 {
			t.Errorf("%s: %d records are not found", what, len(want))
		}
	}
	for _, step := range []uint32{1, (flows - 1) / changed} {
		want := map[Ref]bool{}
		for n := range uint32(changed) {
			h.change(all[n*step])
			want[all[n*step]] = true
		}
		find("changed", want)
	}
	find("nothing", map[Ref]bool{})
	want := map[Ref]bool{last: true}
	for n := range changesSize {
		h.change(all[n])
		want[all[n]] = true
	}
	h.Delete(last)
	for n := uint32(0); ; n++ {
		h.Enter(bootTime)
		if r := h.mustCreate(t, bootTime, newFlow(header.ProtoUDP, true, 100+n)); r == last {
			break
		}
	}
	find("the end of a copy", want)
	validate(t, tb)
}

func TestAnswer(t *testing.T) {
	_, h := groupTable(t, 100, 0)
	r := h.mustCreate(t, bootTime, tracked(false, 1))
	if said, left := h.Answer(r); said != 0 || left {
		t.Errorf("at first %d, %t", said, left)
	}
	h.Decide(r, 3)
	if !h.AnswerLeaves(r) || h.GiveUp(r) {
		t.Error("the answer does not leave, or the flow is given up after that")
	}
	if said, left := h.Answer(r); said != 3 || !left || h.Flow(r).State() == None {
		t.Errorf("then %d, %t", said, left)
	}
	r = h.mustCreate(t, bootTime, tracked(false, 2))
	if !h.GiveUp(r) || h.AnswerLeaves(r) || h.Flow(r).load().Live() {
		t.Error("the flow is not given up, or its answer leaves")
	}
}

// TestTellAndEnd: handles make, change and end flows, while a reader tells the ledger of them and
// releases held ports. At the end no port is held.
func TestTellAndEnd(t *testing.T) {
	tb, err := NewHeap(Config{IPv4Flows: 4096, Timeouts: DefaultTimeouts(), Group: true})
	if err != nil {
		t.Fatal(err)
	}
	var stop atomic.Bool
	var reader, writers sync.WaitGroup
	told, released := 0, 0
	read := func(h *Handle) {
		h.Enter(bootTime)
		see := func(r Ref) {
			switch {
			case h.Held(r):
				h.Release(r, h.now)
				released++
			case !h.Reported(r) && h.Tracked(r) && h.Record(r, new(conn.Record)) && h.Report(r):
				told++
			}
		}
		for tb.Changed(see) {
		}
		h.Leave()
	}
	rh, err := tb.Register()
	if err != nil {
		t.Fatal(err)
	}
	reader.Go(func() {
		for !stop.Load() {
			read(rh)
		}
	})
	for w := range uint32(3) {
		h, err := tb.Register()
		if err != nil {
			t.Fatal(err)
		}
		writers.Go(func() {
			for round := range uint32(20_000) {
				if round%64 == 0 {
					runtime.Gosched() // on one CPU the reader has its turn, too
				}
				h.Enter(bootTime)
				f := tracked(false, w*1000+round%97)
				r, s := h.Create(bootTime, &f)
				if s == Created {
					h.Observe(r, ReplySide, seg(ReplySide, header.TCPSYN|header.TCPACK), bootTime)
				}
				if r, _ := h.lookup(&f.Client, bootTime); r != 0 && round%3 != 0 {
					h.Delete(r)
				}
			}
			h.Leave()
		})
	}
	writers.Wait()
	stop.Store(true)
	reader.Wait()
	read(rh)
	read(rh)
	t.Logf("told of %d flows, released %d ports", told, released)
	if told == 0 || released == 0 || tb.HeldPorts() != 0 {
		t.Errorf("%d ports are held", tb.HeldPorts())
	}
	validate(t, tb)
}
