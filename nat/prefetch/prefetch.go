//go:build (amd64 || arm64) && !noasm

package prefetch

// Read prefetches the line of p for reading. p may be any address: it is not dereferenced.
//
//go:noescape
func Read(p *byte)

// WriteAll prefetches n lines for writing: no other core keeps a copy. offsets points to the first
// of n offsets from base, in bytes; each is stride bytes after the previous one in memory. n must
// not be 0.
//
//go:noescape
func WriteAll(base *byte, offsets *uint64, stride uintptr, n int)
