package thread

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// wakes is how often threads of this process went to sleep, and so had been woken, during so many
// calls at a pace.
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

// TestYieldWakesNoThread: a goroutine that yields wakes no thread to take it, though there are Ps
// without work. runtime.Gosched does: 320 to 490 where Yield has 10 to 70, which are the runtime's
// own (sysmon). Those are more on a busy machine, and are subtracted.
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
