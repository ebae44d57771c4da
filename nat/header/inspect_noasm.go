//go:build !amd64 || noasm || race

package header

func inspect(
	m *Memory, frames, ahead []Frame, both bool, out *Plain, stride uintptr, t *tables,
) (bytes uint64, v6 bool) {
	return inspectGo(m, frames, ahead, both, out, stride, t)
}
