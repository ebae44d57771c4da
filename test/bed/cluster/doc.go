// Package cluster runs a real control plane for tests and measurements: etcd and
// kube-apiserver as they are released, with controllers only on request, and
// kube-proxy beside or instead of Sluice.
//
//	caller's namespace                         a gateway's namespace
//	┌──────────────────────────────┐           ┌───────────────────────────┐
//	│ etcd ◄─ unix ─ kube-apiserver│           │ sluice, kube-proxy        │
//	│                  ▲ 127.0.0.1 │           │    │ 127.0.0.1            │
//	│                  └── this process ◄───────── listens here (Expose)   │
//	└──────────────────────────────┘           └───────────────────────────┘
//
// A gateway's namespace gets no management link, which would be one more interface
// with addresses that node ports and source translation would have to deal with.
// Instead this process listens on the namespace's loopback and passes the bytes on: a
// socket stays in the namespace that it was made in.
//
// No controller runs, unless Config.Controllers requests them, as nodes do
// (test/bed/cluster/nodes): the test that writes a Service writes its EndpointSlices, its load
// balancer status and the Nodes too, and so decides in which order and how wrongly
// they arrive. Cluster IPs, node ports, validation, defaulting, RBAC, tokens and
// watches are the API server's own.
//
// # Lifetime
//
// Everything that is written lies in one directory on tmpfs, named after the process
// that made it. All processes are children that die with this one, and Close kills
// them: there is nothing to save. The API server's port is reserved by a socket that
// is bound and never listens, so that it is the same after a restart and nobody can
// take it in between (SO_REUSEPORT, kube-apiserver's --permit-port-sharing).
//
// # Binaries
//
// They are built from test/bed/cluster/binaries, a Go module of its own, once for each
// content of its go.mod and go.sum, and kept in the user's cache directory. That takes
// minutes, so tests that need them run only where Enabled returns true.
package cluster
