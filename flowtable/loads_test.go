package flowtable

import (
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable/conn"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/test/bed/size"
)

// The index of a BackendRef is the index that package services uses.
func TestLoadsIndex(t *testing.T) {
	tb, h := testTable(t, 10, 0)
	for _, index := range []uint32{0, 1, services.MaxBackends - 1} {
		n := newFlow(header.ProtoUDP, false, index)
		n.BackendRef = uint32(services.MakeBackendRef(index, 4095))
		n.Service = 1<<28 - 1
		r := h.mustCreate(t, bootTime, n)
		if got := tb.Loads()[index].Load(); got != 1 {
			t.Errorf("backend %d has a load of %d, want 1", index, got)
		}
		if service, ref := h.Flow(r).Owner(); service != n.Service || ref != n.BackendRef ||
			h.Flow(r).Service() != service {
			t.Errorf("the owner is %#x, %#x; want %#x, %#x", service, ref, n.Service, n.BackendRef)
		}
	}
	if len(tb.Loads()) != services.MaxBackends {
		t.Errorf("%d loads, want %d", len(tb.Loads()), services.MaxBackends)
	}
	validate(t, tb)
}

// The flows that count as connections of backend 1, through the life of a flow.
func TestLoads(t *testing.T) {
	established := func(h *Handle, r Ref) { h.establish(r, bootTime) }
	closed := func(h *Handle, r Ref) { h.establish(r, bootTime); h.closedByBackend(r, bootTime) }
	remove := func(h *Handle, r Ref) { h.Delete(r) }
	reset := func(h *Handle, r Ref) { h.Observe(r, ClientSide, seg(ClientSide, header.TCPRST), bootTime) }
	bind := func(ref uint32) func(h *Handle, r Ref) {
		return func(h *Handle, r Ref) { h.Bind(r, 1, 5, ref, 0, 0) }
	}
	type does = func(h *Handle, r Ref)
	for _, c := range []struct {
		name  string
		proto uint8
		do    []does
		want  [3]int32 // loads of backends 0 (no backend), 1, 2
	}{
		{"new TCP", header.ProtoTCP, nil, [3]int32{0, 1, 0}},
		{"new UDP", header.ProtoUDP, nil, [3]int32{0, 1, 0}},
		{"ICMP", header.ProtoICMP, nil, [3]int32{0, 1, 0}},
		{"established", header.ProtoTCP, []does{established}, [3]int32{0, 1, 0}},
		{"deleted", header.ProtoTCP, []does{established, remove}, [3]int32{}},
		{"abandoned", header.ProtoTCP, []does{func(h *Handle, r Ref) { h.Abandon(r, bootTime) }}, [3]int32{}},
		{"half closed", header.ProtoTCP, []does{established,
			func(h *Handle, r Ref) {
				h.Observe(r, ClientSide, seg(ClientSide, header.TCPFIN|header.TCPACK), bootTime)
			}},
			[3]int32{0, 1, 0}},
		{"rejected by the backend", header.ProtoTCP,
			[]does{func(h *Handle, r Ref) {
				h.Observe(r, ReplySide, seg(ReplySide, header.TCPRST|header.TCPACK),
					bootTime)
			}},
			[3]int32{}},
		{"reset", header.ProtoTCP, []does{established, reset}, [3]int32{}},
		{"reset, by both", header.ProtoTCP, []does{established, reset,
			func(h *Handle, r Ref) { h.Observe(r, ReplySide, seg(ReplySide, header.TCPRST), bootTime) }}, [3]int32{}},
		{"reset, bound to another", header.ProtoTCP, []does{established, reset, bind(2)}, [3]int32{}},
		{"reset, deleted", header.ProtoTCP, []does{established, reset, remove}, [3]int32{}},
		{"a forged RST: the connection continues", header.ProtoTCP, []does{established, reset,
			func(h *Handle, r Ref) { h.Observe(r, ReplySide, seg(ReplySide, header.TCPACK), bootTime+second) }},
			[3]int32{0, 1, 0}},
		{"a forged RST: the connection continues, and ends", header.ProtoTCP, []does{established, reset,
			func(h *Handle, r Ref) { h.Observe(r, ReplySide, seg(ReplySide, header.TCPACK), bootTime+second) }, remove},
			[3]int32{}},
		{"both sent FIN", header.ProtoTCP, []does{established, func(h *Handle, r Ref) {
			h.Observe(r, ClientSide, seg(ClientSide, header.TCPFIN|header.TCPACK), bootTime)
			h.Observe(r, ReplySide, seg(ReplySide, header.TCPFIN|header.TCPACK), bootTime)
		}}, [3]int32{}},
		{"TIME_WAIT", header.ProtoTCP, []does{closed}, [3]int32{}},
		{"TIME_WAIT, deleted", header.ProtoTCP, []does{closed, remove}, [3]int32{}},
		{"TIME_WAIT, bound again", header.ProtoTCP, []does{closed, bind(2), bind(1)}, [3]int32{}},
		{"expired, swept", header.ProtoTCP, []does{func(h *Handle, _ Ref) { h.sweepAll(bootTime + 3600*second) }},
			[3]int32{}},
		{"bound to the same", header.ProtoUDP, []does{bind(1), bind(1)}, [3]int32{0, 1, 0}},
		{"bound to another", header.ProtoUDP, []does{bind(2)}, [3]int32{0, 0, 1}},
		{"bound to another, deleted", header.ProtoUDP, []does{bind(2), remove}, [3]int32{}},
		{"bound to no backend", header.ProtoUDP, []does{bind(0)}, [3]int32{}},
		{"bound to no backend, then to one", header.ProtoUDP, []does{bind(0), bind(2)}, [3]int32{0, 0, 1}},
		{"bound when dead", header.ProtoUDP, []does{remove, bind(2), bind(1)}, [3]int32{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			tb, h := testTable(t, 100, 0)
			n := newFlow(c.proto, false, 1)
			n.BackendRef = 1
			r := h.mustCreate(t, bootTime, n)
			if again, s := h.Create(bootTime, &n); again != r || s != Exists {
				t.Fatalf("Create again: %v", s)
			}
			for _, do := range c.do {
				do(h, r)
			}
			for i, want := range c.want {
				if got := tb.Loads()[i].Load(); got != want {
					t.Errorf("backend %d has a load of %d, want %d", i, got, want)
				}
			}
			var info Info
			if h.Inspect(r, bootTime, &info) && info.Counted != (c.want != [3]int32{}) {
				t.Errorf("Inspect reports that the flow is counted: %v", info.Counted)
			}
			validate(t, tb)
		})
	}
}

