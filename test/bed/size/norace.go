//go:build !race

package size

// Race reports whether the race detector is on.
const Race = false
