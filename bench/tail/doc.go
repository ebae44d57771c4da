// Package tail says where the slowest packets waited.
//
// A trial of package stateless keeps of each packet when it was stamped and when the receiver's XDP
// program saw it. Meanwhile programs on the kernel's tracepoints (trace.bpf.c) record who ran on
// each CPU, who was woken, softirqs, interrupts, the ends of NAPI polls, and the system calls of
// the generator and of what forwards. All have the same clock, CLOCK_MONOTONIC. After the trial
// the way of each slow packet is divided by these events:
//
//		stamp ──▶ sendto ──▶ polled ──────────────▶ sendto ──▶ received
//		    sender     arrival      ring, worker         delivery
//
//	  - sender: from the stamp to the generator's call, and in it as far as nothing else is known;
//	  - arrival: until the NAPI poll of the gateway's interface has given the packet to the ring, by
//	    counting what the polls of its queue took since the call;
//	  - ring: until the worker's call that sends it begins. The worker was asleep, was woken and did
//	    not run yet, waited behind another thread, was interrupted, or worked: on this packet or on
//	    those before it, which events cannot tell apart. At what is by samples: a program on a perf
//	    event keeps the call stack of each thread of the forwarder every 250 us of its processor
//	    time, and the innermost function that is known names the work (samples.go). A time between
//	    two system calls without a sample, most of them short, is "work" alone;
//	  - delivery: from there to the receiver's program.
//
// A system in the kernel has no worker: from the generator's call on its packets wait for, or are
// in, a softirq of the CPU that the receiver's program ran on.
//
// Nothing of what is measured is changed, and nothing of it runs while nothing is recorded. While
// it is, each event costs some tens of nanoseconds, a system call of any process some more: every
// trial that is recorded has one beside it that is not, and both are in the table.
//
// # What it cannot see
//
// Time in which the hypervisor had stopped the CPU counts as that of the thread that ran.
// Interrupts that have no tracepoint look the same. Where the generator's or the worker's call is
// interrupted by softirqs that do others' work, that is the call's time.
package tail
