// Package allocate is the controller that gives Services of type LoadBalancer their addresses: it
// reads pools and Services from an API server, has allocate/pools decide, and writes
// status.loadBalancer. It is a process of its own (cmd/sluice-controller): a gateway writes no
// status, and needs none of this to forward.
//
//	AddressPool, IPAddressPool (MetalLB's), Namespace, Node, Service
//	       │ informers                                  ▲ status, precondition: resourceVersion
//	       ▼                                            │
//	   pools.Allocator ── what each Service has ──► writers ── Events
//
// # Which Services
//
// Those of type LoadBalancer whose spec.loadBalancerClass is Config.Class, and, with
// Config.Default, those that have no class. The gateways need no such rule: they serve what a
// status lists, whoever wrote it. Addresses in the status of other Services are nobody's here.
//
// # Nobody waits for others
//
// A change looks at the Services that it concerns: of those that wait, at the one that may get what
// was freed (pools.Allocator.Woken). Namespaces take turns (fairQueue), and all that takes long is
// done without the lock. Where somebody else writes a status, too, writes have pauses (fight).
//
// # No address twice
//
// One process decides: it holds a Lease. That alone is not enough, since a process may be stopped
// between its last look at the Lease and its request, for any time, while another one leads. What
// must hold:
//
//   - A leader writes only while its Lease is good by its own clock, with a margin (lease.valid),
//     and looks at that after it has the object that it writes.
//   - Each write names the resourceVersion of the object that the decision was about. So a write
//     that comes late fails if the object has changed since.
//   - A leader that takes over, but for one that was handed the Lease, first writes each Service of
//     its class (fence). From then on no write of any leader before can succeed: each is about a
//     version that the new leader has replaced. Only then are addresses given. The exception is a
//     Service that the API server does not write (unwritable): its author would keep all others
//     waiting. Should a late write of it succeed, it gets another address when that is seen.
//   - A write whose result is unknown keeps its addresses, until the Service has changed.
//   - What a status lists is given to no other Service, also where its own has lost it, until the
//     status is written without it.
//
// A leader that loses the Lease does not lead again: Run returns, and the process ends.
package allocate
