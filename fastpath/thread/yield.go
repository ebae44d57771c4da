package thread

import (
	"time"
	_ "unsafe" // go:linkname
)

// Turn is how long a pinned goroutine should run, at most, before it calls Yield. It is far below
// the 10 ms after which the Go scheduler preempts, and short because a collector may work on the
// caller's P when it yields: where it has no P of its own (GOMAXPROCS 3), for up to a quarter of
// the time (runtime, gcController.findRunnableGCWorker).
const Turn = time.Millisecond

// Retaken is how long a goroutine is in a system call, in nanoseconds, before the Go scheduler
// takes its P away in any case (runtime, retake). It comes back to a new turn. From a shorter call
// it mostly comes back to the turn that it left.
const Retaken = 10_000_000

// Yield lets the Go scheduler run the goroutines that wait for the caller's P, and then continues,
// nearly always on the same thread: 50 to 65 ns if none waits (go test -bench Yield). The caller
// must not be locked to its thread, and must call Pin.Check afterwards.
//
// A goroutine that is preempted after 10 ms, as one that calls runtime.Gosched, is put into the
// queue of all Ps, and another thread is woken to take it (runtime.goschedImpl): two threads race
// for it. One that yields like this is put into the queue of its own P, no thread is woken, and
// its 10 ms begin anew. The runtime marks the function as one that must stay, for packages that
// link to it (go.dev/issue/67401).
//
//go:linkname Yield runtime.goyield
func Yield()
