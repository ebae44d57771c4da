package machine

import (
	"context"
	"sync/atomic"
	"time"
)

// Lateness is how late threads wake on this machine, the latest that was seen: each process on the
// way of what a test waits for may be as late. Its zero value is ready for use.
type Lateness struct{ worst atomic.Int64 } // nanoseconds

// Watch sleeps a millisecond at a time until ctx is done, and notes how late it wakes. Several may
// watch.
func (l *Lateness) Watch(ctx context.Context) {
	for ctx.Err() == nil {
		began := time.Now()
		time.Sleep(time.Millisecond)
		late := int64(time.Since(began) - time.Millisecond)
		for worst := l.worst.Load(); late > worst && !l.worst.CompareAndSwap(worst, late); worst = l.worst.Load() {
		}
	}
}

// Bound is a bound of time that holds where threads get a CPU at once, as it holds here for what
// takes so many wake-ups, and how late the latest was.
func (l *Lateness) Bound(d time.Duration, wakeUps int) (bound, late time.Duration) {
	late = time.Duration(l.worst.Load())
	return Slower(d) + time.Duration(wakeUps)*late, late
}
