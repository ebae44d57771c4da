package flowtable

import (
	"math/rand/v2"
	"testing"
	"time"

	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/test/bed/size"
)

// kinds counts live flows by their kind of Shed.
func (t *Table) kinds(now Time) (n [NumSheds + 1]int) {
	for f := range t.arenas {
		for i := uint32(1); i <= t.arenas[f].records && t.arenas[f].flows > 0; i++ {
			if m := t.arenas[f].flow(i).load(); m.Live() {
				n[t.shedOf(m, now.Ticks())]++
			}
		}
	}
	return n
}

// A full table with flows of all kinds, mixed: new flows end the old ones in the
// stated order, kind by kind, and stop at the established and the busy.
func TestShedOrder(t *testing.T) {
	const each = 40 // in total no more than the budget of probes covers
	tb, h := testTableOf(t, Config{IPv4Flows: 10 * each, HalfOpen: 10 * each, Timeouts: DefaultTimeouts()})
	n := uint32(0)
	testShedOrder(t, tb, h, each, 0, func(proto uint8) NewFlow {
		n++
		return newFlow(proto, false, n)
	})
}

// The same for a table with room in which the chain of the client's key is full: all clients have
// one home, and no reply key is in its chain.
func TestFullChainShedOrder(t *testing.T) {
	const each = memberBits / 10
	tb, h := testTableOf(t, Config{IPv4Flows: 1000, HalfOpen: 1000, Timeouts: DefaultTimeouts()})
	testShedOrder(t, tb, h, each, memberBits-10*each, oneHome(tb, h, 17))
}

// oneHome returns a function that makes flows whose client keys have the same home, and whose reply
// keys are in other chains, also after MakeDirect.
func oneHome(tb *Table, h *Handle, home uint64) func(proto uint8) NewFlow {
	a, n := &tb.arenas[0], uint32(0)
	return func(proto uint8) NewFlow {
		for {
			n++
			f := newFlow(proto, false, n)
			var reply key
			f.reply(&reply)
			port, _ := f.Port(0)
			reply.ports = f.replyPorts(port)
			direct := f.Client.Reverse()
			far := func(hash uint64) bool { return a.home(hash)-home+chainBuckets > 2*chainBuckets }
			if a.home(h.Hash(&f.Client)) == home && far(h.secret.hash(false, &reply)) && far(h.Hash(&direct)) {
				return f
			}
		}
	}
}

// testShedOrder makes each flows of each kind, and more flows that are never shed, until there is
// no room. Then it makes the new flows.
func testShedOrder(t *testing.T, tb *Table, h *Handle, each, more int, flow func(proto uint8) NewFlow) {
	const B, C = ReplySide, ClientSide
	now := bootTime + 200*second
	kinds := []struct {
		proto uint8
		born  Time
		steps []step
	}{
		{header.ProtoUDP, bootTime, nil}, // expired
		{header.ProtoTCP, now, []step{{B, header.TCPRST, 0}}},
		{header.ProtoTCP, bootTime, []step{{B, header.TCPSYN | header.TCPACK, 0}, {C, header.TCPACK, 0}, {B,
			header.TCPACK, 0},
			{B, header.TCPRST, 0}}},
		{header.ProtoTCP, now, nil}, // one-sided
		{header.ProtoUDP, now, nil},
		{header.ProtoTCP, now, []step{{B, header.TCPSYN | header.TCPACK, 0}}},
		{header.ProtoSCTP, bootTime, []step{{B, header.TCPSYN | header.TCPACK, 0}, {C, header.TCPACK, 0}}},
		// unconfirmed
		{header.ProtoUDP, bootTime, []step{{B, 0, 0}, {C, 0, 0}}}, // idle
		{header.ProtoUDP, now, []step{{B, 0, 0}, {C, 0, 0}}},
		{header.ProtoTCP, bootTime, []step{{B, header.TCPSYN | header.TCPACK, 0}, {C, header.TCPACK, 0}, {B,
			header.TCPACK, 0}}},
	}
	var order []int
	for n := range 10 * each {
		order = append(order, n%10)
	}
	for range more {
		order = append(order, 9)
	}
	rand.New(rand.NewPCG(testSeed(t), 3)).Shuffle(len(order), func(i, j int) {
		order[i], order[j] = order[j],
			order[i]
	})
	for _, n := range order {
		k := kinds[n]
		f := flow(k.proto)
		if n == int(ShedOneSided) {
			f.MakeDirect(&f.Client.Src, true)
		}
		r := h.mustCreate(t, k.born, f)
		for _, s := range k.steps {
			h.Observe(r, s.side, seg(s.side, s.flags), k.born)
		}
	}
	want := [NumSheds + 1]int{each, each, each, each, each, each, each, each, 2*each + more}
	if got := tb.kinds(now); got != want {
		t.Fatalf("the table has %v, want %v", got, want)
	}
	// The new ones are established at once, so that only the old ones are shed.
	for i := range NumSheds * each {
		h.Enter(now)
		r := h.mustCreate(t, now, flow(header.ProtoTCP))
		h.establish(r, now)
		left := tb.kinds(now)
		for kind := range NumSheds {
			want := min(each, max(0, (kind+1)*each-i-1))
			if left[kind] != want {
				t.Fatalf("after %d new flows: %v left by kind, want %d %v", i+1, left, want, Shed(kind))
			}
		}
	}
	n := flow(header.ProtoTCP)
	if r, s := h.Create(now, &n); s != TableFull || r != 0 {
		t.Fatalf("only established and busy flows left: %v, want a refusal", s)
	}
	c := tb.Counts()
	shed := uint64(each)
	if c.Shed != [NumSheds]uint64{shed, shed, shed, shed, shed, shed, shed, shed} || c.Refused[TableFull] != 1 {
		t.Errorf("counted: shed %v, refused %v", c.Shed, c.Refused)
	}
	validate(t, tb)
}

