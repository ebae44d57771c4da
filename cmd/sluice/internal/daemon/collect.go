package daemon

import (
	"os"
	"runtime/debug"
)

// How Go's collector works in the daemon, where the environment (GOGC, GOMEMLIMIT) does not
// say. What workers read per packet is not on its heap, but its cycles take processor time
// and stop threads for moments; the control plane's heap is small, so it may grow to five
// times what is live before a cycle, up to a limit that a large cluster does not reach.
const (
	gcPercent   = 400
	memoryLimit = 1 << 30 // bytes of Go's own memory
)

func tuneCollector() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit)
	}
}
