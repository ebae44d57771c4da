package services

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"

	"sluice.dev/sluice/nat/header"
)

// choosers returns a snapshot with a frontend and a set of backends at addr(100+i):8080 with the
// given weights.
func choosers(by Scheduler, weights ...uint16) (*Snapshot, *Frontend, *EndpointSet) {
	b := NewBuilder(nil)
	b.Settings().SelectKey = [2]uint64{11, 22}
	svc := &Service{ID: 1, Scheduler: by, Identity: 0xfeed}
	set := &EndpointSet{Weights: weights}
	for i := range weights {
		be := Backend{Addr: addr(100 + i), Port: 8080, Ref: MakeBackendRef(uint32(i), 1), Service: 1}
		b.SetBackend(be)
		set.Backends = append(set.Backends, be.Ref)
		if !by.ByLoad() {
			for range weights[i] {
				set.Table = append(set.Table, uint16(i))
			}
		}
	}
	b.SetService(svc)
	return b.Build(), &Frontend{Service: svc, Turn: new(Turn)}, set
}

func client(n int) *header.Tuple {
	return &header.Tuple{Src: addr(n / 50), Dst: addr(2), SrcPort: uint16(1024 + n%50), DstPort: 80,
		Proto: header.ProtoTCP}
}

// TestSchedulersShare: 12,000 flows of 240 clients over three backends with weights 1, 2, 3.
// Connections stay open, so the load is the number of earlier choices.
func TestSchedulersShare(t *testing.T) {
	const flows = 12_000
	equal, weighted := []int{4000, 4000, 4000}, []int{2000, 4000, 6000}
	for _, tt := range []struct {
		name string
		by   Scheduler
		want []int
		off  int // tolerance
	}{
		{"maglev", Maglev, weighted, 250},
		{"random", Random, weighted, 250},
		{"source hash", SourceHash, weighted, 2000}, // 240 clients only: 7 are a standard deviation
		{"in turn", RoundRobin, weighted, 0},        // follows the table, which has weights
		{"in turn by weight", WeightedRoundRobin, weighted, 0},
		{"least connections", LeastConn, equal, 1},
		{"least connections by weight", WeightedLeastConn, weighted, 2},
		{"shortest delay", ShortestDelay, weighted, 2},
		{"never queue", NeverQueue, weighted, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, f, set := choosers(tt.by, 1, 2, 3)
			loads := make([]atomic.Int32, 3)
			rnd := rand.New(rand.NewPCG(1, 2))
			got := make([]int, 3)
			for n := range flows {
				c := s.Choose(f, set, &Draw{Tuple: client(n), Random: rnd.Uint64(), Loads: loads})
				if tt.by.ByLoad() != (c.Slot < 0) || c.Slot >= 0 && set.Backends[set.Table[c.Slot]] != c.Backend {
					t.Fatalf("backend %#x of slot %d", c.Backend, c.Slot)
				}
				loads[c.Backend.Index()].Add(1)
				got[c.Backend.Index()]++
			}
			for i := range got {
				if d := got[i] - tt.want[i]; d < -tt.off || d > tt.off {
					t.Errorf("backends got %v flows, want %v within %d", got, tt.want, tt.off)
				}
			}
		})
	}
}

