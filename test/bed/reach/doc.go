// Package reach runs all that brings a VIP to a client, as it is installed on Kubernetes: a real
// API server with the chart's CustomResourceDefinitions and rights, sluice-controller, gateways
// with sluice and sluice-announcer, and BIRD as their router.
//
//	          etcd, kube-apiserver, sluice-controller: in the caller's namespace
//	                                  │ 127.0.0.1 (cluster.Expose)
//	                             ┌────┴─────┐
//	client0 ── edge ── router ── front ─┬─ gateway0 ─┬─ back ─┬─ backend0
//	                   BIRD             └─ gateway1 ─┘        └─ ...
//
// Processes have the accounts and rights of deploy/manifests, and nothing more. No kubelet starts
// them, and nobody writes EndpointSlices but the caller.
//
// A Lab belongs to one goroutine. Everything is removed by Close, in any state.
package reach
