// Package conformance holds the gateway to what docs/kubernetes.md says, packet by
// packet: a real API server gets the objects, real clients and servers exchange real
// packets, and the same packets can be given to a real kube-proxy beside it.
//
//	                 etcd, kube-apiserver
//	                  │ watch     │ watch
//	┌ topology ───────▼──┐  ┌─────▼─────── topology ┐
//	│ clients ─ sluice ─ │  │ clients ─ kube-proxy ─│   same addresses, same Node,
//	│           backends │  │           backends    │   same configuration
//	└────────────────────┘  └───────────────────────┘
//
// # Cases
//
// A Case shows one row of the document (or of the lists in rows.go, for its prose): objects, and
// probes with their outcome. It may have steps: changes of the objects, each with its probes. Every
// case has Services, addresses, ports and a namespace of its own, so the first steps of all cases
// are written at once and probed side by side, then the second steps, and so on: the suite waits
// for the systems once for each round and not once for each case. Cases that change the gateway's
// configuration come last, one configuration after another.
//
// # Probes and outcomes
//
// A probe opens connections from one kind of client to one or more frontends. Their outcome is one
// line of text, the same for all systems:
//
//	b0 b1 from gateway    these backends answered, and saw an address of the gateway
//	b0 from client        ... and saw the client's own address
//	reject                ICMP port unreachable, and nothing else
//	drop                  silence
//	beyond from client    the gateway's kernel routed the packet on, as it was: a host
//	                      behind the gateway has all addresses of Services, and answers
//	pass: no listener     the gateway's kernel answered with RST
//
// # Differences
//
// kube-proxy is held to the same outcomes, except for the differences in differences.go, each with
// the document that gives the reason. One that is not listed fails the run, and so does a listed
// one that is none any more. The run writes the tables of docs/conformance.md (make -C test
// conformance-doc).
package conformance
