// Package pools decides which addresses Services of type LoadBalancer have. It is the allocator
// without a client: it sees API types and pools, and returns what a Service's status must list.
//
// A Pool has ranges of addresses and says who may have them. A Request is what one Service asks
// for: families, ports, perhaps certain addresses or a certain pool. The Allocator holds a claim
// for each Service that has addresses, and so knows which are taken.
//
//	Service ──► RequestOf ──► Request ──┐
//	                                    ├──► Allocator ──► Result: addresses, or a Refusal
//	AddressPool ──► New ──► Pool ───────┘
//
// Behaviour follows MetalLB's controller where users depend on it (annotations, order of pools,
// sharing); testdata/metallb has its published tests as data, and names each difference.
//
// # What must hold
//
//   - An address has one claim, or several whose sharing rules permit all of them together.
//   - What a Service's status lists stays, as long as a pool has it, is for this Service, and the
//     Service asks for nothing else. Adopt all Services before the first is allocated for.
//   - Also while a pool cannot be read and nobody knows what it had: then what no other pool has
//     stays, and nothing is given from it.
//   - A decision takes no longer the larger a pool is, or the more Services have addresses or wait
//     (taken, waits; TestOneIsWokenForOneAddress), but for the pools and ranges that are looked at.
//   - The same calls in the same order have the same results: where there is a choice, it is made
//     by priority, then by name, then by address.
//
// Nothing here is safe for concurrent use.
package pools
