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
// The files are in layers. A file uses only files of lower layers; the one exception is that a
// Worker knows the Runner that takes it over next:
//
//	runner.go, takeover.go      steps of workers that share a CPU; hand-over to another process
//	step.go                     one step: receive, handle, transmit
//	pipeline.go, lookahead.go   the fast path; the packets of a group that have no flow
//	slowpath.go                 all other packets: fragment.go, icmp.go, echo.go, and
//	flow.go                     a packet's flow: admit.go makes one, retry.go chooses another backend,
//	                            direct.go finds connections that bypass the gateway
//	proxied.go                  packets of a flow with a PROXY header
//	forward.go, withoutflow.go  a packet of a flow, translated; a packet without a flow; park.go
//	answer.go                   generated packets: ICMP errors and RSTs
//	send.go                     the next hop: split.go, hold.go, egress.go (Ethernet header, transmission)
//	worker.go, new.go           the Worker, which has all state; publish.go makes its counts visible
//	packet.go, *queue.go, ...   values that do not know of the Worker
//
// Package decide plans new flows and classifies packets of known flows. Workers carry out its
// decisions.
package fastpath
