// Package affinity is the table of session affinity pins that all workers share: which backend
// a client's new flows to a service go to, and until when.
//
//	(client address, service) ──> pin: backend address and port, until
//
// What a pin means is kube-proxy's ClientIP affinity (k8s.io/kubernetes pkg/proxy/nftables,
// Service.spec.sessionAffinityConfig): its key is the client's address and the service port, so
// that all frontends of the port share it. Each new flow that comes to stand sets it again, and
// its time counts from then; other packets do not touch it. Whether a pin's backend may still be
// used is the caller's to judge; if not, the caller settles on another.
//
// A packet that opens a flow may have a forged source. So a pin is tentative at first, and
// confirmed when a flow of the client's stands:
//
//	new flow ── Settle ──► tentative ── Confirm ──► confirmed
//	                       gives way to any pin     gives way to confirmed pins only
//
// A tentative pin is there for the other first flows of a client. It never takes the slot of
// another client's confirmed pin, and never makes a confirmed one last longer.
//
// # The shape in memory
//
//	head, 4096 B | set | set | ...
//	set, 512 B:  ctl | 10 tags of 16 bits | 10 slots of 48 B
//
// The hash of the key, which is keyed, chooses the set; five pins to a set on average when there
// are as many as configured. In a full set a tentative pin gives way, else the one that ends
// first. There are no pointers in it: it is the heap (NewHeap) or a file on tmpfs (OpenFile),
// which keeps the pins when the process ends. Times are CLOCK_BOOTTIME, by argument.
//
// # No locks
//
// A pin is never changed where readers may read it, but for its end. A writer claims a slot that
// holds no pin, writes it, and then makes it the key's pin with one compare-and-swap on the set's
// ctl, which also frees the key's former pin. The type set documents how. So a writer that is
// stopped in the middle holds one slot and blocks no other, and when the process is killed, the
// next one finds that slot claimed and frees it.
package affinity
