package thread

import "runtime"

// SetProcs sets GOMAXPROCS for a process with a number of workers: two more, unless it is larger
// already. A worker never gives its P back by itself, so the control loop and the collector have
// two of their own, and a worker that comes back from a sleep finds one.
//
// Go's other settings stay as they are. 10,000 Services of 10 endpoints are a live heap of 70 to
// 120 MB, and 100 changes a second make 4.5 MB/s of garbage: a collection each 15 to 25 s. GOGC=400
// would save three of four of these, for up to 300 MB more, and at ten times the changes it led to
// as many gaps in a worker's loop as GOGC=100. Keeping other threads off the workers' CPUs led to
// more gaps, on two CPUs with other work (ADR 9).
func SetProcs(workers int) {
	// Also where there are as many: Go then no longer follows a cgroup's limit below that.
	runtime.GOMAXPROCS(max(workers+2, runtime.GOMAXPROCS(0)))
}
