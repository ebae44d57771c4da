package pipeline

// flushLinesGo is the Go twin of the assembly, which evicts n lines from the caches, stride bytes
// apart, and changes no memory content.
func flushLinesGo(*byte, uintptr, uintptr) {}

// flushHeaders evicts the first two lines of every packet in a UMEM from the caches.
func flushHeaders(umem []byte) {
	for _, line := range []int{headroom, headroom + 64} {
		flushLines(&umem[line], frameSize, umemFrames)
	}
}
