package header

// InspectGo is the Go twin of Inspect.
func (m *Memory) InspectGo(frames, ahead []Frame, both bool, out *Plain, stride uintptr) (bytes uint64, v6 bool) {
	return inspectGo(m, frames, ahead, both, out, stride, &plainTables)
}
