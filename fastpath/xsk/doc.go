// Package xsk moves packets between a worker and its NIC queues through AF_XDP.
//
// A UMEM is a block of memory, divided into frames of equal size. It never grows, and no packet is
// copied within it: only the ownership of frames moves between the worker and the kernel, on four
// rings per socket. Each ring has one producer and one consumer:
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
// A frame belongs to the worker or to one side of one socket. A table with a byte per frame
// (owners) records the owner, and every move checks it. So a frame that is handed over twice stops
// the program instead of corrupting packets, and a closed socket knows which frames were inside the
// device.
//
// All sockets of a worker share one UMEM, so a packet received on one is sent on another without a
// copy. The first socket of a mode (copy, zero-copy) registers the memory with the kernel; the
// others of that mode join the registration through any bound socket (XDP_SHARED_UMEM), with their
// own fill and completion rings. The registration exists as long as any of its sockets, so all
// sockets are equal: when a device is deleted, its socket is closed and opened again, in any order.
// It joins the remaining sockets or, if there are none, registers the memory again.
//
// # Who calls what
//
// Only the worker's goroutine calls the methods that use a ring: those of fastpath.Link, Probe,
// Counters and Close. Any goroutine may call Open, Mode, Gone, Stats and UMEM.Kept. A worker's
// step, for each link:
//
//	Complete   sent frames to the pool
//	Refill     free frames to the fill ring, before the kernel runs out
//	Receive    a batch; the worker owns its frames now
//	  ...      rewrite in place; the packet may grow by up to 256 bytes to the front
//	Transmit   on the packet's egress link; the worker keeps frames that are not taken
//	Flush      once per step, on every link, also if nothing was transmitted
//
// A new link needs a Refill before its descriptor is put into the XSKMAP: the kernel drops packets
// while the fill ring is empty.
//
// # Down and gone
//
// A device that goes down keeps its socket and its frames. Up is false after the next system call,
// and Transmit takes no packets. Each Flush checks the device, and Up is true again when it is up.
// A device that is deleted leaves an unbound socket that cannot be bound again: Gone becomes true.
// poll(2) reports neither, so Flush checks occasionally even if there is nothing to send; a worker
// whose poll timed out calls Probe to check at once.
//
// # Packets in several frames
//
// A packet longer than a frame has several consecutive descriptors (XDP_USE_SG; Config.Long).
// Receive makes one Desc of them, whose Len is 0, and a chain in the UMEM's table
// (fastpath.Chains). A packet whose descriptors are not all in the ring yet waits in the Socket.
// Transmit puts all frames of a packet into the ring, or none.
//
// # Two processes
//
// Frames and rings are files, which another process can also map. So a process can give them to the
// next process, together with the packets in them (Shape, Take, Custody, Assume).
//
// # Copy and zero-copy
//
// In zero-copy mode the device reads and writes the UMEM. In copy mode the kernel copies each
// packet, and the system call in Flush sends. Open uses zero-copy if the driver supports it; Mode
// returns the mode and the reason for it. The kernel allows one mode per registration, so sockets
// of both modes on one UMEM need two registrations of the same memory. A frame moves between them
// as within one registration: its address and its owner do not depend on it. Only the kernel's
// accounting doubles: pages are pinned twice, and without CAP_IPC_LOCK they count twice against
// RLIMIT_MEMLOCK.
package xsk