// A Create that fails counts nothing; one that ends an older flow counts one.
func TestLoadsOfRefused(t *testing.T) {
	tb, h := testTableOf(t, Config{IPv4Flows: 4, HalfOpen: 4, Timeouts: DefaultTimeouts()})
	flow := func(i uint32) NewFlow {
		n := newFlow(header.ProtoUDP, false, i)
		n.BackendRef, n.Backend = 1, addrN(false, 11, 1)
		n.Ports = Ports{First: 7000, Count: 3, Stride: 1}
		return n
	}
	for i := range uint32(3) {
		r := h.mustCreate(t, bootTime, flow(i))
		h.Observe(r, ReplySide, seg(ReplySide, 0), bootTime)
		h.Observe(r, ClientSide, seg(ClientSide, 0), bootTime) // assured: not shed
	}
	n := flow(4)
	if _, s := h.Create(bootTime, &n); s != PortsExhausted {
		t.Fatal(s)
	}
	if got := tb.Loads()[1].Load(); got != 3 {
		t.Errorf("with a refused flow: %d, want 3", got)
	}
	h.mustCreate(t, bootTime+130*second, n) // an idle flow is shed
	if got := tb.Loads()[1].Load(); got != 3 {
		t.Errorf("with a new flow in place of a shed one: %d, want 3", got)
	}
	validate(t, tb)
}

