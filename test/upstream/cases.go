package upstream

// Case is a case of e2e.test. cases.md lists all of them.
type Case struct {
	// Name is as `e2e.test --list-tests` prints it, without "[sig-network] ".
	Name string
	// In is how the cluster is arranged for it; nil if it does not run, most often because it
	// cannot apply to a gateway.
	In *Arrangement
	// By is the drop reason whose counter rises for it, where the case is about packets that nobody
	// gets; if it is empty, flows of the case's own Services are counted.
	By string
	// Alone: no other case runs meanwhile, because it uses a resource that nodes have once, or a
	// counter that is not kept for each Service.
	Alone bool
}
