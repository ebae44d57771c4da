//go:build !amd64

package pipeline

// canFlush: no instruction here is available to user space and known to flush to memory.
func canFlush() bool { return false }

func flushLines(first *byte, stride, n uintptr) { flushLinesGo(first, stride, n) }
