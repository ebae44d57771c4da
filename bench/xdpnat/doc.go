// Package xdpnat is a peer of the gateway: NAT in the kernel by an XDP program of the laboratory's
// own, as Cilium's NodePort acceleration does it (docs.cilium.io, "Kubernetes Without kube-proxy",
// "LoadBalancer & NodePort XDP Acceleration").
//
//	clients ═══ [front] nat.bpf.c [back] ═══ endpoints
//	               │ known flow: an entry of an LRU map, one for each direction
//	               │ new flow of a service: Maglev table → backend, a free SNAT port, two entries
//	               └ everything else: the kernel
//
// It does what a packet of a known flow needs, and no more: one look-up of the tuple, addresses,
// ports and TTL rewritten, both checksums adjusted by what the entry says, a fixed next hop, a
// redirect through a device map. Cilium's program does more: it looks for the service first, keeps
// connection tracking and SNAT in two maps, with times and TCP states, and asks the kernel's
// routing (bpf_fib_lookup, which only programs under the GPL may call: net/core/filter.c). So what
// this reaches is the most that NAT in XDP of this kind can, not what Cilium does.
//
// # What it is not
//
//   - IPv4, UDP and TCP; no options, fragments or ICMP errors: those are the kernel's, which
//     translates nothing.
//   - Entries have no times and no TCP states. A map that is full evicts about what was used
//     longest ago (Documentation/bpf/map_hash.rst), established connections too: an
//     evicted flow's next packet makes a new one, to the same backend and, if another flow has its
//     port, from another SNAT port. Counters.Made is then above the number of flows. Replies of a
//     flow whose own entry was evicted go to the kernel.
//   - Services are read once; endpoints do not change.
package xdpnat
