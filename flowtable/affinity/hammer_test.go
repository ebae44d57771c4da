package affinity

import (
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sluice.dev/sluice/flowtable"
)

const workers = 4

func atOnce(f func(w int)) {
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() { f(w) })
	}
	wg.Wait()
}

// All workers see the first flows of the same clients at once, and then the loss of the backend:
// each time they agree.
func TestAgreement(t *testing.T) {
	rounds := 20_000
	if testing.Short() {
		rounds = 4_000
	}
	tb := testTable(t, 20) // few sets: other clients' pins come and go in the same sets
	first, second := make([][workers]Pin, rounds), make([][workers]Pin, rounds)
	var at [workers]atomic.Int32
	together := func(w, i int) { // no worker is more than a step ahead
		at[w].Store(int32(i))
		for o := range at {
			for at[o].Load() < int32(i) {
				runtime.Gosched()
			}
		}
	}
	atOnce(func(w int) {
		for i := range rounds {
			together(w, 2*i)
			who := client(i)
			// later pins end later: no live pin of this round is evicted
			first[i][w] = tb.Settle(bootTime, who, 7, backend(w), Pin{}, uint32(10+i))
			together(w, 2*i+1)
			second[i][w] = tb.Settle(bootTime, who, 7, backend(10+w), first[i][w], uint32(10+i))
		}
		at[w].Store(int32(2 * rounds))
	})
	for i := range rounds {
		for w := range workers {
			if first[i][w] != first[i][0] || second[i][w] != second[i][0] || second[i][0] == first[i][0] {
				t.Fatalf("client %d: settled on %v, then on %v", i, first[i], second[i])
			}
		}
	}
	validate(t, tb)
	if c := tb.Counts(bootTime); c.Lost != 0 {
		t.Errorf("%+v", c)
	}
}

// proof makes a pin that shows its client and service, and whether it is torn.
func proof(n int, svc uint64, r uint64) Pin {
	p := Pin{Port: uint16(uint64(n)*31 + svc*7 + r)}
	binary.BigEndian.PutUint64(p.Addr[:8], uint64(n)<<32|svc)
	binary.BigEndian.PutUint64(p.Addr[8:], r)
	return p
}

func proven(t *testing.T, n int, svc uint64, p Pin) bool {
	if p != proof(n, svc, binary.BigEndian.Uint64(p.Addr[8:])) {
		t.Errorf("client %d, service %d has the pin %+v: torn, or another's", n, svc, p)
		return false
	}
	return true
}

// All operations at once in few sets, which are always overfull: no pin is ever torn or another
// key's.
func TestHammer(t *testing.T) {
	operations := 400_000
	if testing.Short() {
		operations = 60_000
	}
	const clients, services = 40, 2
	tb := testTable(t, 15) // 3 sets of 10 for 80 keys
	seed := testSeed(t)
	atOnce(func(w int) {
		rnd := rand.New(rand.NewPCG(seed, uint64(w)))
		for op := range operations {
			n, svc := rnd.IntN(clients), uint64(rnd.IntN(services))
			now := bootTime + flowtable.Time(op)*second/100
			pin, _, ok := tb.Get(now, client(n), svc)
			if ok && !proven(t, n, svc, pin) {
				return
			}
			switch want := proof(n, svc, rnd.Uint64()); rnd.IntN(10) {
			case 0:
				tb.Confirm(now, client(n), svc, want, uint32(1+rnd.IntN(20)))
			case 1, 2, 3:
				if !proven(t, n, svc, tb.Settle(now, client(n), svc, want, pin, uint32(1+rnd.IntN(20)))) {
					return
				}
			case 4:
				if ok {
					tb.Confirm(now, client(n), svc, pin, uint32(1+rnd.IntN(20)))
				}
			case 5:
				if rnd.IntN(50) == 0 {
					tb.Forget(now,
						func(_ uint64, p Pin) bool { return binary.BigEndian.Uint32(p.Addr[:4]) == uint32(n) })
				}
			case 6:
				tb.Each(now, func(e *Entry) bool {
					return proven(t, int(binary.BigEndian.Uint32(e.Pin.Addr[:4])), e.Service, e.Pin) &&
						e.Client == client(int(binary.BigEndian.Uint32(e.Pin.Addr[:4])))
				})
			}
		}
	})
	validate(t, tb)
	t.Logf("%+v", tb.Counts(bootTime))
}

// Readers read while one client's pin moves back and forth in a full set: each finds one of the two
// pins. There are more readers than processors, so that the scheduler preempts some in the middle
// of a read.
func TestReadersSeeOnePinDuringMoves(t *testing.T) {
	duration := 2 * time.Second
	if testing.Short() {
		duration = time.Second / 2
	}
	tb := testTable(t, 1)
	for n := range setSlots { // full
		tb.Confirm(bootTime, client(n), 7, backend(n), 1000)
	}
	tb.Confirm(bootTime, client(0), 7, backend(100), 2000)
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; !stop.Load(); i++ {
			tb.Confirm(bootTime, client(0), 7, backend(100+i%2), uint32(2000+i%3))
			tb.Confirm(bootTime, client(1+i%50), 7, backend(1), uint32(1+i%900))
		}
	})
	for range 4 * runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for !stop.Load() {
				if p, _, ok := tb.Get(bootTime, client(0), 7); !ok || p != backend(100) && p != backend(101) {
					t.Errorf("the pin is %+v, %v", p, ok)
					return
				}
			}
		})
	}
	time.Sleep(duration) // the length of the test; nothing depends on it
	stop.Store(true)
	wg.Wait()
	validate(t, tb)
}

// A writer is stopped after it claimed a slot: others still read and write. If stopped writers have
// claimed all slots, an update is lost and counted, and readers still read.
func TestStoppedWriters(t *testing.T) {
	tb := testTable(t, 1)
	s := &tb.sets[0]
	tb.Confirm(bootTime, client(0), 7, backend(0), 1000)
	claim := func() {
		t.Helper()
		if _, _, ok := s.claim(s.ctl.Load(), 0, 0, false); !ok {
			t.Fatal("no slot to claim")
		}
	}
	for n := 1; n < setSlots; n++ {
		if p := tb.Settle(bootTime, client(n), 7, backend(n), Pin{}, 10); p != backend(n) {
			t.Errorf("with %d writers stopped: settled on %+v", n-1, p)
		}
		if p, _, ok := tb.Get(bootTime, client(n), 7); !ok || p != backend(n) {
			t.Errorf("with %d writers stopped: pinned to %+v, %v", n-1, p, ok)
		}
		claim()
	}
	lost := tb.Counts(bootTime).Lost
	if p, _, ok := tb.Get(bootTime, client(0), 7); !ok || p != backend(0) || lost != 0 {
		t.Fatalf("the pin that no writer claimed: %+v, %v; %d updates lost", p, ok, lost)
	}
	tb.Confirm(bootTime, client(0), 7, backend(5), 10)
	if p, _, ok := tb.Get(bootTime, client(0), 7); !ok || p != backend(0) {
		t.Errorf("an update that is lost should leave the pin: %+v, %v", p, ok)
	}
	if lost := tb.Counts(bootTime).Lost; lost != 1 {
		t.Errorf("%d updates lost, want 1", lost)
	}
	tb.Confirm(bootTime, client(0), 7, backend(0), 2000)
	if _, _, ok := tb.Get(bootTime+1999*second, client(0), 7); !ok {
		t.Error("extending a pin needs no slot, and should have worked")
	}
}
