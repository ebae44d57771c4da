package pipeline

// canFlush reports whether headers can be evicted from the caches on this processor. Every amd64
// processor has CLFLUSH; CLFLUSHOPT is faster, but speed does not matter here.
func canFlush() bool { return true }

// flushLines evicts n lines from the caches, stride bytes apart. They must all be in one mapping.
//
//go:noescape
func flushLines(first *byte, stride, n uintptr)
