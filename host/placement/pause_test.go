package placement

import (
	"slices"
	"testing"
	"time"
)

// TestPauseBoundsAChase: packets of a NIC arrive on CPU 0, and packets that a worker causes on its
// own CPU, so there is always a better CPU. Moves become rare, until that ends.
func TestPauseBoundsAChase(t *testing.T) {
	m := Machine{Allowed: []int{0, 1, 2, 3}}
	var a Arrivals
	var pause Pause
	counts := make([]uint64, 4)
	now, at, late := time.Unix(0, 0), 1, false
	follow := func(d time.Duration, nic int, chased uint64) (moves int) {
		for end := now.Add(d); now.Before(end); now = now.Add(Every) {
			counts[nic] += 1000
			counts[at] += chased
			if late = a.Look(counts) || late; !late || !pause.Over(now) {
				continue
			}
			late = false
			if p := Choose(&m, 1, a.CPUs(), true); !slices.Equal(p.CPUs, []int{at}) {
				at = p.CPUs[0]
				pause.Begin(now)
				moves++
			}
		}
		return moves
	}
	if n := follow(time.Hour, 0, 500); n < 10 || n > 70 {
		t.Errorf("%d moves in an hour of following itself, want one a minute and a few before", n)
	}
	if n := follow(10*time.Minute, 0, 0); n > 1 {
		t.Errorf("%d moves while packets arrive in one place", n)
	}
	for nic := range 3 {
		if n := follow(10*time.Second, nic, 0); n > 1 || at == nic {
			t.Errorf("%d moves after packets went to CPU %d, the worker is on %d", n, nic, at)
		}
	}
}
