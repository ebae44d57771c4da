// Package health answers health checks of load balancers as kube-proxy does (k8s.io/kubernetes
// pkg/proxy/healthcheck; KEP-3458, KEP-3836).
//
//	:10256 /healthz                      the whole node       Proxy
//	:10256 /livez                        this process         Proxy
//	:<spec.healthCheckNodePort>          one Service          Ports
//
// Three states, from the narrowest to the widest:
//
//	alive     no update waits for a minute, no worker has stalled: a restart would help otherwise
//	serving   alive, and the data path forwards: table published, interfaces open
//	eligible  the Node object is not being deleted, and exists if an API server should have it
//
// /livez reports alive; a Service's port reports serving, with local endpoints; /healthz reports
// serving and eligible. kube-proxy has no data path of its own: its alive and serving are the same,
// and it is healthy before its first sync. Sluice differs on purpose: a gateway that does not
// forward must not get traffic, and one that waits for the API server or for a cable must not be
// restarted again and again.
//
// Health checks never stop forwarding: a port that is in use is reported as a Problem or a
// condition, and opening it is tried again.
package health
