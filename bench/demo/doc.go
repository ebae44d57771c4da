// Package demo shows the gateway at work, and judges it: it builds a network, runs
// `sluice run` in it on ordinary manifests, sends real traffic from real TCP
// stacks, and says in short lines what happened.
//
//	client0 ─ front0 [ sluice run ] back0 ─┬ backend0
//	                    gateway            ├ ...
//	                                       └ backend3
//
// The demo is a sequence of acts. An act does something, prints what it saw, and
// states expectations; every one that is not met is printed as FAILED, and makes
// Run return an error. So the demo is a test that people like to read.
//
// The network is a topo.Net, and the gateway's kernel does not forward: what gets
// through went through Sluice. The gateway is a gate.Gateway: everything on disk is
// in its directory, which is removed at the end, however the demo ends. A demo that
// was killed could not; the next one removes it.
package demo
