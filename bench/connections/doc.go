// Package connections measures what a TCP client feels behind each system: the time to connect, to
// the first byte of an answer, and to the last of 10 KB, at several rates of new connections.
//
//	client engine ── veth ── gateway: Sluice, or kube-proxy ── veth ── server engine
//
// Each system has a network of its own (test/bed/topo), all of which stand at the same time. At
// each rate the systems take turns, Repeat times, in an order that rotates. The engines are those
// of package stateful: they cost so little that 20,000 connections a second leave the gateway time
// on two processors, which the kernel's own clients and servers do not. Each is a thread that
// sleeps when it has nothing to do, and is woken as a process that waits for its socket is.
//
// All systems have the same Service of eight endpoints, and as many others as are wanted, through
// kube-apiserver for kube-proxy, which is stopped while packets flow, and as manifests for Sluice.
// Systems that have no turn run on; they have nothing to do.
package connections
