// Package control holds the packages of the control loop. It turns Kubernetes objects into the
// Snapshot by which workers handle packets, and sets the packets that the kernel program sends to
// workers.
//
//	sources ──▶ Tracker ──Changes──▶ Compiler ──Snapshot──▶ Publisher ──▶ workers
//	(files,     coalesces,           pure, builds  └─Change──▶ Steering ──▶ kernel program
//	 k8s)       keeps last good      changed parts
//	            tracker              compiler               └──── loop ────┘
//
// The packages and their rules:
//
//	objects    the meaning of each field of a Service, EndpointSlice or Node, and its errors
//	tracker    which version of an object is used, and which objects changed
//	steer      the entries of the kernel program, as compiler and loop exchange them
//	compiler   which Service has a frontend, which endpoints get flows, limits, numbers, self check
//	loop       when to compile, publish, steer and close
//
// Each imports only packages above it; tracker, steer and compiler do not import each other, except
// that the compiler imports steer (test/rules). The loop works on state, not on a
// history of events: the same objects, configuration and drains lead to the same table in any order
// of arrival, and a Full compile of Tracker.State equals the incremental one.
//
// Beside them: sources (files, k8s), servers (status, health, metrics), the state of the host
// (neigh, hostlink, ethtool), and the configuration (config).
package control