// The half-open cap holds under a flood; the oldest half-open flows are shed, established flows
// stay, and a handshake that completes within the grace always succeeds.
func TestHalfOpenCap(t *testing.T) {
	const halfOpen = 1000
	tb, h := testTableOf(t, Config{IPv4Flows: 10_000, IPv6Flows: 10_000, HalfOpen: halfOpen,
		Timeouts: DefaultTimeouts()})
	var established []NewFlow
	now := bootTime
	for n := range uint32(5000) {
		f := newFlow(header.ProtoTCP, n&1 == 1, 1_000_000+n)
		h.establish(h.mustCreate(t, now, f), now)
		established = append(established, f)
	}
	refused := 0
	var honest []NewFlow
	for n := range uint32(20_000) {
		if n%64 == 0 {
			h.Enter(now)
			now += 64 * second / 1000 // 1,000 SYN/s: ten times the rate that fills the cap within 10 s
		}
		f := newFlow(header.ProtoTCP, n&1 == 1, n)
		if _, s := h.Create(now, &f); s == HalfOpenLimit {
			refused++
		} else if s != Created {
			t.Fatal(s)
		}
		if n%100 == 0 {
			f := newFlow(header.ProtoTCP, false, 2_000_000+n)
			if r, s := h.Create(now, &f); s == Created {
				h.establish(r, now+300*second/1000)
				honest = append(honest, f)
			}
		}
		if c := tb.Counts(); c.HalfOpen > halfOpen {
			t.Fatalf("%d half-open flows, the cap is %d", c.HalfOpen, halfOpen)
		}
	}
	for _, flows := range [][]NewFlow{established, honest} {
		for i := range flows {
			if r, _ := h.lookup(&flows[i].Client, now); r == 0 {
				t.Fatal("the flood ended an established flow")
			}
		}
	}
	if len(honest) < 190 {
		t.Errorf("%d of 200 honest clients got in", len(honest))
	}
	t.Logf("%d of 20000 SYNs refused, %d of 200 honest clients in", refused, len(honest))

	// All in one moment: none is old enough to be shed.
	now += 60 * second
	h.Enter(now)
	h.sweepAll(now)
	for n := range uint32(halfOpen) {
		h.mustCreate(t, now, newFlow(header.ProtoTCP, false, 3_000_000+n))
	}
	f := newFlow(header.ProtoTCP, false, 4_000_000)
	if _, s := h.Create(now, &f); s != HalfOpenLimit {
		t.Errorf("one more than the cap in one moment: %v, want a refusal", s)
	}
	if f.Client.Proto = header.ProtoUDP; tb.Counts().HalfOpen != halfOpen {
		t.Errorf("%d half-open", tb.Counts().HalfOpen)
	}
	h.mustCreate(t, now, f) // the cap is not about UDP
	validate(t, tb)
}

