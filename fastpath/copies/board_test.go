package copies

import (
	"testing"
	"time"
)

func TestWaits(t *testing.T) {
	b := NewBoard(2, func() {})
	for i := range 100 {
		b.Left(i%2, Protected, time.Duration(i+1)*3*time.Microsecond) // 3 to 300 us
	}
	b.Left(0, Late, 5*time.Millisecond)
	counted, micros := uint64(0), uint64(0)
	for _, w := range b.Waits() {
		for i := range w.Buckets {
			counted += w.Buckets[i].Load()
		}
		micros += w.Micros.Load()
	}
	if counted != 101 || micros != 5050*3+5000 {
		t.Errorf("%d answers waited %d us, want 101 and %d", counted, micros, 5050*3+5000)
	}
	if n := b.Flows(); n[Protected] != 100 || n[Late] != 1 {
		t.Errorf("by outcome: %v", n)
	}
}
