// Package vip shows how a Service of type LoadBalancer gets an address that answers, and what is
// left when a gateway is lost, and judges it:
//
//	            etcd, kube-apiserver, sluice-controller
//	                               │
//	                          ┌────┴─────┐  sluice, sluice-announcer
//	client0 ── router ── front ─┬─ gateway0 ─┬─ back ─┬─ backend0
//	            BIRD            └─ gateway1 ─┘        └─ ...
//
// Everything is real (package reach): the API server with the chart's kinds and rights, BIRD of
// Debian, TCP stacks. What `kubectl get` would print is asked of the API server, what the router
// knows of birdc and of its kernel.
//
// It is a sequence of parts (package console) that print what they did and what they saw, and fail
// where that is not as expected.
package vip
