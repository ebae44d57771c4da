// Package vip shows how a Service of type LoadBalancer gets an address and answers on it, and the
// effects of the loss of a gateway, and checks both:
//
//	            etcd, kube-apiserver, sluice-controller
//	                               │
//	                          ┌────┴─────┐  sluice, sluice-announcer
//	client0 ── router ── front ─┬─ gateway0 ─┬─ back ─┬─ backend0
//	            BIRD            └─ gateway1 ─┘        └─ ...
//
// All parts are real (package reach): the API server with the chart's CRDs and RBAC, Debian's BIRD,
// TCP stacks. The demo reads the API server's state as `kubectl get` does, and the router's state
// from birdc and from its kernel.
//
// The demo is a sequence of parts (package console) that print their actions and results, and fail
// if the results are not as expected.
package vip