// After a restart no flow is counted until it is bound.
func TestLoadsRecovered(t *testing.T) {
	c := Config{IPv4Flows: 100, Timeouts: DefaultTimeouts()}
	tb, h := testTableOf(t, c)
	flows := make([]NewFlow, 10)
	for i := range flows {
		flows[i] = newFlow(header.ProtoTCP, false, uint32(i))
		flows[i].BackendRef = 1
		if r := h.mustCreate(t, bootTime, flows[i]); i == 9 {
			h.establish(r, bootTime)
			h.closedByBackend(r, bootTime)
		}
	}
	tb, h, rec := recovered(t, copyOf(tb.mem), c, bootTime+second)
	if rec.Recovered != 10 || tb.Loads()[1].Load() != 0 {
		t.Fatalf("%+v, a load of %d; want 10 flows, and none counted", rec, tb.Loads()[1].Load())
	}
	for i := range flows {
		r, _ := h.lookup(&flows[i].Client, bootTime+second)
		h.Bind(r, 1, 7, uint32(1+i%2), 0, 0) // half of them to the ref they had
		h.Bind(r, 2, 7, uint32(1+i%2), 0, 0)
	}
	if one, two := tb.Loads()[1].Load(), tb.Loads()[2].Load(); one != 5 || two != 4 {
		t.Errorf("bound: loads %d and %d, want 5 and 4", one, two)
	}
	validate(t, tb)
}

// After a restart unbound flows are adopted. A flow that was bound meanwhile keeps its owner, and
// is not adopted afterwards.
func TestAdopt(t *testing.T) {
	c := Config{IPv4Flows: 100, Timeouts: DefaultTimeouts()}
	tb, h := testTableOf(t, c)
	flows := make([]NewFlow, 10)
	for i := range flows {
		flows[i] = newFlow(header.ProtoTCP, false, uint32(i))
		if r := h.mustCreate(t, bootTime, flows[i]); i == 9 {
			h.establish(r, bootTime)
			h.closedByBackend(r, bootTime)
		}
	}
	tb, h, _ = recovered(t, copyOf(tb.mem), c, bootTime+second)
	for i := range flows {
		r, _ := h.lookup(&flows[i].Client, bootTime+second)
		if i == 0 {
			h.Bind(r, 1, 7, 2, 0, 0)
		}
		if i == 1 {
			h.Bind(r, 1, 0, 0, 0, 0) // by a worker that found its frontend gone
		}
		if got := h.Adopt(r, 7, 1); got != (i > 1) {
			t.Errorf("flow %d adopted: %v", i, got)
		}
		if h.Adopt(r, 7, 3) {
			t.Errorf("flow %d is adopted twice", i)
		}
		if i > 1 && h.Flow(r).Binding() != 0 {
			t.Errorf("flow %d is bound", i)
		}
	}
	want := [...]int32{0, 7, 1, 0} // the closed one does not count
	for i := range want {
		if got := tb.Loads()[i].Load(); got != want[i] {
			t.Errorf("backend %d has a load of %d, want %d", i, got, want[i])
		}
	}
	validate(t, tb)
	r, _ := h.lookup(&flows[5].Client, bootTime+second)
	h.Bind(r, 1, 7, 2, 0, 0)
	if one, two := tb.Loads()[1].Load(), tb.Loads()[2].Load(); one != 6 || two != 2 {
		t.Errorf("bound afterwards: loads %d and %d, want 6 and 2", one, two)
	}
	validate(t, tb)
}

