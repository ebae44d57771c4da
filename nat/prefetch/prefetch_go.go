package prefetch

// readGo and writeAllGo are the twins of the assembly. A prefetch changes nothing that a program
// can read, and no address is wrong.
func readGo(*byte) {}

func writeAllGo(*byte, *uint64, uintptr, int) {}
