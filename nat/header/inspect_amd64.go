//go:build !noasm && !race

package header

// The race detector does not see this function's memory accesses. Race builds use the Go twin in
// inspect_go.go.
//
//go:noescape
func inspect(m *Memory, frames, ahead []Frame, both bool, out *Plain, stride uintptr, t *tables) (bytes uint64, v6 bool)
