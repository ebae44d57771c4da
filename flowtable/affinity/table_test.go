package affinity

import (
	"math/rand/v2"
	"testing"
	"time"

	"sluice.dev/sluice/flowtable"
)

// Steps of two workers, one after the other. A Settle step has the pin that its worker had read as
// old.
func TestSettle(t *testing.T) {
	type step struct {
		at        time.Duration
		do        string // settle, confirm, get
		want, old int    // backends; 0 is none
		got       int
		seconds   uint32
	}
	for _, c := range []struct {
		name  string
		steps []step
	}{
		{"no pin", []step{{0, "get", 0, 0, 0, 0}}},
		{"the first flow pins", []step{{0, "settle", 1, 0, 1, 10}, {1, "get", 0, 0, 1, 0}}},
		{"two first flows agree", []step{{0, "settle", 1, 0, 1, 10}, {0, "settle", 2, 0, 1, 10},
			{0, "get", 0, 0, 1, 0}}},
		{"the pin ends", []step{{0, "settle", 1, 0, 1, 10}, {10 * time.Second, "get", 0, 0, 1, 0},
			{10100 * time.Millisecond, "get", 0, 0, 0, 0}}},
		{"a new flow extends it", []step{{0, "settle", 1, 0, 1, 10}, {9 * time.Second, "settle", 1, 1, 1, 10},
			{19 * time.Second, "get", 0, 0, 1, 0}, {20 * time.Second, "get", 0, 0, 0, 0}}},
		{"a flow that takes another's pin extends it", []step{{0, "settle", 1, 0, 1, 10},
			{9 * time.Second, "settle", 2, 0, 1, 10},
			{19 * time.Second, "get", 0, 0, 1, 0}}},
		{"a read does not extend it", []step{{0, "settle", 1, 0, 1, 10}, {9 * time.Second, "get", 0, 0, 1, 0},
			{11 * time.Second, "get", 0, 0, 0, 0}}},
		{"a shorter timeout counts from the next flow", []step{{0, "settle", 1, 0, 1, 100},
			{1 * time.Second, "settle", 1, 1, 1, 10},
			{12 * time.Second, "get", 0, 0, 0, 0}}},
		{"a pin whose backend is gone moves", []step{{0, "settle", 1, 0, 1, 10}, {1, "settle", 2, 1, 2, 10},
			{2, "get", 0, 0, 2, 0}}},
		{"two that move it agree", []step{{0, "settle", 1, 0, 1, 10}, {1, "settle", 2, 1, 2, 10},
			{1, "settle", 3, 1, 2, 10}}},
		{"moved after its end", []step{{0, "settle", 1, 0, 1, 10}, {11 * time.Second, "settle", 2, 1, 2, 10},
			{12 * time.Second, "get", 0, 0, 2, 0}}},
		{"again after its end", []step{{0, "settle", 1, 0, 1, 10}, {11 * time.Second, "settle", 2, 0, 2, 10}}},
		{"the same after its end", []step{{0, "settle", 1, 0, 1, 10}, {11 * time.Second, "settle", 1, 0, 1, 10},
			{21 * time.Second, "get", 0, 0, 1, 0}}},
		{"lost meanwhile", []step{{0, "settle", 2, 1, 2, 10}, {0, "get", 0, 0, 2, 0}}},
		{"a flow that stands confirms it", []step{{0, "settle", 1, 0, 1, 10}, {5 * time.Second, "confirm", 1, 0, 0, 20},
			{25 * time.Second, "get", 0, 0, 1, 0}, {26 * time.Second, "get", 0, 0, 0, 0}}},
		{"a new flow does not extend a confirmed one", []step{{0, "confirm", 1, 0, 0, 10},
			{9 * time.Second, "settle", 1, 1, 1, 10}, {10 * time.Second, "get", 0, 0, 1, 0},
			{11 * time.Second, "get", 0, 0, 0, 0}}},
		{"nor does another's", []step{{0, "confirm", 1, 0, 0, 10}, {9 * time.Second, "settle", 2, 0, 1, 10},
			{11 * time.Second, "get", 0, 0, 0, 0}}},
		{"nor does a new flow shorten it", []step{{0, "confirm", 1, 0, 0, 100}, {0, "settle", 1, 1, 1, 10},
			{99 * time.Second, "get", 0, 0, 1, 0}}},
		{"a confirmed one whose backend is gone moves", []step{{0, "confirm", 1, 0, 0, 100}, {0, "settle", 2, 1, 2, 10},
			{9 * time.Second, "get", 0, 0, 2, 0}, {11 * time.Second, "get", 0, 0, 0, 0}}},
		{"a new flow after its end is tentative", []step{{0, "confirm", 1, 0, 0, 10},
			{11 * time.Second, "settle", 1, 0, 1, 10}, {12 * time.Second, "settle", 1, 1, 1, 10},
			{22 * time.Second, "get", 0, 0, 1, 0}}},
		{"confirmed in place of another", []step{{0, "settle", 1, 0, 1, 10}, {0, "confirm", 2, 0, 0, 5},
			{5 * time.Second, "get", 0, 0, 2, 0}, {6 * time.Second, "get", 0, 0, 0, 0}}},
		{"the longest", []step{{0, "confirm", 1, 0, 0, 1 << 31}, {MaxSeconds * time.Second, "get", 0, 0, 1, 0},
			{(MaxSeconds + 1) * time.Second, "get", 0, 0, 0, 0}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			tb := testTable(t, 100)
			for n := range 2 { // both families
				pin := func(b int) Pin {
					if b == 0 {
						return Pin{}
					}
					return backend(2*b + n)
				}
				for _, s := range c.steps {
					var got Pin
					now, want := bootTime+flowtable.Time(s.at), pin(s.got)
					switch s.do {
					case "settle":
						got = tb.Settle(now, client(n), 7, pin(s.want), pin(s.old), s.seconds)
					case "confirm":
						tb.Confirm(now, client(n), 7, pin(s.want), s.seconds)
					case "get":
						var ok bool
						if got, _, ok = tb.Get(now, client(n), 7); ok != (s.got != 0) {
							t.Errorf("client %d, %+v: found: %v", n, s, ok)
						}
					}
					if got != want {
						t.Errorf("client %d, %+v: got %+v, want %+v", n, s, got, want)
					}
					if _, _, ok := tb.Get(now, client(n), 8); ok {
						t.Error("another service has the pin")
					}
				}
			}
			validate(t, tb)
		})
	}
}

