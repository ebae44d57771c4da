package pipeline

// canFlush reports whether headers can be made cold here. CLFLUSH is in every amd64
// processor; CLFLUSHOPT is faster and does the same, but nobody waits for this.
func canFlush() bool { return true }

// flushLines takes n lines out of the caches, stride bytes apart. They must all be in one mapping.
//
//go:noescape
func flushLines(first *byte, stride, n uintptr)
