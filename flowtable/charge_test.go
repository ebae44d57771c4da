package flowtable

import (
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	"sluice.dev/sluice/flowtable/conn"
	"sluice.dev/sluice/nat/header"
)

// standing makes a flow, brings it to a standing state and charges it.
func (h *Handle) standing(t *testing.T, n NewFlow) Ref {
	t.Helper()
	r := h.mustCreate(t, bootTime, n)
	h.establish(r, bootTime)
	h.Charge(r, Rates{}, bootTime)
	return r
}

func (t *Table) usesOf(n *NewFlow) [2]uint32 {
	return [2]uint32{
		t.SourceUse(&n.Client.Src, n.Client.V6, n.Service).Flows, t.ServiceUse(n.Service).Flows,
	}
}

// TestCharge: a standing flow is charged once, until it ends in any way.
func TestCharge(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(h *Handle, r Ref)
		want uint32
	}{
		{"stands", func(*Handle, Ref) {}, 1},
		{"charged twice", func(h *Handle, r Ref) { h.Charge(r, Rates{}, bootTime) }, 1},
		{"deleted", func(h *Handle, r Ref) { h.Delete(r) }, 0},
		{"reset", func(h *Handle, r Ref) { h.Observe(r, ClientSide, seg(ClientSide, header.TCPRST), bootTime) }, 0},
		{"reset, and it lives on", func(h *Handle, r Ref) {
			h.Observe(r, ClientSide, seg(ClientSide, header.TCPRST), bootTime)
			s := seg(ClientSide, header.TCPACK)
			s.Data = true
			h.Observe(r, ClientSide, s, bootTime+Time(2*time.Second))
		}, 1},
		{"closed", func(h *Handle, r Ref) { h.closedByBackend(r, bootTime) }, 0},
		{"closed, and data of the client follow", func(h *Handle, r Ref) {
			h.closedByBackend(r, bootTime)
			s := seg(ClientSide, header.TCPACK)
			s.Data = true
			h.Observe(r, ClientSide, s, bootTime)
			if h.Flow(r).State() != FinBackend {
				panic(h.Flow(r).State())
			}
		}, 0},
		{"closed, and data of both follow", func(h *Handle, r Ref) {
			h.closedByBackend(r, bootTime)
			for _, from := range [2]Side{ClientSide, ReplySide} {
				s := seg(from, header.TCPACK)
				s.Data = true
				h.Observe(r, from, s, bootTime)
			}
		}, 1},
		{"expired", func(h *Handle, r Ref) {
			for range 1000 {
				h.Sweep(bootTime+Time(1000*time.Hour), 1<<20)
			}
		}, 0},
		{"shed", func(h *Handle, r Ref) {
			a, i := h.arena(r&refV6 != 0), r.index()
			h.shedFlow(a, i, a.flow(i).load(), ShedIdle)
		}, 0},
		{"bound to another backend", func(h *Handle, r Ref) { h.Bind(r, 9, h.Flow(r).Service(), 77, 0, 0) }, 1},
		{"bound to another service", func(h *Handle, r Ref) { h.Bind(r, 9, 99, 77, 0, 0) }, 0},
	} {
		for _, v6 := range []bool{false, true} {
			t.Run(c.name, func(t *testing.T) {
				tb, h := testTable(t, 100, 100)
				n := newFlow(header.ProtoTCP, v6, 1)
				r := h.standing(t, n)
				c.do(h, r)
				if got := tb.usesOf(&n); got != [2]uint32{c.want, c.want} {
					t.Errorf("source and service have %d, want %d", got, c.want)
				}
				validate(t, tb)
			})
		}
	}
}

// TestChargeNeedsEnrolment: a flow for which Charge was not called changes no count, not even when
// it ends.
func TestChargeNeedsEnrolment(t *testing.T) {
	tb, h := testTable(t, 100, 0)
	n := newFlow(header.ProtoTCP, false, 1)
	r := h.mustCreate(t, bootTime, n)
	h.establish(r, bootTime)
	h.Delete(r)
	if got := tb.usesOf(&n); got != [2]uint32{} {
		t.Errorf("a flow of a service without limits left %d", got)
	}
}

// TestSourceIDs: a source is an IPv4 address, or the /64 of an IPv6 address, and a service.
func TestSourceIDs(t *testing.T) {
	s := newSources(10)
	id := func(a string, v6 bool, service uint32) uint64 {
		at := header.AddrFrom(netip.MustParseAddr(a))
		return s.idOf(&at, v6, service)
	}
	for _, c := range []struct {
		name string
		a, b uint64
		same bool
	}{
		{"address", id("198.51.100.1", false, 1), id("198.51.100.2", false, 1), false},
		{"service", id("198.51.100.1", false, 1), id("198.51.100.1", false, 2), false},
		{"within a /64", id("2001:db8::1", true, 1), id("2001:db8::ffff:1", true, 1), true},
		{"another /64", id("2001:db8::1", true, 1), id("2001:db8:0:1::1", true, 1), false},
	} {
		if (c.a == c.b) != c.same {
			t.Errorf("%s: the same %v, want %v", c.name, c.a == c.b, c.same)
		}
	}
}

