// Package topo builds real networks on one machine, for demos and end-to-end
// tests: network namespaces joined by veth pairs and bridges, real TCP and UDP
// servers and clients in them, and the counters with which kernels tell what
// arrived damaged.
//
//	two-armed                                  one-armed
//
//	client0 ─┐        gateway        ┌─ backend0    client0 ─┐      ┌─ backend0
//	client1 ─┤ front ═[front0 back0]═ back ├─ backend1    client1 ─┤ front ├─ backend1
//	         └ bridge              bridge ┘                  └ bridge ┘
//	                                                     gateway [eth0]
//
// A two-armed network may have several gateways, and a router between clients and gateways, which
// chooses among the gateways by routes that somebody brings:
//
//	client0 ── edge ── router ── front ─┬─ gateway0 ─┬─ back ── backend0
//	                                    └─ gateway1 ─┘
//
// A direct network is a two-armed one without bridges, for measurements: the cost of a packet is
// then the gateway's and two veth pairs' alone.
//
// Every host is a namespace of its own with one interface, eth0; the two-armed
// gateway has front0 and back0. The bridges live in one more namespace, the wire.
// There is nothing in the namespace of the machine itself, and nothing on disk:
// a namespace is held by a file descriptor and is gone when this process is, however
// it ends. Only with Config.Named are namespaces bound to names in /run/netns, so
// that people can enter them with `ip netns exec`; then Close removes the names.
//
// # Namespaces and threads
//
// A network namespace is a property of a thread. Host.Run locks its goroutine to a
// thread, takes the thread into the namespace, and brings it back. A socket stays
// in the namespace it was made in, wherever it is used. So dialling and listening is
// done inside, reading and writing anywhere. Goroutines started inside are outside.
//
// # Traps of veth that are taken care of
//
//   - A local stack leaves checksums unfinished on a veth and packets unsegmented:
//     transmit checksum, TSO, GSO, GRO and VLAN offloads are off on every end.
//   - The receive queue of a packet is the transmit queue its sender chose, and behind
//     a bridge that is always the first: a small program on the gateway's ports chooses
//     it by flow hash, as a NIC does. All ends have the same number of queues, because
//     a native XDP program needs a receive queue for each transmit queue of its peer.
//   - Duplicate address detection would delay IPv6 by a second; it is off.
//   - A one-armed router sends redirects, and hosts that follow them go round it;
//     both are off.
//
// Everything has a limit in number and time, and everything started is stopped by Close.
package topo
