package fastpath

import (
	"testing"
	"time"
)

// TestClockOfPreemptedThread: a thread that is preempted while it compares the clocks has the right
// time afterwards.
func TestClockOfPreemptedThread(t *testing.T) {
	for waits := range clockReads {
		var c clock
		calls := 0
		c.resync(func() uint64 {
			if calls++; calls <= waits {
				time.Sleep(3 * time.Millisecond)
			}
			return bootNanos()
		})
		if diff := time.Duration(c.now() - bootNanos()).Abs(); diff > time.Millisecond {
			t.Errorf("%d waits: wrong by %v", waits, diff)
		}
	}
}
