// Package health answers health checks of load balancers as kube-proxy does (k8s.io/kubernetes
// pkg/proxy/healthcheck; KEP-3458, KEP-3836).
//
//	:10256 /healthz                      the whole node       Proxy
//	:10256 /livez                        this process         Proxy
//	:<spec.healthCheckNodePort>          one Service          Ports
//
// Three notions, from the narrowest to the widest:
//
//	alive     no update waits for a minute, no worker stands still: what a restart mends
//	serving   alive, and the data path forwards: table published, interfaces open
//	eligible  the Node object is not about to be deleted, and is there if an API server should have it
//
// /livez is alive, a Service's port is serving and has local endpoints, /healthz is serving and
// eligible. kube-proxy has no data path of its own, so its alive and serving are the same, and it
// is healthy before its first sync. That is different here on purpose: a gateway that does not
// forward must not get traffic, and one that waits for the API server or for a cable must not be
// restarted over and over.
//
// None of it stops forwarding: a port that is in use is reported as a Problem or a condition, and
// is tried again.
package health
