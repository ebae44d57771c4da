//go:build !amd64 || noasm || race

package header

func inspect(m *Memory, frames []Frame, ahead int, out *Plain, stride uintptr, t *tables) (bytes uint64, v6 bool) {
	return inspectGo(m, frames, ahead, out, stride, t)
}
