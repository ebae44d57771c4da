// Package tail shows where the slowest packets waited.
//
// A trial of package stateless records for each packet the time of its stamp and the time when the
// receiver's XDP program saw it. Meanwhile programs on the kernel's tracepoints (trace.bpf.c)
// record the threads that run on each CPU, wake-ups, softirqs, interrupts, the ends of NAPI polls,
// and the system calls of the generator and of the forwarder. All use the same clock,
// CLOCK_MONOTONIC. After the trial these events divide the path of each slow packet:
//
//		stamp ──▶ sendto ──▶ polled ──────────────▶ sendto ──▶ received
//		    sender     arrival      ring, worker         delivery
//
//	  - sender: from the stamp to the generator's call, and the part of the call without a known
//	    cause;
//	  - arrival: until the NAPI poll of the gateway's interface has delivered the packet to the
//	    ring, found by counting the packets that the polls of its queue took since the call;
//	  - ring: until the worker's call that sends it begins. The worker was asleep, had been woken
//	    and did not run yet, waited behind another thread, was interrupted, or worked: on this
//	    packet or on earlier ones, which events cannot distinguish. Samples show its work: a
//	    program on a perf event records the call stack of each thread of the forwarder every
//	    250 us of its processor time, and the innermost known function names the work
//	    (samples.go). An interval between two system calls without a sample, most of them short,
//	    is "work" without a detail;
//	  - delivery: from there to the receiver's program.
//
// A system in the kernel has no worker: after the generator's call its packets wait for, or are in,
// a softirq of the CPU on which the receiver's program ran.
//
// The recording does not change the measured programs, and no part of it runs outside recordings.
// During a recording each event costs some tens of nanoseconds, and a system call of any process
// slightly more; therefore every recorded trial has an unrecorded trial beside it, and both are in
// the table.
//
// # Limits
//
// Time during which the hypervisor had stopped the CPU counts as time of the running thread, and so
// do interrupts without a tracepoint. If softirqs with other work interrupt the generator's or the
// worker's call, their time counts as the call's.
package tail