// sparseHalfOpen returns a table at its half-open cap: in one arena all flows are half-open, in the
// other only one of many.
func sparseHalfOpen(t testing.TB) (*Table, *Handle) {
	const dense, sparse = 999, 5000
	tb, h := testTableOf(t, Config{IPv4Flows: 10_000, IPv6Flows: 10_000, HalfOpen: dense + 1,
		Timeouts: DefaultTimeouts()})
	for n := range uint32(sparse) {
		if r := h.mustCreate(t, bootTime, newFlow(header.ProtoTCP, true, n)); n > 0 {
			h.establish(r, bootTime)
		}
	}
	for n := range uint32(dense) {
		h.mustCreate(t, bootTime, newFlow(header.ProtoTCP, false, n))
	}
	return tb, h
}

// While all half-open flows are young, the search for one to shed backs off: a SYN that is refused
// must not examine thousands of records each time. By the time they are no longer young, the search
// runs again.
func TestRefusedSYNsLookAtFewRecords(t *testing.T) {
	tb, h := sparseHalfOpen(t)
	refuse := func() {
		t.Helper()
		n := newFlow(header.ProtoTCP, true, 1_000_000)
		if _, s := h.Create(bootTime, &n); s != HalfOpenLimit {
			t.Fatalf("Create: %v, want a refusal", s)
		}
	}
	for n := range 100 {
		h.evictor.begin()
		refuse()
		examined := h.evictor.examined()
		if n >= 2 && examined != 0 || examined > maxExamined {
			t.Errorf("refusal %d of one moment examined %d records", n, examined)
		}
	}
	later := bootTime + Time(time.Second)
	h.mustCreate(t, later, newFlow(header.ProtoTCP, true, 1_000_000))
	if c := tb.Counts(); c.Shed[ShedHalfOpen] != 1 {
		t.Errorf("a second later %d half-open flows were shed, want 1", c.Shed[ShedHalfOpen])
	}
	validate(t, tb)
}

// assure brings a UDP flow to a state in which it is not shed.
func (h *Handle) assure(r Ref, now Time) {
	h.Observe(r, ReplySide, seg(ReplySide, 0), now)
	h.Observe(r, ClientSide, seg(ClientSide, 0), now)
}

// A range of ports is used completely if the order contains every port, and the number of tries is
// bounded.
func TestPorts(t *testing.T) {
	flow := func(n uint32) NewFlow {
		f := newFlow(header.ProtoUDP, false, n)
		f.Backend = addrN(false, 11, 1)
		f.Ports = Ports{First: 65000, Count: 16, Start: uint16(n), Stride: 3}
		return f
	}
	tb, h := testTable(t, 100, 0)
	for n := range uint32(16) {
		r := h.mustCreate(t, bootTime, flow(n))
		if p := h.reply(r).DstPort; p < 65000 || p >= 65016 {
			t.Errorf("port %d is outside the range", p)
		}
		h.assure(r, bootTime)
	}
	full := flow(17)
	if _, s := h.Create(bootTime, &full); s != PortsExhausted {
		t.Errorf("all ports taken: %v", s)
	}
	for range 3 * reserve(100) { // refusals use up no records
		if _, s := h.Create(bootTime, &full); s != PortsExhausted {
			t.Fatalf("all ports taken, again: %v", s)
		}
	}
	other := flow(18)
	other.Backend = addrN(false, 11, 2)
	h.mustCreate(t, bootTime, other) // another backend has its own ports
	source := flow(19)
	source.Source = addrN(false, 172, 2)
	h.mustCreate(t, bootTime, source) // and so has another source

	preferred := flow(20)
	preferred.Backend, preferred.SourcePort = addrN(false, 11, 3), 4321
	r := h.mustCreate(t, bootTime, preferred)
	if h.reply(r).DstPort != 4321 {
		t.Error("the preferred port was free and not taken")
	}
	h.assure(r, bootTime)
	preferred.Client.SrcPort++
	if r := h.mustCreate(t, bootTime, preferred); h.reply(r).DstPort == 4321 {
		t.Error("the preferred port was given twice")
	}
	only := flow(30)
	only.Backend, only.SourcePort, only.Ports = addrN(false, 11, 3), 4321, Ports{}
	if _, s := h.Create(bootTime, &only); s != PortsExhausted {
		t.Errorf("no choice but a taken port: %v", s)
	}
	for _, stride := range []uint16{0, 16, 48} {
		lazy := flow(100 + 20*uint32(stride))
		lazy.Backend, lazy.Ports.Stride = addrN(false, 11, 4+uint32(stride)), stride
		for range 16 {
			h.assure(h.mustCreate(t, bootTime, lazy), bootTime)
			lazy.Client.SrcPort++
		}
	}
	validate(t, tb)
}

