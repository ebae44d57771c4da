// Package upstream runs Kubernetes' own end-to-end tests of Services (test/e2e/network, the program
// e2e.test of the release that test/bed/cluster runs) against a cluster on this machine, with a
// gateway in front of it.
//
//	client's host                    gateway's node              workers' nodes
//	┌───────────────────────────┐    ┌─────────────────────┐    ┌──────────────────────┐
//	│ e2e.test, kubectl         │    │ sluice (the chart)  │    │ kubelet, containerd  │
//	│ etcd, API server, ...     ├────┤ kubelet, containerd ├────┤ kube-proxy, or none  │
//	└───────────────────────────┘    └─────────────────────┘    └──────────────────────┘
//
// A case counts only if the gateway's own counters rose for it: flows and packets of the Services
// in the case's namespaces, or the drop reason that the case is about. Which way a case's packets
// go is decided by an Arrangement: which nodes it knows of and in what order, where its pods run,
// and whether workers have a kube-proxy of their own.
//
// This package replaces the services of a cloud: Balancer gives addresses to Services of type
// LoadBalancer, Names answers for the names of Services, Images are made, not pulled.
//
// cases.md lists every case of the network group, and the tests read it there: a case runs
// in an arrangement, or has the reason why it cannot apply to a gateway.
package upstream
