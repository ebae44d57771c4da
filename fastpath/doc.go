// Package fastpath moves frames from receive to transmit. It is one loop, Worker.Step. For each
// queue index there is a Worker, which the goroutine of a Runner steps, pinned to a CPU:
//
//	links ──Receive──► Batch ─┬─inspect─find─finish───────► egress queues ──Transmit──► links
//	                          │   plain, of a known flow       ▲
//	                          └─handleAny──────────────────────┤
//	                              all others                   ├─ held: next hop or first fragment not known yet
//	                                                           ├─ returned: to the kernel by the host link
//	                                                           └─ dropped: with one named reason
//
// A worker owns its UMEM, its Pool of free frames, its Links and its stats.Block;
// it shares the flow table with the other workers and reads, once per batch, the
// current services.Snapshot and nexthop.View. It takes no lock, allocates nothing
// and reads the clock once per step.
//
// Two laws hold after every step. The counters of the Block allow other goroutines to check them:
//
//	frames:  UMEM = free + in links + held
//	packets: received + generated = transmitted + returned + dropped + held
//
// A packet that is longer than a frame is a chain of frames (Chains). The second law counts it as
// one packet, the first counts each of its frames.
//
// The files, in the order of a packet's path: worker.go (the step), pipeline.go (the fast path),
// lookahead.go (packets of a group without a flow), slowpath.go, park.go (new flows beyond a step's
// budget), admit.go (making a flow), retry.go (another backend for an unanswered flow), forward.go
// (a known flow), icmp.go (errors and echo), reset.go, fragment.go, hold.go (next hops that are not
// known yet), egress.go (Ethernet header and transmission). runner.go, run.go and pace.go run the
// steps of workers that share a CPU, and wait between them.
//
// Package decide plans new flows and classifies packets of known flows. Workers carry out its
// decisions.
package fastpath