// After a restart, several workers at once do everything that can happen to a flow when it is
// bound: in any order, the loads are the sums of the flows that count.
func TestLoadsHammer(t *testing.T) {
	flows := 40_000
	if testing.Short() || size.Race {
		flows = 8_000
	}
	c := Config{IPv4Flows: uint32(flows), HalfOpen: uint32(flows), Timeouts: DefaultTimeouts()}
	old, own := testTableOf(t, c)
	for i := range flows {
		if i%64 == 0 {
			own.Enter(bootTime)
		}
		n := newFlow([]uint8{header.ProtoTCP, header.ProtoUDP}[i%2], false, uint32(i))
		r := own.mustCreate(t, bootTime, n)
		if i%2 == 0 {
			own.establish(r, bootTime)
			own.Observe(r, ClientSide, seg(ClientSide, header.TCPFIN|header.TCPACK),
				bootTime) // one FIN from being over
		}
	}
	now := bootTime + second
	tb, own, rec := recovered(t, copyOf(old.mem), c, now)
	own.Close()
	if rec.Recovered != flows {
		t.Fatalf("%+v", rec)
	}
	seed := testSeed(t)
	var here [hammerWorkers]atomic.Int32
	workers(t, tb, func(w int, h *Handle) {
		rnd := rand.New(rand.NewPCG(seed, uint64(w)))
		for i := range flows {
			here[w].Store(int32(i))
			for o := range here {
				for here[o].Load() < int32(i)-1 { // together
					runtime.Gosched()
				}
			}
			if i%64 == 0 {
				h.Enter(now)
			}
			n := newFlow([]uint8{header.ProtoTCP, header.ProtoUDP}[i%2], false, uint32(i))
			r, _ := h.lookup(&n.Client, now)
			if r == 0 {
				if n.BackendRef = uint32(rnd.IntN(4)); rnd.IntN(2) == 0 {
					h.Create(now, &n)
				}
				continue
			}
			switch rnd.IntN(6) {
			case 0:
				h.Delete(r)
			case 1:
				h.Sweep(now+3600*second*Time(rnd.IntN(2)), 3)
			case 2:
				h.Observe(r, ReplySide, seg(ReplySide, header.TCPFIN|header.TCPACK), now)
			default:
				h.Bind(r, uint32(i+1), 7, uint32(rnd.IntN(4)), 1, 1)
			}
		}
		here[w].Store(math.MaxInt32)
	})
	validate(t, tb)
	loads := tb.Loads()
	t.Logf("loads %d, %d, %d, %d", loads[0].Load(), loads[1].Load(), loads[2].Load(), loads[3].Load())
}