// The client's tuple may equal the reply tuple of a flow; then no flow can be made for it.
func TestClientTupleIsAReply(t *testing.T) {
	tb, h := testTable(t, 100, 0)
	r := h.mustCreate(t, bootTime, newFlow(header.ProtoUDP, false, 1))
	n := newFlow(header.ProtoUDP, false, 2)
	n.Client = h.reply(r)
	if got, s := h.Create(bootTime, &n); got != 0 || s != PortsExhausted {
		t.Errorf("Create: %d %v", got, s)
	}
	validate(t, tb)
}

// An expired flow holds neither its tuple nor its port, swept or not.
func TestExpiredGivesWay(t *testing.T) {
	tb, h := testTable(t, 100, 0)
	n := newFlow(header.ProtoUDP, false, 1)
	n.SourcePort, n.Ports = 2000, Ports{}
	old := h.mustCreate(t, bootTime, n)
	later := bootTime + 100*second
	again := h.mustCreate(t, later, n)
	if again == old {
		t.Error("the expired record was used again at once")
	}
	other := newFlow(header.ProtoUDP, false, 2)
	other.Backend, other.SourcePort, other.Ports = n.Backend, 2000, Ports{}
	even := later + 100*second
	if r := h.mustCreate(t, even, other); h.reply(r).DstPort != 2000 {
		t.Error("the expired flow's port was not free")
	}
	validate(t, tb)
}

func TestSweepPace(t *testing.T) {
	tb, h := testTable(t, 10_000, 5_000)
	for n := range uint32(15_000) {
		h.mustCreate(t, bootTime, newFlow(header.ProtoUDP, n%3 == 0, n))
	}
	now := bootTime + 40*second
	expired := 0
	for range 5000 { // 5 s in steps of a millisecond
		h.Enter(now)
		_, n := h.Sweep(now, tb.SweepQuota(time.Millisecond))
		expired += n
	}
	if expired != 15_000 {
		t.Errorf("%d of 15000 expired flows ended in five seconds", expired)
	}
	if q, all := tb.SweepQuota(time.Hour), int(tb.positions()); q != all {
		t.Errorf("after an hour's stop: %d records, want %d: the whole table, once", q, all)
	}
	if q := tb.SweepQuota(-time.Second); q != 0 {
		t.Errorf("time went back: quota %d", q)
	}
	validate(t, tb)
}

func TestNoAllocations(t *testing.T) {
	if size.Race {
		t.Skip("the race detector allocates")
	}
	_, h := testTable(t, 1000, 1000)
	now := bootTime
	n := uint32(0)
	buf := make([]Info, 8)
	if got := testing.AllocsPerRun(5000, func() {
		n++
		now += second / 100
		h.Enter(now)
		f := newFlow([]uint8{header.ProtoTCP, header.ProtoUDP, header.ProtoICMP}[n%3], n%2 == 0, n)
		hash := h.Hash(&f.Client)
		h.match(&f.Client, now)
		r, _ := h.Create(now, &f)
		if r, side := h.Lookup(hash, &f.Client, now); r != 0 {
			h.Observe(r, side, seg(side, header.TCPSYN), now)
			h.Observe(r, ReplySide, seg(ReplySide, header.TCPSYN|header.TCPACK), now)
			h.Closing(r)
		}
		if n%5 == 0 && r != 0 {
			h.Delete(r)
		}
		h.Sweep(now, 50)
		h.Dump(0, buf, now)
		if n%7 == 0 {
			h.Leave()
		}
	}); got != 0 {
		t.Errorf("%v allocations per packet", got)
	}
}
