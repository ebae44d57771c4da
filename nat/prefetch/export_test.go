package prefetch

// The twins in Go.
var (
	ReadGo     = readGo
	WriteAllGo = writeAllGo
)
