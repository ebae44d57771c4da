//go:build (amd64 || arm64) && !noasm

package prefetch

// Read asks for the line of p, to be read. p may be any address: it is not dereferenced.
//
//go:noescape
func Read(p *byte)

// Write asks for the line of p, to be written: no other core keeps a copy.
//
//go:noescape
func Write(p *byte)