// TestHashInputs: each scheduler's hash depends on exactly the listed parts of the flow.
func TestHashInputs(t *testing.T) {
	const backends = 50
	weights := slices.Repeat([]uint16{1}, backends)
	for _, tt := range []struct {
		name                            string
		by                              Scheduler
		affinity                        uint32
		port, source, dst, service, key bool // does a change of it change the choice?
	}{
		{"maglev", Maglev, 0, true, true, true, false, true},
		{"maglev with affinity", Maglev, 60, false, true, false, true, true},
		{"sh", SourceHash, 0, false, true, false, false, true},
		{"sh with affinity", SourceHash, 60, false, true, false, false, true},
		{"dh", DestinationHash, 0, false, false, true, false, true},
	} {
		for _, vary := range []struct {
			name  string
			want  bool
			apply func(*Snapshot, *Service, *header.Tuple, int)
		}{
			{"source port", tt.port, func(_ *Snapshot, _ *Service, tu *header.Tuple,
				n int) {
				tu.SrcPort = uint16(2000 + n)
			}},
			{"source address", tt.source, func(_ *Snapshot, _ *Service, tu *header.Tuple,
				n int) {
				tu.Src = addr(3000 + n)
			}},
			{"frontend address", tt.dst, func(_ *Snapshot, _ *Service, tu *header.Tuple,
				n int) {
				tu.Dst = addr(4000 + n)
			}},
			{"service", tt.service, func(_ *Snapshot, svc *Service, _ *header.Tuple,
				n int) {
				svc.Identity = uint64(n)
			}},
			{"key", tt.key, func(s *Snapshot, _ *Service, _ *header.Tuple, n int) { s.SelectKey[1] = uint64(n + 1) }},
			{"key", tt.key, func(s *Snapshot, _ *Service, _ *header.Tuple, n int) { s.SelectKey[0] = uint64(n + 1) }},
		} {
			got := map[BackendRef]int{}
			for n := range 500 {
				s, f, set := choosers(tt.by, weights...)
				f.Service.AffinitySeconds = tt.affinity
				tuple := *client(7)
				vary.apply(s, f.Service, &tuple, n)
				got[s.Choose(f, set, &Draw{Tuple: &tuple}).Backend]++
			}
			// 500 draws of 50 mostly reach all 50 (a probability of 0.2 % that one is left out); 35
			// is far from 50 and from 1.
			if (len(got) > 35) != vary.want || !vary.want && len(got) != 1 {
				t.Errorf("%s: 500 values of the %s gave %d backends of %d, want it to matter: %v", tt.name, vary.name,
					len(got), backends, vary.want)
			}
		}
	}
}

// TestAnother: with any scheduler, the excluded backend is chosen only if it is alone, and the
// others by their shares. One flow chooses repeatedly.
func TestAnother(t *testing.T) {
	for by := range NumSchedulers {
		s, f, set := choosers(by, 1, 40, 2, 2, 3)
		want := []int{1000, 0, 2000, 2000, 3000} // the excluded one has most of the slots
		if by.ByLoad() {
			want = []int{2000, 0, 2000, 2000, 2000}
		}
		rnd, got := rand.New(rand.NewPCG(1, uint64(by))), make([]int, 5)
		for range 8000 {
			d := Draw{Tuple: client(1), Random: rnd.Uint64(), Loads: make([]atomic.Int32, 5), Not: set.Backends[1]}
			c := s.Choose(f, set, &d)
			if set.at(c.Slot) != c.Backend {
				t.Fatalf("scheduler %d: %#x is not in slot %d", by, c.Backend, c.Slot)
			}
			got[c.Backend.Index()]++
		}
		for i := range got {
			// 250 is six standard deviations.
			if off := got[i] - want[i]; want[i] == 0 && off != 0 || off < -250 || off > 250 {
				t.Errorf("scheduler %d: got %v, want about %v", by, got, want)
			}
		}
		s, f, set = choosers(by, 3)
		if c := s.Choose(f, set, &Draw{Tuple: client(1), Not: set.Backends[0]}); c.Backend != set.Backends[0] {
			t.Errorf("scheduler %d: the only backend is not chosen: %v", by, c)
		}
		if c := s.Choose(f, &EndpointSet{}, &Draw{Tuple: client(1)}); c != (Choice{Slot: -1}) {
			t.Errorf("scheduler %d: an empty set gives %v", by, c)
		}
	}
}

// TestAnotherNode: a direct Service's flow gets the node of the hash, which other gateways find
// without a record, and another one only if that node is excluded.
func TestAnotherNode(t *testing.T) {
	for _, by := range []Scheduler{Maglev, SourceHash, DestinationHash} {
		s, f, set := choosers(by, 2, 2, 2)
		f.Service.Direct = true
		for i := range 500 {
			usual := s.Choose(f, set, &Draw{Tuple: client(i)})
			for _, not := range set.Backends {
				c := s.Choose(f, set, &Draw{Tuple: client(i), Random: uint64(i) << 32, Not: not})
				if not != usual.Backend && c != usual || c.Backend == not {
					t.Fatalf("scheduler %d: %v without %#x, usually %v", by, c, not, usual)
				}
			}
		}
	}
}

// TestDryRunTakesNoTurn: a dry run does not change the next choice.
func TestDryRunTakesNoTurn(t *testing.T) {
	s, f, set := choosers(RoundRobin, 1, 1, 1)
	for n := range 9 {
		dry := s.Choose(f, set, &Draw{Tuple: client(n), DryRun: true})
		if took := s.Choose(f, set, &Draw{Tuple: client(n)}); took != dry || took.Slot != n%3 {
			t.Fatalf("turn %d: the dry run chose %v, the flow got %v", n, dry, took)
		}
	}
}

