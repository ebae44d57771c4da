//go:build (amd64 || arm64) && !noasm

package prefetch

// Read asks for the line of p, to be read. p may be any address: it is not dereferenced.
//
//go:noescape
func Read(p *byte)

// WriteAll asks for n lines, to be written: no other core keeps a copy. They are so many bytes
// beyond base as offsets says, of which the next is stride bytes behind the last. n must not be 0.
//
//go:noescape
func WriteAll(base *byte, offsets *uint64, stride uintptr, n int)
