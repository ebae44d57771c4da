package fastpath_test

import (
	"context"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/thread"
)

// anyCPU returns a CPU that this process may use.
func anyCPU(t *testing.T) (cpu int) {
	t.Helper()
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	for !all.IsSet(cpu) {
		cpu++
	}
	return cpu
}

// TestRunPinned: while it runs, the worker is on its CPU, locked to a thread or not. At its end no
// thread stays bound.
func TestRunPinned(t *testing.T) {
	cpu := anyCPU(t)
	group, err := thread.NewGroup(thread.Priority{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		threads *thread.Group
	}{{"locked", nil}, {"not locked", group}} {
		t.Run(c.name, func(t *testing.T) {
			l := newLab(t, labConfig{})
			ended := make(chan error, 1)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() {
				ended <- l.workers[0].Run(ctx, fastpath.RunConfig{CPU: cpu, Threads: c.threads,
					Waiting: fastpath.Waiting{Spin: time.Millisecond, Sleep: time.Millisecond}})
			}()
			astray := 0
			for range 100 {
				var mask unix.CPUSet
				if !l.workers[0].Do(ctx, func(*fastpath.Worker) { _ = unix.SchedGetaffinity(unix.Gettid(), &mask) }) {
					t.Fatal("the worker does not answer")
				}
				if mask.Count() != 1 || !mask.IsSet(cpu) {
					astray++
				}
			}
			// Between a gap and the next Check, an unlocked worker may be on another thread.
			if c.threads == nil && astray > 0 || astray > 50 {
				t.Errorf("%d times of 100 the worker's thread could run elsewhere", astray)
			}
			cancel()
			if err := <-ended; err != nil {
				t.Fatal(err)
			}
			if c.threads == nil {
				return
			}
			if strays, err := c.threads.Tidy(); err != nil || strays != 0 {
				t.Errorf("%d threads are still bound, %v", strays, err)
			}
		})
	}
	if err := newLab(t, labConfig{}).workers[0].Run(t.Context(), fastpath.RunConfig{CPU: 1 << 9,
		Threads: group}); err == nil {
		t.Error("a CPU that does not exist is no error")
	}
}

// TestRunYields: a worker that never sleeps yields its P after each turn, before the scheduler
// preempts it.
func TestRunYields(t *testing.T) {
	group, err := thread.NewGroup(thread.Priority{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	l := newLab(t, labConfig{})
	cpu := anyCPU(t)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	go func() {
		ended <- l.workers[0].Run(ctx, fastpath.RunConfig{CPU: cpu, Threads: group, Turn: thread.Turn,
			Waiting: fastpath.Waiting{Spin: time.Hour}})
	}()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	used := func() time.Duration { // processor time, so that other load does not count
		var u unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
			t.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	const turns = 20
	before := used()
	for range turns {
		if !l.workers[0].Do(ctx, func(*fastpath.Worker) {}) { // this goroutine runs again after the turn
			t.Fatal("the worker does not answer")
		}
	}
	// A turn that ends by preemption takes 10 ms (runtime/proc.go, forcePreemptNS).
	if took := used() - before; took > turns*5*time.Millisecond {
		t.Errorf("%d turns of the worker took %v of processor time", turns, took)
	}
}
