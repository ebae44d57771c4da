package header

// InspectGo is Inspect by the twin in Go.
func (m *Memory) InspectGo(frames []Frame, ahead int, out *Plain, stride uintptr) (bytes uint64, v6 bool) {
	return inspectGo(m, frames, ahead, out, stride, &plainTables)
}
