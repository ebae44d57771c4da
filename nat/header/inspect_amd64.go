//go:build !noasm && !race

package header

// The race detector cannot see into this; with it the twin of inspect_go.go is used.
//
//go:noescape
func inspect(m *Memory, frames []Frame, ahead int, out *Plain, stride uintptr, t *tables) (bytes uint64, v6 bool)
