// Package pipeline measures what one worker does with a packet, without a kernel:
// the real fastpath.Worker, with a real snapshot, next hops and flow table, between two
// in-memory links. Beside it runs a program in C that does the same work (reference), in the
// same minute on the same core, because on a shared machine only a ratio is worth keeping.
//
// A chunk is 4096 frames of flows drawn uniformly. They are written into the UMEM
// untimed; what is timed is every Step that the worker needs for them, the clock it reads
// before each, and one Step more, in which it takes back the frames that the "kernel"
// sent meanwhile (untimed) and gives the link new ones. The median of some hundred chunks is one
// sample. Time stands still between chunks, so that flows are refreshed and swept at the pace
// of the packets, not of their preparation.
//
//	world    services, backends, routes, a flow table, and how frames of its flows look
//	gate     a worker and its links: inject, time, complete
//	scenario what is varied; each makes points (bench/results)
package pipeline
