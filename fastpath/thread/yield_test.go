package thread

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// wakes returns how often threads of this process went to sleep, and so had been woken, during
// calls of call at a pace.
func wakes(t *testing.T, calls int, pace time.Duration, call func()) int64 {
	t.Helper()
	count := func() int64 {
		var u unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
			t.Fatal(err)
		}
		return u.Nvcsw
	}
	before := count()
	for range calls {
		for began := time.Now(); time.Since(began) < pace; {
		}
		call()
	}
	return count() - before
}

// TestYieldWakesNoThread: Yield wakes no thread, even if there are idle Ps. runtime.Gosched does:
// 320 to 490 wakes where Yield has 10 to 70, which are the runtime's own (sysmon). A busy machine
// has more of the latter, and the test subtracts them.
func TestYieldWakesNoThread(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	const calls, pace = 500, 200 * time.Microsecond
	least := int64(calls)
	for range 10 {
		own := wakes(t, calls, pace, func() {})
		if least = min(least, wakes(t, calls, pace, Yield)-own); least <= calls/4 {
			return
		}
	}
	t.Errorf("%d threads were woken by %d calls", least, calls)
}

// TestYieldRunsWaitingGoroutine: a goroutine that waits for the same P runs.
func TestYieldRunsWaitingGoroutine(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var ran atomic.Bool
	go func() { ran.Store(true) }()
	Yield()
	if !ran.Load() {
		t.Error("a goroutine that was ready did not run")
	}
}

func BenchmarkYield(b *testing.B) {
	for b.Loop() {
		Yield()
	}
}
