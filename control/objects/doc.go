// Package objects is what is kept of Services, EndpointSlices and Nodes, and what is wrong
// with them.
//
//	corev1.Service, discoveryv1.EndpointSlice, corev1.Node
//	    │ TrimService, TrimSlice, TrimNode
//	    ▼
//	Service, Slice, Node     immutable: fields that are compiled, checked one by one
//	FieldProblem ──▶ Problem        what is wrong, and with which field of which object of which Source
//	Changes, State           versions of objects, as they go from the tracker to the compiler
//
// The rules for fields lie in files by name: service.go (ports, families, addresses), policy.go
// (traffic policies, affinity, source ranges, scheduler, health check node port), weights.go,
// slice.go, node.go, address.go. An object by itself decides nothing here: which endpoints get
// flows, and who has a frontend, follows from all of them, in the compiler.
//
// It imports no other package of control, and all of them may import it.
package objects
