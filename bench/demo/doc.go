// Package demo shows the gateway at work, and checks it: it builds a network, runs `sluice run` in
// it with ordinary manifests, sends real traffic from real TCP stacks, and prints the results in
// short lines.
//
//	client0 ─ front0 [ sluice run ] back0 ─┬ backend0
//	                    gateway            ├ ...
//	                                       └ backend3
//
// The demo is a sequence of acts. An act performs a change, prints the results, and states
// expectations; each one that is not met is printed as FAILED, and Run then returns an error. So
// the demo is also a test.
//
// The network is a topo.Net, and the gateway's kernel does not forward, so all forwarded packets
// went through Sluice. The gateway is a gate.Gateway: all its files are in its directory, which is
// removed at the end, however the demo ends. The directory of a killed demo is removed by the next
// one.
package demo
