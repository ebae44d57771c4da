// Package fastpath moves frames from receive to transmit. It is one loop, Worker.Step, run for each
// queue index by the goroutine of a Runner, which is pinned to a CPU:
//
//	links ──Receive──► Batch ─┬─inspect─find─finish──────► egress queues ──Transmit──► links
//	                          │   plain, of a known flow      ▲
//	                          └─handleAny──────────────────────┤
//	                              all else                    ├─ held: next hop or first fragment not known yet
//	                                                          ├─ returned: to the kernel by the host link
//	                                                          └─ dropped: with one named reason
//
// A worker owns its UMEM, its Pool of free frames, its Links and its stats.Block;
// it shares the flow table with the other workers and reads, once per batch, the
// current services.Snapshot and nexthop.View. It takes no lock, allocates nothing
// and reads the clock once per step.
//
// Two laws hold whenever a step is over, and the Block carries what is needed to
// check them from outside:
//
//	frames:  UMEM = free + in links + held
//	packets: received + generated = transmitted + returned + dropped + held
//
// A packet that is longer than a frame is a chain of frames (Chains). It is one packet for the
// second law, and each of its frames counts for the first.
//
// The files, in the order in which a packet meets them: worker.go (the step), pipeline.go (the fast
// path), lookahead.go (packets of a group without a flow), judge.go (the slow path), park.go (new
// flows beyond a step's budget), admit.go (making a flow), retry.go (another backend for one that
// is not answered), forward.go (a known flow), icmp.go (errors and echo), reset.go, fragment.go,
// hold.go (next hops that are not known yet), egress.go (Ethernet and out). runner.go, run.go and
// pace.go run the steps of workers that share a CPU, and wait between them.
//
// Package decide, below this one, plans new flows and classifies packets against their flows.
// Workers carry its decisions out.
package fastpath
