// Package xdpnat is a peer of the gateway: NAT in the kernel by an XDP program of the laboratory,
// with the approach of Cilium's NodePort acceleration (docs.cilium.io, "Kubernetes Without
// kube-proxy", "LoadBalancer & NodePort XDP Acceleration").
//
//	clients ═══ [front] nat.bpf.c [back] ═══ endpoints
//	               │ known flow: an entry of an LRU map, one for each direction
//	               │ new flow of a service: Maglev table → backend, a free SNAT port, two entries
//	               └ everything else: the kernel
//
// It does only the work that a packet of a known flow needs: one lookup of the tuple, rewriting of
// addresses, ports and TTL, adjustment of both checksums by values in the entry, a fixed next hop,
// and a redirect through a device map. Cilium's program does more: it looks for the service first,
// keeps connection tracking and SNAT in two maps, with times and TCP states, and queries the
// kernel's routing (bpf_fib_lookup, which only programs under the GPL may call: net/core/filter.c).
// So its figures are an upper bound for NAT in XDP of this kind, and not Cilium's.
//
// # Limits
//
//   - It supports IPv4, UDP and TCP; packets with options, fragments and ICMP errors pass to the
//     kernel, which translates nothing.
//   - Entries have no times and no TCP states. A full map evicts approximately the least recently
//     used entries (Documentation/bpf/map_hash.rst), including established connections. The next
//     packet of an evicted flow makes a new entry, to the same backend and, if another flow has
//     taken its port, from another SNAT port; Counters.Made is then above the number of flows. If
//     the entry of the reply direction was evicted, replies pass to the kernel.
//   - Services are read once; endpoints do not change.
package xdpnat
