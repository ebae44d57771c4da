package boottime

import (
	"testing"
	"time"
)

// TestPreemptedThread: a thread that is preempted before or after a read of a clock gets what an
// undisturbed thread gets.
func TestPreemptedThread(t *testing.T) {
	begin := time.Unix(1_700_000_000, 0)
	for waits := range reads {
		for name, when := range map[string]struct{ before, after time.Duration }{
			"before the read": {before: 6 * time.Millisecond}, "after the read": {after: 6 * time.Millisecond},
		} {
			now, calls := time.Duration(0), 0
			boot := func() uint64 {
				calls++
				preempted := calls <= 2*waits
				now += 50
				if preempted {
					now += when.before
				}
				at := now
				if preempted {
					now += when.after
				}
				return uint64(at)
			}
			nanos, at := read(boot, func() time.Time { return begin.Add(now) })
			if diff := (at.Sub(begin) - time.Duration(nanos)).Abs(); diff > goodRead {
				t.Errorf("%d waits %s: wrong by %v", waits, name, diff)
			}
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