// model is the slow twin: a map.
type model map[[3]uint64]modelPin

type modelPin struct {
	pin       Pin
	until     flowtable.Time
	tentative bool
}

func (m model) get(now flowtable.Time, k [3]uint64) (Pin, bool) {
	if p, ok := m[k]; ok && p.until >= now {
		return p.pin, true
	}
	return Pin{}, false
}

func (m model) settle(now flowtable.Time, k [3]uint64, want, old Pin, seconds uint32) Pin {
	p, ok := m.get(now, k)
	if ok && p != old {
		want = p
	}
	if !ok || p != want || m[k].tentative {
		m[k] = modelPin{want, now + flowtable.Time(seconds)*second, true}
	}
	return want
}

// Random operations on the table and on a map, which must agree while nothing is evicted.
func TestOracle(t *testing.T) {
	rnd := rand.New(rand.NewPCG(testSeed(t), 1))
	const clients, services = 150, 4
	tb, m, now := testTable(t, 20*clients*services), model{}, bootTime
	operations := 200_000
	if testing.Short() {
		operations = 40_000
	}
	for op := range operations {
		if rnd.IntN(4) == 0 {
			now += flowtable.Time(rnd.IntN(20)) * flowtable.Time(tick)
		}
		who, svc, seconds := client(rnd.IntN(clients)), uint64(rnd.IntN(services)), uint32(1+rnd.IntN(200))
		k := keyOf(&who, svc)
		switch rnd.IntN(20) {
		case 0:
			tb.Confirm(now, who, svc, backend(op%5), seconds)
			m[k] = modelPin{backend(op % 5), now + flowtable.Time(seconds)*second, false}
		case 1, 2, 3, 4, 5, 6:
			old, _ := m.get(now, k)
			if rnd.IntN(3) == 0 {
				old = Pin{}
			}
			want := backend(rnd.IntN(5))
			got, expect := tb.Settle(now, who, svc, want, old, seconds), m.settle(now, k, want, old, seconds)
			if got != expect {
				t.Fatalf("operation %d: settled on %+v, the map on %+v", op, got, expect)
			}
		case 7:
			if rnd.IntN(100) == 0 {
				compareAll(t, tb, m, now, backend(rnd.IntN(5)), svc)
			}
		default:
			got, _, ok := tb.Get(now, who, svc)
			if want, has := m.get(now, k); got != want || ok != has {
				t.Fatalf("operation %d: %+v %v, the map has %+v %v", op, got, ok, want, has)
			}
		}
	}
	validate(t, tb)
	if c := tb.Counts(now); c.Evicted != 0 || c.Lost != 0 {
		t.Fatalf("%+v: make the table larger", c)
	}
}