// Two operations on one flow at the same moment, repeated with varying time between them.
func TestLoadsRaces(t *testing.T) {
	flows := 30_000
	if testing.Short() || size.Race {
		flows = 1_000
	}
	type do = func(h *Handle, r Ref)
	bind := func(ref uint32) do { return func(h *Handle, r Ref) { h.Bind(r, 1, 7, ref, 1, 1) } }
	adopt := func(ref uint32) do { return func(h *Handle, r Ref) { h.Adopt(r, 7, ref) } }
	remove := func(h *Handle, r Ref) { h.Delete(r) }
	fin := func(h *Handle, r Ref) { h.Observe(r, ReplySide, seg(ReplySide, header.TCPFIN|header.TCPACK), bootTime) }
	for _, c := range []struct {
		name    string
		backend uint32 // the flow's backend before
		does    [2]do
	}{
		{"bound and deleted", 0, [2]do{bind(1), remove}},
		{"bound again and deleted", 1, [2]do{bind(2), remove}},
		{"bound and over", 0, [2]do{bind(1), fin}},
		{"bound twice", 0, [2]do{bind(1), bind(1)}},
		{"bound to two", 0, [2]do{bind(1), bind(2)}},
		{"bound again to two", 1, [2]do{bind(2), bind(3)}},
		{"bound to a backend and to none", 1, [2]do{bind(2), bind(0)}},
		{"adopted and deleted", 0, [2]do{adopt(1), remove}},
		{"adopted and over", 0, [2]do{adopt(1), fin}},
		{"adopted and bound", 0, [2]do{adopt(1), bind(2)}},
		{"adopted twice", 0, [2]do{adopt(1), adopt(2)}},
		{"over and deleted", 1, [2]do{fin, remove}},
		{"deleted twice", 1, [2]do{remove, remove}},
	} {
		t.Run(c.name, func(t *testing.T) {
			tb, own := testTableOf(t, Config{IPv4Flows: uint32(2 * flows), HalfOpen: uint32(flows),
				Timeouts: DefaultTimeouts()})
			refs := make([]Ref, flows)
			for i := range refs {
				n := newFlow(header.ProtoTCP, false, uint32(i))
				if n.BackendRef = c.backend; n.BackendRef == 0 {
					n.Service = 0 // as recovered
				}
				refs[i] = own.mustCreate(t, bootTime, n)
				own.establish(refs[i], bootTime)
				own.Observe(refs[i], ClientSide, seg(ClientSide, header.TCPFIN|header.TCPACK), bootTime)
			}
			own.Leave()
			seed := testSeed(t)
			var here [2]atomic.Int32
			var wg sync.WaitGroup
			for w, do := range c.does {
				h, err := tb.Register()
				if err != nil {
					t.Fatal(err)
				}
				wg.Go(func() {
					rnd := rand.New(rand.NewPCG(seed, uint64(w)))
					h.Enter(bootTime)
					for i, r := range refs {
						here[w].Store(int32(i + 1))
						for spins := 0; here[1-w].Load() <= int32(i); spins++ {
							if spins > 1000 {
								runtime.Gosched()
							}
						}
						for range rnd.IntN(64) {
							here[w].Load()
						}
						do(h, r)
					}
					h.Leave()
				})
			}
			wg.Wait()
			validate(t, tb)
		})
	}
}

// All changes of one flow's count at once, as fast as possible: each is counted exactly once.
func TestLoadsOneFlow(t *testing.T) {
	changes := 3_000_000
	if testing.Short() || size.Race {
		changes = 200_000
	}
	tb, h := testTable(t, 10, 0)
	r := h.mustCreate(t, bootTime, newFlow(header.ProtoUDP, false, 1))
	f := h.Flow(r)
	seed := testSeed(t)
	var wg sync.WaitGroup
	for w := range hammerWorkers {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, uint64(w)))
			for range changes {
				switch rnd.IntN(3) {
				case 0:
					tb.assign(h.arena(false), r.index(), 7, uint32(rnd.IntN(3)))
					tb.book(f)
				case 1:
					tb.book(f)
				case 2: // an RST, or a packet that clears it
					if m := f.load(); f.swap(m, m^conn.MetaReset) {
						tb.book(f)
					}
				}
			}
		})
	}
	wg.Wait()
	validate(t, tb)
}

// An RST and a packet that clears it at once, repeatedly: after a packet that clears it the load
// has its former value, in either order.
func TestLoadsResetRace(t *testing.T) {
	rounds := 300_000
	if testing.Short() || size.Race {
		rounds = 100_000
	}
	tb, h := testTable(t, 10, 0)
	f := h.Flow(h.mustCreate(t, bootTime, newFlow(header.ProtoTCP, false, 1)))
	toggle := func() {
		if m := f.load(); f.swap(m, m^conn.MetaReset) {
			tb.book(f)
		}
	}
	var checked, done atomic.Int64 // rounds
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := range int64(rounds) {
			for checked.Load() < n {
				runtime.Gosched()
			}
			toggle()
			done.Store(n + 1)
		}
	})
	wrong := 0
	for n := range int64(rounds) {
		checked.Store(n)
		toggle()
		for done.Load() < n+1 {
			runtime.Gosched()
		}
		if f.owner.Load()&counted != 0 != f.load().Counts() {
			wrong++
		}
	}
	wg.Wait()
	if wrong != 0 {
		t.Errorf("after %d of %d rounds the load is wrong", wrong, rounds)
	}
	validate(t, tb)
}
