// Package rollout measures a rolling update under load: one of thousands of Services has all its
// pods replaced while clients open new connections.
//
//	client0 ── new connections to the Service that rolls ─┐            ┌─ backend0  pods, an
//	client1 ── new connections to others ─────────────────┤  gateway   ├─ backend1  address and
//	                                                      └────────────┴─ ...       a server each
//	etcd, kube-apiserver ◄── slices, written as the controllers write them
//
// Each system gets the same network, objects, clients and changes: Sluice, and kube-proxy in its
// modes. The observations are external (test/bed/observer): SYNs that arrive at the pods' hosts,
// with the kernel's time stamps, and processor time of processes.
//
// # Pods
//
// A pod is an address on one of a few hosts and a server on it. It starts, becomes ready some time
// later, begins to terminate (terminating and serving, in terms of the API), and is dead after the
// grace period: its server and its address are gone, and packets to it get no answer. The number of
// pods that start and end at a time is that of a Deployment with maxSurge and maxUnavailable of 25
// %. Endpoints of the other Services are addresses without hosts, except for a few Services to
// which client1 connects.
//
// # Times
//
// The time of a change is the start of its write to the API server. A connection meets an old
// endpoint if its first SYN arrives at an endpoint that was terminating by then. The convergence
// time is the time of the last such SYN after the last write that made an endpoint terminating; its
// resolution is the interval of connections.
package rollout
