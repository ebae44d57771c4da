//go:build (!amd64 && !arm64) || noasm

package prefetch

// Read does nothing here.
func Read(*byte) {}

// WriteAll does nothing here.
func WriteAll(*byte, *uint64, uintptr, int) {}
