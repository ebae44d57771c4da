// Package gaps measures for how long a packet worker does nothing because of the Go
// runtime around it: garbage collection, preemption, threads of the control plane.
//
//	this process (kept off the worker's CPU)         child, one for each variant
//	API server: 10,000 services ── HTTP, 100/s ───►  reflectors ► Tracker ► Compiler ► Publish
//	                                                                             │ Snapshot
//	C loop (floor.c) ─ same CPU, other windows       fastpath.Worker.Run on a link that is a clock
//
// The child is the gateway's own control plane (control, control/k8s) and the workers' own
// loop in one process, as in the daemon. The worker's only link is a probe: it never has a
// packet, so the worker spins, and each time it is asked it reads the clock. The time
// between two of these readings is one step of the loop, some 100 ns, or a gap. Gaps are
// told apart by what the kernel says of the thread (getrusage(2), RUSAGE_THREAD):
//
//	handed over   it slept, or the loop went on on another thread: the Go scheduler preempted
//	              it, and package fastpath/thread documents what follows
//	preempted     the kernel ran something else on its processor
//	in place      neither: the hypervisor, an interrupt, or work in the thread itself
//
// The floor is the same clock in C on the same processor, with the child stopped (SIGSTOP)
// and the API server at rest: what the machine takes by itself. Windows alternate: C, Go,
// C, Go. A round's figure is its Go window less the C window beside it.
//
// That needs a machine without other work. Where neighbours take the CPU, the C loop waits for
// it, and a worker that is not locked may go on on another thread: then Go can have fewer
// gaps than C, which says nothing of the target.
//
// The API server is the one in memory. It speaks JSON, and a real one protobuf, which makes a
// fraction of the garbage: the figures are pessimistic there. It shares the other processors with
// the child's control plane, which a real one, on another machine, does not.
package gaps
