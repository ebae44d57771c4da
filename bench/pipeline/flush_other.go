//go:build !amd64

package pipeline

// canFlush: no instruction here that user space may use and that is known to reach memory.
func canFlush() bool { return false }

func flushLines(first *byte, stride, n uintptr) { flushLinesGo(first, stride, n) }
