package copies

import (
	"testing"
	"time"
)

func TestWaits(t *testing.T) {
	b := NewBoard(2, func() {})
	if w := b.Waits(); w.Quantile(0.5) != 0 || w.Quantile(0.99) != 0 {
		t.Errorf("without an answer: %+v", w)
	}
	for i := range 100 {
		b.Left(i%2, Protected, time.Duration(i+1)*3*time.Microsecond) // 3 to 300 us
	}
	b.Left(0, Late, 5*time.Millisecond)
	w := b.Waits()
	for share, want := range map[float64]time.Duration{0: 50 * time.Microsecond, 0.01: 50 * time.Microsecond,
		0.5: 200 * time.Microsecond, 0.9: 300 * time.Microsecond, 0.99: 300 * time.Microsecond,
		1: 2 * time.Millisecond} {
		if got := w.Quantile(share); got != want {
			t.Errorf("quantile %v: %v, want %v", share, got, want)
		}
	}
	if want := 5050*3*time.Microsecond + 5*time.Millisecond; w.Sum != want {
		t.Errorf("the sum is %v, want %v", w.Sum, want)
	}
	if n := b.Flows(); n[Protected] != 100 || n[Late] != 1 {
		t.Errorf("by outcome: %v", n)
	}
}
