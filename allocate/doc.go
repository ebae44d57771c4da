// Package allocate is the controller that gives Services of type LoadBalancer addresses: it reads
// pools and Services from an API server, package allocate/pools decides, and the controller writes
// status.loadBalancer. It is a separate process (cmd/sluice-controller): a gateway writes no status
// and forwards without it.
//
//	AddressPool, IPAddressPool (MetalLB's), Namespace, Node, Service
//	       │ informers                                  ▲ status, precondition: resourceVersion
//	       ▼                                            │
//	   pools.Allocator ── what each Service has ──► writers ── Events
//
// # Which Services
//
// Services of type LoadBalancer whose spec.loadBalancerClass is Config.Class, and, with
// Config.Default, Services without a class. Gateways need no such rule: they serve the addresses
// that a status lists, whichever controller wrote them. This controller never assigns an address
// that is in the status of another controller's Service.
//
// # Nobody waits for others
//
// A change is processed for the Services that it concerns: of the waiting ones, the one that may
// get the freed address (pools.Allocator.Woken). Namespaces take turns (fairQueue), and slow work
// is done without the lock. If another controller also writes a status, this one pauses between its
// writes (conflict).
//
// # No address twice
//
// One process decides: it holds a Lease. That alone is not enough, because a process may be stopped
// for any time between its last check of the Lease and its request, while another one leads. So:
//
//   - A leader writes only while its Lease is valid by its own clock, with a margin (lease.valid).
//     It checks that after it has read the object that it writes.
//   - Each write names the resourceVersion that the decision was based on. So a late write fails if
//     the object has changed since.
//   - A new leader, unless the previous one released the Lease, first writes each Service of its
//     class (fence). After that no write of a previous leader can succeed, because each names a
//     version that the new leader has replaced. Only then are addresses given. The exception is a
//     Service that the API server refuses to write (unwritable): otherwise its author could keep
//     all others waiting. If a late write of it succeeds, the Service gets another address when
//     the new leader sees that.
//   - The addresses of a write with an unknown result are reserved until the Service has changed.
//   - An address that a status lists is given to no other Service, even if its Service may no
//     longer have it, until the status is written without it.
//
// A leader that loses the Lease does not lead again: Run returns, and the process ends.
package allocate
