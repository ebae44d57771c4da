// Package pools decides which addresses Services of type LoadBalancer have. It has no API client:
// it reads API types and pools, and returns the addresses that the status of a Service must list.
//
// A Pool has ranges of addresses and the conditions under which a Service may use them. A Request
// is parsed from one Service: families, ports, and the addresses or the pool that it asks for, if
// any. The Allocator holds a claim for each Service that has addresses, and so knows which are in
// use.
//
//	Service ──► RequestOf ──► Request ──┐
//	                                    ├──► Allocator ──► Result: addresses, or a Refusal
//	AddressPool ──► New ──► Pool ───────┘
//
// Behaviour follows MetalLB's controller where users depend on it (annotations, order of pools,
// sharing). testdata/metallb has MetalLB's published tests as data and names each difference.
//
// # What must hold
//
//   - An address has one claim, or several whose sharing rules permit all of them together.
//   - A Service keeps the addresses in its status as long as a pool has them, the pool admits the
//     Service, and the Service asks for nothing else. The caller must therefore adopt all
//     Services before it allocates for any.
//   - While a pool cannot be read and its ranges are unknown, Services keep addresses that no other
//     pool has, and no address of the unreadable pool is given to a Service.
//   - The time of a decision does not depend on the size of a pool, nor on how many Services have
//     addresses or wait (addressSet, waits; TestOneIsWokenForOneAddress). It grows with the number
//     of pools and ranges that must be searched.
//   - The same calls in the same order have the same results: choices are made by priority, then by
//     name, then by address.
//
// Nothing here is safe for concurrent use.
package pools
