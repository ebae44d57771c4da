package gaps

import "time"

// Window is what was seen in one stretch of time. floor.c prints the same form.
type Window struct {
	Nanos uint64 `json:"nanos"`
	Steps uint64 `json:"steps"` // of the loop
	Max   uint64 `json:"max_ns"`
	// All is the sum of the three kinds that follow, which the package's documentation tells apart.
	All        Kind `json:"all"`
	HandedOver Kind `json:"handed_over"`
	Preempted  Kind `json:"preempted"`
	InPlace    Kind `json:"in_place"`
	// Of Go only:
	Moves       uint64 `json:"moves,omitempty"`     // gaps after which the loop ran on another thread
	Elsewhere   uint64 `json:"elsewhere,omitempty"` // gaps after which it was not on its CPU
	Collections uint64 `json:"collections,omitempty"`
	Allocated   uint64 `json:"allocated_bytes,omitempty"`
	Live        uint64 `json:"live_bytes,omitempty"` // after the last collection
	Published   uint64 `json:"published,omitempty"`  // snapshots
}

// Kind counts gaps above interesting.
type Kind struct {
	Gaps      uint64 `json:"gaps"`
	Over100us uint64 `json:"over_100us"`
	Over1ms   uint64 `json:"over_1ms"`
	Lost      uint64 `json:"lost_ns"` // their sum
}

// interesting is the least gap that counts: a step takes a tenth of it.
const interesting = uint64(time.Microsecond)

func (k *Kind) add(gap uint64) {
	k.Gaps++
	k.Lost += gap
	if gap > uint64(100*time.Microsecond) {
		k.Over100us++
	}
	if gap > uint64(time.Millisecond) {
		k.Over1ms++
	}
}

// gap counts one gap: voluntary is true if the thread slept in it, involuntary if the
// kernel preempted it.
func (w *Window) gap(nanos uint64, voluntary, involuntary bool) {
	w.Max = max(w.Max, nanos)
	w.All.add(nanos)
	switch {
	case voluntary:
		w.HandedOver.add(nanos)
	case involuntary:
		w.Preempted.add(nanos)
	default:
		w.InPlace.add(nanos)
	}
}

// per10s scales a count to ten seconds.
func (w *Window) per10s(n uint64) float64 { return float64(n) * 10e9 / float64(max(1, w.Nanos)) }

// lost is the share of the time that gaps took, in percent.
func (w *Window) lost() float64 { return 100 * float64(w.All.Lost) / float64(max(1, w.Nanos)) }
