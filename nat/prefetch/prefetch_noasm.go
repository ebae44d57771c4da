//go:build (!amd64 && !arm64) || noasm

package prefetch

// Read does nothing here.
func Read(p *byte) { readGo(p) }

// WriteAll does nothing here.
func WriteAll(base *byte, offsets *uint64, stride uintptr, n int) {
	writeAllGo(base, offsets, stride, n)
}