// TestSetWithoutTable: a set needs no table if all weights are 1.
func TestSetWithoutTable(t *testing.T) {
	for _, by := range []Scheduler{Maglev, RoundRobin} {
		s, f, set := choosers(by, 1, 1, 1, 1)
		bare := &EndpointSet{Backends: set.Backends}
		for n := range 50 {
			with := s.Choose(f, set, &Draw{Tuple: client(n), DryRun: true})
			if got := s.Choose(f, bare, &Draw{Tuple: client(n)}); got != with {
				t.Fatalf("scheduler %d: %v, with the equal table %v", by, got, with)
			}
		}
	}
}

// TestLeastPrefers: the comparisons, without ties.
func TestLeastPrefers(t *testing.T) {
	for _, tt := range []struct {
		name    string
		by      Scheduler
		loads   []int32
		weights []uint16
		want    int
	}{
		{"lc: fewest", LeastConn, []int32{3, 2, 4}, []uint16{1, 1, 9}, 1},
		{"wlc: 6/3 before 3/1", WeightedLeastConn, []int32{3, 6, 5}, []uint16{1, 3, 2}, 1},
		{"wlc: large numbers", WeightedLeastConn, []int32{1<<31 - 1, 1<<31 - 2}, []uint16{65535, 65535}, 1},
		{"sed: 1/2 before 1/1, both idle", ShortestDelay, []int32{0, 0}, []uint16{1, 2}, 1},
		{"sed: queues at the fast one", ShortestDelay, []int32{0, 1}, []uint16{1, 3}, 1},
		{"nq: the idle one", NeverQueue, []int32{0, 1}, []uint16{1, 3}, 0},
		{"nq: none idle, as sed", NeverQueue, []int32{1, 1}, []uint16{1, 3}, 1},
		{"a count below zero is none", LeastConn, []int32{0, -5, 0}, []uint16{1, 1, 1}, -1},
	} {
		s, f, set := choosers(tt.by, tt.weights...)
		loads := make([]atomic.Int32, len(tt.loads))
		for i := range loads {
			loads[i].Store(tt.loads[i])
		}
		got := map[uint32]bool{}
		for n := range 100 {
			got[s.Choose(f, set, &Draw{Tuple: client(n), Loads: loads}).Backend.Index()] = true
		}
		if tt.want >= 0 && (len(got) != 1 || !got[uint32(tt.want)]) {
			t.Errorf("%s: chose %v", tt.name, got)
		}
		if tt.want < 0 && len(got) != len(tt.loads) {
			t.Errorf("%s: of %d equal backends %v are chosen", tt.name, len(tt.loads), got)
		}
	}
}

// TestTiesSpread: idle backends get equal shares, whichever of them are idle.
func TestTiesSpread(t *testing.T) {
	s, f, set := choosers(LeastConn, slices.Repeat([]uint16{1}, 10)...)
	loads := make([]atomic.Int32, 10)
	for i := range loads[2:] {
		loads[2+i].Store(1)
	}
	got := make([]int, 10)
	for n := range 10_000 {
		got[s.Choose(f, set, &Draw{Tuple: client(n), Loads: loads}).Backend.Index()]++
	}
	if got[0] < 4700 || got[0] > 5300 || got[0]+got[1] != 10_000 {
		t.Errorf("two idle backends of ten got %v", got)
	}
}

// TestLeastOfMany: of up to 1,024 backends the one with the fewest connections is always found. Of
// more, 1,024 are compared from a random one on, and each backend is among them in some choices.
func TestLeastOfMany(t *testing.T) {
	for _, n := range []int{1024, 1025, 3000} {
		s, f, set := choosers(LeastConn, slices.Repeat([]uint16{1}, n)...)
		loads := make([]atomic.Int32, n)
		for i := range loads {
			loads[i].Store(1)
		}
		idle, rnd, found := n-1, rand.New(rand.NewPCG(1, 2)), 0
		loads[idle].Store(0)
		const draws = 3000
		for range draws {
			c := s.Choose(f, set, &Draw{Tuple: client(1), Random: rnd.Uint64(), Loads: loads})
			if c.Backend.Index() == uint32(idle) {
				found++
			}
		}
		want := draws * min(n, 1024) / n
		if found < want-150 || found > want+150 || n == 1024 && found != draws {
			t.Errorf("of %d backends the idle one was chosen %d times of %d, want about %d", n, found, draws, want)
		}
	}
}

