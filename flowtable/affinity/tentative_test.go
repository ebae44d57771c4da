package affinity

import (
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"sluice.dev/sluice/flowtable"
)

// A flood of SYNs with forged sources: random addresses, and the addresses of the clients. None of
// 200 pinned clients is moved or forgotten, or stays pinned for too long.
func TestForgedFlowsMoveNoPin(t *testing.T) {
	const clients, forged = 200, 1_000_000
	tb := testTable(t, clients/2) // some of its sets are full of their pins
	for n := range clients {
		tb.Confirm(bootTime, client(n), 7, backend(n%4), 60)
	}
	evicted, kept := tb.Counts(bootTime).Evicted, map[int]Pin{}
	for n := range clients {
		if p, _, ok := tb.Get(bootTime, client(n), 7); ok {
			kept[n] = p
		}
	}
	if len(kept)+int(evicted) != clients || evicted == 0 || evicted > clients/4 {
		t.Fatalf("%d of %d clients pinned, %d evicted: another size of the table", len(kept), clients, evicted)
	}
	rnd := rand.New(rand.NewPCG(testSeed(t), 1))
	for i := range forged {
		n, now := clients+rnd.IntN(1<<24), bootTime+flowtable.Time(i)*50*second/forged
		if i%4 == 0 {
			n = rnd.IntN(clients)
		}
		old, _, _ := tb.Get(now, client(n), 7)
		want := old
		if old == (Pin{}) {
			want = backend(rnd.IntN(4))
		}
		if got := tb.Settle(now, client(n), 7, want, old, 10); got != want {
			t.Fatalf("a flow of client %d settled on %+v, not on %+v", n, got, want)
		}
	}
	for n, p := range kept {
		if got, tentative, ok := tb.Get(bootTime+60*second, client(n), 7); got != p || tentative || !ok {
			t.Fatalf("client %d is pinned to %+v (tentative %v, %v), was to %+v", n, got, tentative, ok, p)
		}
		if _, _, ok := tb.Get(bootTime+61*second, client(n), 7); ok {
			t.Fatalf("client %d: forged flows extended its pin", n)
		}
	}
	if c := tb.Counts(bootTime + 60*second); c.Evicted != evicted || c.Lost != 0 {
		t.Errorf("%+v", c)
	}
	validate(t, tb)
}

// A set that is full of confirmed pins has no room for a tentative one, but evicts one for a flow
// that stands.
func TestSetFullOfConfirmedPins(t *testing.T) {
	tb := testTable(t, 1)
	for n := range setSlots {
		tb.Confirm(bootTime, client(n), 7, backend(n), uint32(10+n))
	}
	if p := tb.Settle(bootTime, client(100), 7, backend(1), Pin{}, 10); p != backend(1) {
		t.Errorf("settled on %+v", p)
	}
	if c := tb.Counts(bootTime); c != (Counts{Capacity: 1, Live: setSlots}) {
		t.Errorf("after a new flow: %+v", c)
	}
	tb.Confirm(bootTime, client(100), 7, backend(1), 100)
	if c := tb.Counts(bootTime); c != (Counts{Capacity: 1, Live: setSlots, Evicted: 1}) {
		t.Errorf("when it stands: %+v", c)
	}
	if _, _, ok := tb.Get(bootTime, client(0), 7); ok {
		t.Error("the pin that ends first is still there")
	}
	// A pin that has ended no longer counts as confirmed, and a tentative pin is evicted before it
	// ends.
	now := bootTime + 12*second
	tb.Settle(now, client(101), 7, backend(1), Pin{}, 1000)
	if _, _, ok := tb.Get(now, client(101), 7); !ok {
		t.Error("the slot of an ended pin was available")
	}
	tb.Settle(now, client(102), 7, backend(2), Pin{}, 1000)
	if c := tb.Counts(now); c.Live != 9 || c.Tentative != 1 || c.Evicted != 1 {
		t.Errorf("in the end: %+v", c)
	}
	validate(t, tb)
}

// A pin that is confirmed while others look for a slot is not evicted as a tentative one.
func TestConfirmedMeanwhile(t *testing.T) {
	tb := testTable(t, 1)
	for n := range setSlots {
		tb.Confirm(bootTime, client(n), 7, backend(n), 1000)
	}
	const rounds = 20_000
	var round, done atomic.Int64
	atOnce(func(w int) {
		for i := int64(1); i <= rounds; i++ {
			if w == 0 {
				tb.Confirm(bootTime, client(0), 7, backend(0), 1000)
				tb.Settle(bootTime, client(0), 7, backend(1), backend(0), 10) // tentative
				round.Store(i)
				tb.Confirm(bootTime, client(0), 7, backend(1), 1000)
				if _, tentative, ok := tb.Get(bootTime, client(0), 7); !ok || tentative {
					t.Errorf("round %d: the pin that was confirmed is gone, or tentative: %v, %v", i, ok, tentative)
					break
				}
				continue
			}
			for round.Load() < i && done.Load() == 0 {
				tb.Settle(bootTime, client(1000+int(i)*workers+w), 7, backend(w), Pin{}, 10)
			}
		}
		done.Add(1)
	})
	validate(t, tb)
}
