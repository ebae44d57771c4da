//go:build race

package size

// Race reports whether the race detector is on. It finds a race between two operations in few
// repetitions, and none in a test of one goroutine.
const Race = true
