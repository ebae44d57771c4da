package compiler

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

func TestTurns(t *testing.T) {
	for _, c := range []struct {
		name    string
		weights []uint16
		limit   int
		want    string
	}{
		{"in proportion and spread", []uint16{3, 1}, 100, "[0 0 1 0]"},
		{"alternating", []uint16{2, 2}, 100, "[0 1]"},
		{"reduced", []uint16{200, 100, 100}, 100, "[0 1 2 0]"},
		{"apart", []uint16{1, 4, 1}, 100, "[1 1 0 2 1 1]"},
		{"shortened", []uint16{1000, 999, 1}, 4, "[0 1 2 0 1]"},
		{"one", []uint16{7}, 100, "[0]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := fmt.Sprint(turns(c.weights, c.limit)); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

// TestTurnsAreFair: in a whole round every backend has its share; in any part of a round it has its
// share plus or minus one turn; a shortened round differs by rounding alone.
func TestTurnsAreFair(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 300 {
		weights := make([]uint16, 1+r.IntN(20))
		sum := 0
		for i := range weights {
			weights[i] = 1 + uint16(r.IntN([]int{3, 100, math.MaxUint16}[r.IntN(3)]))
			sum += int(weights[i])
		}
		limit := 100 * len(weights)
		table := turns(weights, limit)
		if len(table) > limit+len(weights) {
			t.Fatalf("%d turns, at most %d allowed", len(table), limit+len(weights))
		}
		for i, w := range weights {
			share := float64(w) / float64(sum) * float64(len(table))
			whole := 0
			for _, p := range table {
				if int(p) == i {
					whole++
				}
			}
			if whole == 0 || math.Abs(float64(whole)-share) > 1+share*float64(len(weights))/float64(limit) {
				t.Fatalf("%v: %d has %d of %d turns", weights, i, whole, len(table))
			}
			checkSpread(t, table, i, whole)
		}
	}
}

func checkSpread(t *testing.T, table []uint16, who, whole int) {
	t.Helper()
	rate, n := float64(whole)/float64(len(table)), 0
	most := 1.5 + rate*float64(distinct(table)) // ties and rounding to whole turns cost one more than the ideal's half
	for at, p := range table {
		if int(p) == who {
			n++
		}
		if d := math.Abs(float64(n) - rate*float64(at+1)); d > most {
			t.Fatalf("after %d turns %d had %d, %.1f off", at+1, who, n, d)
		}
	}
}

func distinct(table []uint16) int {
	s := slices.Clone(table)
	slices.Sort(s)
	return len(slices.Compact(s))
}

// TestTurnsOfFrontends: each frontend counts its own turns, over all its versions, and
// only where its scheduler takes turns.
func TestTurnsOfFrontends(t *testing.T) {
	w := newPinWorld("None")
	addrs := []string{"192.0.2.1", "192.0.2.2"}
	w.service.Spec.ExternalIPs = addrs
	turnsNow := func(scheduler string, endpoints ...string) (turns [2]*services.Turn) {
		w.service = w.service.DeepCopy()
		w.service.Annotations["sluice.dev/scheduler"] = scheduler
		w.endpoints(endpoints...)
		w.compile()
		for i, a := range addrs {
			f, ok := w.c.Snapshot().FrontendByKey(services.FrontendKey{Addr: header.AddrFrom(netip.MustParseAddr(a)),
				Port: 80, Proto: header.ProtoTCP})
			if !ok {
				t.Fatalf("%s is no frontend", a)
			}
			turns[i] = f.Turn
		}
		return turns
	}
	first := turnsNow("rr", "10.0.0.1")
	if first[0] == nil || first[1] == nil || first[0] == first[1] {
		t.Fatalf("turns of the frontends: %p, %p", first[0], first[1])
	}
	if next := turnsNow("wrr", "10.0.0.1", "10.0.0.2"); next != first {
		t.Error("a frontend begins its turns anew with each version")
	}
	if other := turnsNow("maglev", "10.0.0.1", "10.0.0.2"); other != [2]*services.Turn{} {
		t.Error("maglev takes turns")
	}
}