// compareAll compares what Each, Counts and Forget return with the map.
func compareAll(t *testing.T, tb *Table, m model, now flowtable.Time, gone Pin, svc uint64) {
	t.Helper()
	live, tentative, match := 0, 0, 0
	for k := range m {
		if p, ok := m.get(now, k); ok {
			if live++; m[k].tentative {
				tentative++
			}
			if p == gone && k[2] == svc {
				match++
			}
		}
	}
	seen := 0
	tb.Each(now, func(e *Entry) bool {
		p := m[keyOf(&e.Client, e.Service)]
		if seen++; p.pin != e.Pin || p.tentative != e.Tentative || p.until != now+flowtable.Time(e.Left) {
			t.Errorf("walked over %+v, the map has %+v", e, p)
		}
		return true
	})
	if c := tb.Counts(now); seen != live || c.Live+c.Tentative != live || c.Tentative != tentative {
		t.Errorf("%d pins walked over, %+v counted, the map has %d, %d of them tentative", seen, c, live, tentative)
	}
	forgotten := tb.Forget(now, func(service uint64, pin Pin) bool { return pin == gone && service == svc })
	for k, p := range m {
		if p.pin == gone && k[2] == svc {
			delete(m, k)
		}
	}
	if forgotten != match {
		t.Errorf("%d pins forgotten, the map had %d", forgotten, match)
	}
}

// A full set evicts the pin that ends first; the replacement of an ended pin does not count as an
// eviction.
func TestFullSet(t *testing.T) {
	for _, c := range []struct {
		name    string
		later   flowtable.Time
		evicted uint64
	}{
		{"all live", 0, 1},
		{"one has ended", 11 * second, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			tb := testTable(t, 1) // one set
			for n := range setSlots {
				tb.Confirm(bootTime, client(n), 7, backend(n), uint32(10+10*((n+4)%setSlots))) // 6 ends first
			}
			if live := tb.Counts(bootTime).Live; live != setSlots {
				t.Fatalf("%d pins of %d", live, setSlots)
			}
			now := bootTime + c.later
			tb.Confirm(now, client(100), 7, backend(1), 1)
			for n := range setSlots {
				if p, _, ok := tb.Get(now, client(n), 7); ok != (n != 6) || ok && p != backend(n) {
					t.Errorf("pin %d: %+v %v", n, p, ok)
				}
			}
			if p, _, ok := tb.Get(now, client(100), 7); !ok || p != backend(1) {
				t.Errorf("the new pin: %+v %v", p, ok)
			}
			if got := tb.Counts(now); got.Evicted != c.evicted || got.Live != setSlots || got.Lost != 0 {
				t.Errorf("%+v, want %d evicted", got, c.evicted)
			}
			// If all other pins are confirmed, a confirmed pin that cannot be used is replaced in
			// its own slot.
			if p := tb.Settle(now, client(100), 7, backend(2), backend(1), 1); p != backend(2) {
				t.Errorf("moved to %+v", p)
			}
			if p, tentative, ok := tb.Get(now, client(100), 7); !ok || !tentative || p != backend(2) {
				t.Errorf("moved: %+v, tentative %v, %v", p, tentative, ok)
			}
			if got := tb.Counts(now); got.Evicted != c.evicted || got.Live != setSlots-1 || got.Tentative != 1 {
				t.Errorf("moved: %+v", got)
			}
			validate(t, tb)
		})
	}
}

// The configured number of pins: at most as many are evicted as Config documents.
func TestCapacity(t *testing.T) {
	const n = 50_000
	tb := testTable(t, n)
	for i := range n {
		tb.Confirm(bootTime, client(i), uint64(i%3), backend(i%1000), 10800)
	}
	c := tb.Counts(bootTime)
	if c.Capacity != n || c.Evicted > n/150 || c.Live+int(c.Evicted) != n {
		t.Errorf("%+v, want at most %d evicted", c, n/150)
	}
	size, err := Size(Config{Clients: n})
	if perPin := float64(size) / n; err != nil || perPin > 103 {
		t.Errorf("%.1f bytes for each pin, %v", perPin, err)
	}
	t.Logf("%d of %d pins were evicted; %d bytes", c.Evicted, n, size)
	validate(t, tb)
}

