// Package rollout measures a rolling update under load: thousands of
// Services, one of which has all its pods replaced while clients open new connections.
//
//	client0 ── new connections to the Service that rolls ─┐            ┌─ backend0  pods, an
//	client1 ── new connections to others ─────────────────┤  gateway   ├─ backend1  address and
//	                                                      └────────────┴─ ...       a server each
//	etcd, kube-apiserver ◄── slices, written as the controllers write them
//
// The same network, objects, clients and changes are given to each system: Sluice, and
// kube-proxy in its modes. What happens is seen from outside (test/bed/observer): SYNs as they
// arrive at the pods' hosts, with the kernel's time, and processor time of processes.
//
// # Pods
//
// A pod is an address on one of a few hosts and a server on it. It starts, becomes ready
// some time later, begins to terminate (terminating and serving, in terms of the API), and is
// dead a grace later: its server and its address are gone, so what is still sent to it
// meets silence. How many start and end at a time is what a Deployment does with maxSurge
// and maxUnavailable of 25 %. Endpoints of the other Services are addresses where nobody
// is, but for those of a few that client1 connects to.
//
// # Times
//
// A change counts from the moment its write to the API server begins. A connection meets
// an old endpoint when its first SYN arrives at one that was terminating by then.
// The time to converge is that of the last such SYN, after the last write that made an
// endpoint terminating; it is as fine as connections are frequent.
package rollout