func TestFind(t *testing.T) {
	b := NewBuilder(nil)
	set := &EndpointSet{}
	for i := range 21 { // three ports for each of seven addresses
		be := Backend{Addr: addr(10 + i/3), Port: uint16(80 + i%3), Ref: MakeBackendRef(uint32(i), 1)}
		b.SetBackend(be)
		set.Backends = append(set.Backends, be.Ref)
	}
	b.SetBackend(Backend{Addr: addr(500), Port: 80, Ref: MakeBackendRef(50, 1)}) // not of the set
	s := b.Build()
	for i, want := range set.Backends {
		if got := set.Find(s, addr(10+i/3), uint16(80+i%3)); got != want {
			t.Errorf("backend %d: found %#x, want %#x", i, got, want)
		}
	}
	for _, c := range []struct {
		a    header.Addr
		port uint16
	}{{addr(9), 80}, {addr(17), 80}, {addr(12), 79}, {addr(12), 83}, {addr(500), 80}} {
		if got := set.Find(s, c.a, c.port); got != 0 {
			t.Errorf("%v:%d is in the set: %#x", c.a, c.port, got)
		}
	}
	if got := (&EndpointSet{}).Find(s, addr(10), 80); got != 0 {
		t.Errorf("an empty set has %#x", got)
	}
}

// TestServiceFind: a service port's list has both families, IPv4 first, also before IPv6 addresses
// whose 16 bytes compare less.
func TestServiceFind(t *testing.T) {
	b, svc := NewBuilder(nil), &Service{ID: 1}
	ends := []string{"10.0.0.1", "10.0.0.2", "192.0.2.1", "::2", "64:ff9b::1", "2001:db8::1"}
	for i, a := range ends {
		be := Backend{Addr: header.AddrFrom(netip.MustParseAddr(a)), Port: 80, Ref: MakeBackendRef(uint32(i), 1)}
		b.SetBackend(be)
		svc.Backends = append(svc.Backends, be.Ref)
	}
	s := b.Build()
	for i, a := range ends {
		if got := svc.Find(s, header.AddrFrom(netip.MustParseAddr(a)), 80); got != svc.Backends[i] {
			t.Errorf("%s: found %#x, want %#x", a, got, svc.Backends[i])
		}
	}
	for _, a := range []string{"10.0.0.3", "::1", "2001:db8::2"} {
		if got := svc.Find(s, header.AddrFrom(netip.MustParseAddr(a)), 80); got != 0 {
			t.Errorf("%s: found %#x", a, got)
		}
	}
}

// TestAnotherThanNearlyAll: one backend has nearly all slots of a large table. Another backend is
// chosen without a search for its slots: here it has none.
func TestAnotherThanNearlyAll(t *testing.T) {
	set := &EndpointSet{Backends: []BackendRef{7, 8}, Table: make([]uint16, 1<<20)}
	got := set.another(99, 7)
	if got != (Choice{Backend: 8, Slot: -1}) {
		t.Errorf("got %+v, want backend 8, of no slot", got)
	}
}

func TestChoosingDoesNotAllocate(t *testing.T) {
	loads := make([]atomic.Int32, 3)
	for by := range NumSchedulers {
		s, f, set := choosers(by, 1, 2, 3)
		if n := testing.AllocsPerRun(100, func() {
			tuple := header.Tuple{Src: addr(1), Dst: addr(2), SrcPort: 1, DstPort: 2, Proto: 6}
			d := Draw{Tuple: &tuple, Loads: loads}
			c := s.Choose(f, set, &d)
			be := s.Backend(c.Backend)
			set.Find(s, be.Addr, be.Port)
		}); n != 0 {
			t.Errorf("scheduler %d: %v allocations", by, n)
		}
	}
}

func BenchmarkChoose(b *testing.B) {
	for _, backends := range []int{10, 1000, 5000} {
		weights := make([]uint16, backends)
		for i := range weights {
			weights[i] = uint16(1 + i%4)
		}
		loads := make([]atomic.Int32, backends)
		rnd := rand.New(rand.NewPCG(1, 2))
		for i := range loads {
			loads[i].Store(int32(rnd.IntN(1000)))
		}
		for by := range NumSchedulers {
			b.Run(fmt.Sprintf("%v/backends=%d", by, backends), func(b *testing.B) {
				s, f, set := choosers(by, weights...)
				tuple := client(1)
				n := 0
				for b.Loop() {
					n++
					tuple.SrcPort = uint16(n)
					if s.Choose(f, set, &Draw{Tuple: tuple, Random: uint64(n) * 0x9e3779b97f4a7c15,
						Loads: loads}).Backend == 0 {
						b.Fatal("none")
					}
				}
			})
		}
	}
}
