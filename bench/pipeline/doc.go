// Package pipeline measures a worker's processing of packets without a kernel: the real
// fastpath.Worker, with a real snapshot, next hops and flow table, between two in-memory links. A C
// program that does the same work (reference) runs beside it at the same time on the same core,
// because on a shared machine only ratios are reproducible.
//
// A chunk is 4096 frames of flows drawn uniformly. They are written into the UMEM outside the
// measured time. The measured time contains every Step that the worker needs for them, the clock
// reading before each, and one more Step, in which the worker takes back the frames that the
// simulated kernel has sent meanwhile (not measured) and gives the link new ones. The median of
// some hundred chunks is one sample. Time stands still between chunks, so that refreshing and
// sweeping of flows depend on the measured time and not on the preparation.
//
//	world    services, backends, routes, a flow table, and the frames of its flows
//	gate     a worker and its links: inject, time, complete
//	scenario the varied condition; each makes points (bench/results)
package pipeline
