package machine

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"
)

// Lateness is the longest delay with which threads woke on this machine: each process on which a
// test waits may be as late. Its zero value is ready for use.
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

// Turns are the times for which the threads of a process ran, and waited for a CPU, to the
// nanosecond (schedstat: Documentation/scheduler/sched-stats.rst). Threads that have ended are not
// counted.
type Turns struct{ Ran, Waited time.Duration }

// OwnTurns reads the turns of this process.
func OwnTurns() Turns { return TurnsOf(os.Getpid()) }

// TurnsOf reads the turns of a process; zero if it has ended.
func TurnsOf(pid int) (sum Turns) {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/[0-9]*/schedstat", pid))
	for _, path := range threads {
		var t Turns
		if text, err := os.ReadFile(path); err == nil { // else the thread has ended
			_, _ = fmt.Sscan(string(text), &t.Ran, &t.Waited)
		}
		sum.Ran, sum.Waited = sum.Ran+t.Ran, sum.Waited+t.Waited
	}
	return sum
}

// Without returns how much of d is left without the time for which threads waited for a CPU since
// an earlier reading: other work of the machine delays each step by the same share.
func (t Turns) Without(since Turns, d time.Duration) time.Duration {
	ran, waited := t.Ran-since.Ran, max(0, t.Waited-since.Waited)
	if ran <= 0 {
		return d
	}
	return time.Duration(float64(d) * float64(ran) / float64(ran+waited))
}
