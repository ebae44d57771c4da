// Package objects has the fields of Services, EndpointSlices and Nodes that are compiled, and the
// problems of these objects.
//
//	corev1.Service, discoveryv1.EndpointSlice, corev1.Node
//	    │ TrimService, TrimSlice, TrimNode
//	    ▼
//	Service, Slice, Node     immutable: fields that are compiled, checked one by one
//	FieldProblem ──▶ Problem a mistake, with its field, object and Source
//	Changes, State           versions of objects, as they go from the tracker to the compiler
//
// Each rule for a field is in the file named after it: service.go (ports, families, addresses),
// policy.go (traffic policies, affinity, source ranges, scheduler, health check node port),
// weights.go, slice.go, node.go, address.go. Nothing here depends on more than one object: the
// compiler decides which endpoints get flows and which Service has a frontend.
//
// It imports no other package of control, and all of them may import it.
package objects