// TestAllowance: the allowance agrees with a model that keeps the number of tokens, at most a
// second's worth.
func TestAllowance(t *testing.T) {
	rnd := rand.New(rand.NewPCG(testSeed(t), 1))
	for _, rate := range []uint32{1, 3, 100, 1_000_000} {
		var e source
		now, tokens := bootTime, float64(rate)
		for n := range 20_000 {
			gap := Time(rnd.Int64N(int64(3*time.Second) / int64(rate)))
			now += gap
			tokens = min(float64(rate), tokens+float64(gap)*float64(rate)/1e9)
			spent := Spent(Time(e.due.Load()), rate, now)
			if spent && tokens > 1.001 || !spent && tokens < 0.999 {
				t.Fatalf("rate %d, step %d: spent %v with %f tokens", rate, n, spent, tokens)
			}
			if !spent {
				takeToken(&e.due, rate, now)
				tokens--
			}
		}
	}
}

// TestAllowanceDebt: an allowance is overdrawn by at most a second's worth.
func TestAllowanceDebt(t *testing.T) {
	var e source
	for range 1000 {
		takeToken(&e.due, 10, bootTime)
	}
	if due := Time(e.due.Load()); due != bootTime+Burst+maxDebt {
		t.Errorf("full after %v", time.Duration(due-bootTime))
	}
}

// TestFullSet: if all sources of a set have flows, another source is not counted. Among sources
// without flows, the source whose allowance is full first is evicted.
func TestFullSet(t *testing.T) {
	s := newSources(2) // one set
	for id := uint64(1); id <= sourceWays; id++ {
		s.add(id, bootTime)
	}
	if s.add(9, bootTime) || s.missed.Load() != 1 {
		t.Errorf("a fifth source was counted; %d missed", s.missed.Load())
	}
	s.take(2, 1, bootTime)
	s.sub(2)
	s.sub(3)
	if !s.add(9, bootTime) || s.evicted.Load() != 0 {
		t.Errorf("no room, or %d evicted although one was full", s.evicted.Load())
	}
	if !s.add(10, bootTime) || s.evicted.Load() != 1 {
		t.Errorf("no room, or %d evicted", s.evicted.Load())
	}
	for id, want := range map[uint64]uint32{1: 1, 2: 0, 3: 0, 4: 1, 9: 1, 10: 1} {
		if got, _ := s.count(id); got != want {
			t.Errorf("source %d has %d flows, want %d", id, got, want)
		}
	}
}

// TestSourcesHammer: workers add and subtract in one small table at the same time; each source then
// has the sum of the flows that they added and did not subtract.
func TestSourcesHammer(t *testing.T) {
	s := newSources(4) // two sets
	seed := testSeed(t)
	var held [hammerWorkers][13]uint32
	var wg sync.WaitGroup
	for w := range held {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, uint64(w)))
			for range 50_000 {
				id := rnd.IntN(len(held[w]))
				if key := uint64(id+1) << 60; held[w][id] != 0 && rnd.IntN(2) == 0 {
					s.sub(key)
					held[w][id]--
				} else if held[w][id] < 3 && s.add(key, bootTime) {
					held[w][id]++
				}
			}
		})
	}
	wg.Wait()
	for id := range held[0] {
		want := uint32(0)
		for w := range held {
			want += held[w][id]
		}
		if got, _ := s.count(uint64(id+1) << 60); got != want {
			t.Errorf("source %d has %d flows, want %d", id, got, want)
		}
	}
}

// TestChargeHammer: several workers reset, revive and charge a flow at the same time; then it is
// charged if and only if its meta requires it.
func TestChargeHammer(t *testing.T) {
	tb, h := testTable(t, 10, 0)
	n := newFlow(header.ProtoTCP, false, 1)
	r := h.standing(t, n)
	a, f := h.arena(false), h.Flow(r)
	var wg sync.WaitGroup
	seed := testSeed(t)
	for w := range hammerWorkers {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, uint64(w)))
			for range 100_000 {
				switch rnd.IntN(3) {
				case 0:
					tb.bookCharge(a, r.index(), bootTime)
				case 1:
					if m := f.load(); f.swap(m, m^conn.MetaReset) {
						tb.book(f)
						tb.bookCharge(a, r.index(), bootTime)
					}
				case 2:
					tb.assign(a, r.index(), n.Service, uint32(rnd.IntN(3)))
					tb.book(f)
				}
			}
		})
	}
	wg.Wait()
	want := uint32(0)
	if f.load().Charges() {
		want = 1
	}
	if got := tb.usesOf(&n); got != [2]uint32{want, want} {
		t.Errorf("charged %d, want %d", got, want)
	}
}

// TestChargeAllocatesNothing: neither Charge nor the counts that a new flow reads allocate.
func TestChargeAllocatesNothing(t *testing.T) {
	tb, h := testTable(t, 10, 0)
	n := newFlow(header.ProtoTCP, false, 1)
	r := h.standing(t, n)
	if got := testing.AllocsPerRun(100, func() {
		h.Charge(r, Rates{Source: 1, Service: 1}, bootTime)
		tb.usesOf(&n)
	}); got != 0 {
		t.Errorf("%v allocations", got)
	}
}