// renew changes nothing if the slot now has another pin, even one with the same end, and returns
// false if the set has changed.
func TestRenewOfReplacedPin(t *testing.T) {
	tb := testTable(t, 1)
	s := &tb.sets[0]
	var e entry
	pin := Pin{Port: 80}
	who := client(1)
	key := keyOf(&who, 7)
	_, tag := tb.place(&key)
	tb.Confirm(bootTime, client(1), 7, pin, 10)
	c, at := s.read(tag, &key, &e)
	tb.Confirm(bootTime, client(3), 7, backend(3), 10)
	longer := func(e *entry, sec uint32) uint64 { return packEnd(e.until().after(sec), e.port(), false) }
	if s.renew(c, at, &e, ticksAt(bootTime), longer(&e, 5)) {
		t.Error("the set has changed: the pin may be another's")
	}
	c, at = s.read(tag, &key, &e)
	if !s.renew(c, at, &e, ticksAt(bootTime), longer(&e, 5)) {
		t.Error("the set has not changed, and the pin is not extended")
	}

	_, at = s.read(tag, &key, &e)
	tb.Forget(bootTime, func(_ uint64, p Pin) bool { return p == pin })
	tb.Confirm(bootTime, client(2), 7, pin, 20) // extended twice by 5
	if now := s.slots[at].load(); now.key == e.key || now.until() != e.until() || now.port() != e.port() {
		t.Fatalf("slot %d has %+v after %+v: the test is wrong", at, now, e)
	}
	s.renew(s.ctl.Load(), at, &e, ticksAt(bootTime), longer(&e, 1000))
	if _, _, ok := tb.Get(bootTime+21*second, client(2), 7); ok {
		t.Error("another client's pin was extended")
	}
}

// A writer that stops after maxTries leaves no claimed slot.
func TestSetGivesUpAfterMaxTries(t *testing.T) {
	tb := testTable(t, 1)
	who := client(1)
	for n := range 3 {
		o := settling{now: ticksAt(bootTime), want: backend(1), tentative: n == 1, tries: 1}
		if p := tb.settle(&o, &who, 7, 10); p != backend(1) {
			t.Errorf("settled on %+v", p)
		}
		if c := tb.Counts(bootTime); c.Lost != uint64(n+1) || c.Live != 0 {
			t.Errorf("after %d: %+v", n+1, c)
		}
		validate(t, tb)
	}
}

func TestConfig(t *testing.T) {
	for _, n := range []int{-1, 0, MaxClients + 1} {
		if _, err := NewHeap(Config{Clients: n}); err == nil {
			t.Errorf("room for %d clients: accepted", n)
		}
		if _, err := Size(Config{Clients: n}); err == nil {
			t.Errorf("size for %d clients: accepted", n)
		}
	}
}

func TestNoAllocation(t *testing.T) {
	tb := testTable(t, 1000)
	now, n := bootTime, 0
	if a := testing.AllocsPerRun(1000, func() {
		n++
		now += second
		old, _, _ := tb.Get(now, client(n%2000), 7)
		tb.Settle(now, client(n%2000), 7, backend(n%10), old, 10800)
		tb.Confirm(now, client(n%3000), 8, backend(n%10), 10800)
	}); a != 0 {
		t.Errorf("%v allocations", a)
	}
}

// TestUnprovenPinsYield: any number of pins of flows whose sender may have guessed the answers
// evict no confirmed pin, and extend their own.
func TestUnprovenPinsYield(t *testing.T) {
	tb := testTable(t, 200)
	for i := range 200 {
		tb.Confirm(bootTime, client(i), 7, backend(i), 100)
	}
	was := map[int]bool{}
	for i := range 200 {
		if _, _, ok := tb.Get(bootTime, client(i), 7); ok {
			was[i] = true
		}
	}
	for i := range 100_000 {
		tb.ConfirmUnproven(bootTime+second, client(1000+i), 8, backend(1), 10800)
	}
	for i := range was {
		if p, tentative, ok := tb.Get(bootTime+second, client(i), 7); !ok || tentative || p != backend(i) {
			t.Fatalf("client %d of %d has %+v, %v", i, len(was), p, ok)
		}
	}
	if _, tentative, ok := tb.Get(bootTime+second, client(1000), 8); len(was) < 180 || ok && tentative {
		t.Errorf("%d pinned; the first unproven pin is tentative: %v", len(was), tentative)
	}
	validate(t, tb)
}
