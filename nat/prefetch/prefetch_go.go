package prefetch

// readGo and writeAllGo are the twins of the assembly. A prefetch has no effect that a program can
// observe, and any address is allowed.
func readGo(*byte) {}

func writeAllGo(*byte, *uint64, uintptr, int) {}
