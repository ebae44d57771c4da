// Package xsk moves packets between a worker and its NIC queues through AF_XDP.
//
// A UMEM is a piece of memory cut into equal frames. It never grows, and no packet is ever copied
// within it: only ownership of frames moves between the worker and the kernel. It moves on four
// rings per socket, each with one producer and one consumer:
//
//	              the worker
//	Refill │    ▲ Receive   Transmit │    ▲ Complete
//	       ▼    │                    ▼    │
//	    ┌──────┐ ┌──────┐      ┌──────┐ ┌────────────┐
//	    │ fill │ │  rx  │      │  tx  │ │ completion │    rings: mapped from
//	    └──────┘ └──────┘      └──────┘ └────────────┘    the kernel
//	       │    ▲              Flush │    ▲
//	       ▼    │                    ▼    │
//	    driver, or the kernel's copy loop; the wire
//
// A frame is in the worker's pool, in its hands, or given to one side of one
// socket. A table with a byte per frame (owners) records which, and every move checks
// it: a frame that is handed over twice stops the program instead of corrupting
// packets, and a closed socket knows which frames were inside the device.
//
// All sockets of a worker share one UMEM, so a packet that came in on one is sent on another where
// it lies. The first socket of a mode (copy, zero-copy) registers the memory with the kernel; the
// others of that mode join it through any socket that is bound (XDP_SHARED_UMEM) with fill and
// completion rings of their own. The kernel's registration lives as long as any of them, so no
// socket is special: when the device of one is deleted it is closed and opened again, in any
// order, and joins those that are left or, if none are, registers the memory anew.
//
// # Who calls what
//
// The goroutine of the worker calls everything that touches a ring: the methods of
// fastpath.Link, Probe, Counters and Close. Any goroutine may call Open, Mode,
// Gone, Stats and UMEM.Kept; they do not touch rings. A worker's step, per link
// unless said otherwise:
//
//	Complete   sent frames to the pool
//	Refill     free frames to the fill ring, before the kernel runs out
//	Receive    a batch; the worker owns its frames now
//	  ...      rewrite in place; the packet may grow by up to 256 bytes to the front
//	Transmit   on the link where it leaves; frames not taken stay the worker's
//	Flush      once per step, on every link, also if nothing was transmitted
//
// A new link gets a Refill before its descriptor is put into the XSKMAP: a packet
// that finds the fill ring empty is dropped by the kernel.
//
// # Down and gone
//
// A device that goes down keeps its socket and its frames. Up turns false with the
// next system call, Transmit takes nothing, Flush checks again each time it is
// called, and Up turns true. A device that is deleted leaves a socket that is
// bound to nothing and cannot be bound again: Gone turns true. Poll reports neither, so Flush
// checks now and then even if there is nothing to send; a worker whose poll timed out calls Probe
// to check at once.
//
// # Packets in several frames
//
// A packet longer than a frame comes as descriptors in a row (XDP_USE_SG; Config.Long). Receive
// makes one Desc of them, whose Len is 0, and a chain in the UMEM's table (fastpath.Chains). A
// packet whose descriptors are not all in the ring yet waits in the Socket. Transmit gives a ring
// all frames of a packet or none.
//
// # Two processes
//
// Frames and rings are files, which another process can map as well. So a process can give them to
// the next one with the packets that are in them (Shape, Take, Custody, Assume).
//
// # Copy and zero-copy
//
// With zero-copy the device reads and writes the UMEM; without, the kernel copies each packet, and
// the system call in Flush sends. Open takes zero-copy if the driver has it; Mode returns the mode,
// and the reason for it. A registration has one mode, which is the kernel's rule, so sockets of
// both modes on one UMEM need two registrations of the same memory. A frame moves between them as
// it does within one: its address and its owner do not depend on the registration. Only the
// kernel's bookkeeping is doubled: pages are pinned twice, and without CAP_IPC_LOCK they count
// twice against RLIMIT_MEMLOCK.
package xsk
