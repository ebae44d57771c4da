package thread

import (
	"time"
	_ "unsafe" // go:linkname
)

// Turn is the maximum time that a pinned goroutine should run before it calls Yield. It is far
// below the 10 ms after which the Go scheduler preempts. It is short because a collector without a
// P of its own (GOMAXPROCS 3) works on the caller's P during a Yield, for up to a quarter of the
// time (runtime, gcController.findRunnableGCWorker).
const Turn = time.Millisecond

// Retaken is the time in a system call, in nanoseconds, after which the Go scheduler always takes
// the goroutine's P (runtime, retake). The goroutine then starts a new turn. After a shorter call
// it mostly continues its previous turn.
const Retaken = 10_000_000

// Yield lets the Go scheduler run the goroutines that wait for the caller's P, and then continues,
// nearly always on the same thread. It takes 50 to 65 ns if none waits (go test -bench Yield). The
// caller must not be locked to its thread, and must call Pin.Check afterwards.
//
// A goroutine that is preempted after 10 ms, or calls runtime.Gosched, is put into the queue of all
// Ps, and another thread is woken to take it (runtime.goschedImpl), so two threads race for it.
// Yield puts the goroutine into the queue of its own P, wakes no thread, and restarts the 10 ms.
// The runtime promises to keep the function for packages that link to it (go.dev/issue/67401).
//
//go:linkname Yield runtime.goyield
func Yield()
