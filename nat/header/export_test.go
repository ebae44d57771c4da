package header

// InspectGo is the Go twin of Inspect.
func (m *Memory) InspectGo(frames []Frame, ahead int, out *Plain, stride uintptr) (bytes uint64, v6 bool) {
	return inspectGo(m, frames, ahead, out, stride, &plainTables)
}
