package boottime

import (
	"testing"
	"time"
)

// TestOffsetOfPreemptedThread: a thread that is preempted between the reads of the two clocks gets
// the offset of an undisturbed read.
func TestOffsetOfPreemptedThread(t *testing.T) {
	const want = 1_700_000_000_000_000_000
	for waits := range reads {
		now, calls := uint64(5e9), 0
		boot := func() uint64 {
			calls++
			now += 50
			at := now
			if calls <= 2*waits {
				now += uint64(6 * time.Millisecond) // preempted after the read
			}
			return at
		}
		got := offset(boot, func() int64 { return int64(now) + want })
		if diff := time.Duration(got - want).Abs(); diff > goodRead {
			t.Errorf("%d waits: wrong by %v", waits, diff)
		}
	}
}

func TestWall(t *testing.T) {
	before := time.Now()
	at := Wall(Nanos())
	if after := time.Now(); at.Before(before.Add(-time.Millisecond)) || at.After(after.Add(time.Millisecond)) {
		t.Errorf("%v is not between %v and %v", at, before, after)
	}
}
