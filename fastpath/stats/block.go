// Package stats is the contract between the workers and the readers of their counters: one Block of
// counters per worker.
//
// A worker is the only writer of its Block. Readers (metrics, the status API, tests) read at any
// time with atomic loads. This package does not depend on services or Prometheus, and of packets it
// knows the reasons to drop them only (nat/reason).
package stats

import (
	"sync/atomic"

	"sluice.dev/sluice/nat/reason"
)

// Block has the counters of one worker. The worker is the only writer. It keeps private sums and
// publishes them here after each step, or every 100 microseconds if it is saturated. A saturated
// worker publishes backends' counters once a second. A reader never sees a torn value.
//
// The packet law holds whenever the worker has published and no step is running:
//
//	Rx + Generated = Tx + Returned + sum(Drops) + Held
type Block struct {
	_ [128]byte // keeps other objects out of the first cache line

	Rx        atomic.Uint64 // packets taken from links
	RxBytes   atomic.Uint64
	Tx        atomic.Uint64 // packets given to NIC links
	TxBytes   atomic.Uint64
	Generated atomic.Uint64 // packets that the worker made: ICMP errors, RSTs, fragments
	Returned  atomic.Uint64 // packets given to the kernel by the host link, translated or not
	Held      atomic.Int64  // packets waiting for a next hop or a first fragment, now
	Drops     [reason.Count]atomic.Uint64

	FlowsCreated atomic.Uint64
	FlowsRetried atomic.Uint64 // flows moved to another backend because theirs did not answer
	EchoReplies  atomic.Uint64 // sent in answer to echo requests; each fragment counts
	ProxyHeaders atomic.Uint64 // segments with a PROXY header sent to backends; each repetition counts
	ICMPLimited  atomic.Uint64 // the worker's ICMP errors that the rate limit suppressed
	// Resets counts RSTs in answer to segments of unknown connections; ResetsLimited counts RSTs
	// that the rate limit suppressed.
	Resets, ResetsLimited atomic.Uint64
	// Segments that would have changed a flow with a good checksum. WrongChecksums: the checksum is
	// wrong. UnfinishedChecksums: the sender left it to a device (CHECKSUM_PARTIAL). They were
	// forwarded.
	WrongChecksums, UnfinishedChecksums atomic.Uint64

	KernelRx atomic.Uint64 // packets received from the host link

	Batches   atomic.Uint64 // steps that moved at least one packet
	Polls     atomic.Uint64 // times the worker slept
	BusyNanos atomic.Uint64 // in steps that moved packets
	IdleNanos atomic.Uint64 // asleep or in naps; the rest of the time is spent spinning
	// Began is the CLOCK_BOOTTIME at which this process began to step the worker, BusyBefore the
	// BusyNanos that it took over then.
	Began, BusyBefore atomic.Uint64
	// Generation is the oldest snapshot generation that the worker may still use. It is Offline
	// while the worker sleeps, and 0 from waking to the end of the first batch.
	Generation atomic.Uint64
	LoopTick   atomic.Uint64 // CLOCK_BOOTTIME nanoseconds of the last step

	// The frame law: FramesTotal = FramesFree + FramesLinks + FramesHeld at every
	// batch boundary, when the worker writes all four.
	FramesTotal atomic.Uint64 // the UMEM's size
	FramesFree  atomic.Uint64 // in the worker's pool
	FramesLinks atomic.Uint64 // in the rings of its links and inside devices
	FramesHeld  atomic.Uint64 // in the worker's hold queues

	Backends Counters // by backend index
	// Times is shared by all workers, set before they run; nil: nothing is measured.
	Times *Times
	_     [128]byte
}

// Offline is the Generation of a worker that sleeps and therefore uses no snapshot.
const Offline = ^uint64(0)

// Begin is called when this process begins to step the worker, at CLOCK_BOOTTIME in nanoseconds.
func (b *Block) Begin(now uint64) {
	if b.Began.Load() == 0 {
		b.BusyBefore.Store(b.BusyNanos.Load())
		b.Began.Store(now) // pairs with the load in Load, which then reads BusyBefore
	}
}

// Load returns the share of the time since Begin that the worker spent on packets, 0 to 1. now is
// CLOCK_BOOTTIME in nanoseconds.
func (b *Block) Load(now uint64) float64 {
	began := b.Began.Load()
	if began == 0 || now <= began {
		return 0
	}
	return min(1, float64(b.BusyNanos.Load()-b.BusyBefore.Load())/float64(now-began))
}

// Dropped sums the drops of all reasons.
func (b *Block) Dropped() uint64 {
	var sum uint64
	for i := range b.Drops {
		sum += b.Drops[i].Load()
	}
	return sum
}

// FrameLaw returns the UMEM's size in frames and the frames accounted for. They are equal after
// every step.
func (b *Block) FrameLaw() (total, accounted uint64) {
	return b.FramesTotal.Load(), b.FramesFree.Load() + b.FramesLinks.Load() + b.FramesHeld.Load()
}

// PacketLaw returns the number of packets that were received or generated, and of packets that were
// transmitted, returned, dropped or are held. They are equal whenever the worker has published and
// no step is running.
func (b *Block) PacketLaw() (in, accounted uint64) {
	in = b.Rx.Load() + b.Generated.Load()
	accounted = b.Tx.Load() + b.Returned.Load() + b.Dropped() + uint64(b.Held.Load())
	return in, accounted
}
