// Package affinity is the table of session affinity pins that all workers share. A pin has the
// backend for a client's new flows to a service, and the time at which it ends.
//
//	(client address, service) ──> pin: backend address and port, until
//
// A pin implements kube-proxy's ClientIP affinity (k8s.io/kubernetes pkg/proxy/nftables,
// Service.spec.sessionAffinityConfig): its key is the client's address and the service port, so
// that all frontends of the port share it. Each new flow that reaches an assured state
// (flowtable.State.Assured) sets the pin again and restarts its time; other packets do not change
// it. The caller decides whether a pin's backend may still be used; if not, it calls Settle with
// another.
//
// A packet that opens a flow may have a forged source. So a pin is tentative at first, and
// confirmed when a flow of the client is assured:
//
//	new flow ── Settle ──► tentative ── Confirm ──► confirmed
//	                       evicted for any pin      evicted for confirmed pins only
//
// A tentative pin serves the other first flows of a client. It never takes the slot of another
// client's confirmed pin, and never extends a confirmed one.
//
// # The shape in memory
//
//	head, 4096 B | set | set | ...
//	set, 512 B:  ctl | 10 tags of 16 bits | 10 slots of 48 B
//
// A keyed hash of the key selects the set. A set has five pins on average when the table holds the
// configured number of clients. A full set evicts a tentative pin, or else the pin that ends first.
// The memory contains no pointers. It is on the heap (NewHeap) or in a file on tmpfs (OpenFile),
// which keeps the pins when the process ends. Times are CLOCK_BOOTTIME, passed as arguments.
//
// # No locks
//
// Only the end of a pin changes while readers may read it. A writer claims a slot that holds no
// pin, writes it, and then makes it the key's pin with one compare-and-swap on the set's ctl, which
// also frees the key's former pin. The type set documents the protocol. A writer that is stopped in
// the middle holds one slot and blocks no other. If the process is killed, the next process finds
// that slot claimed and frees it.
package affinity
