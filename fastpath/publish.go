package fastpath

import (
	"fmt"
	"math/bits"
	"time"

	"sluice.dev/sluice/fastpath/stats"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/reason"
)

// dropped counts a dropped packet and frees its frames.
func (w *Worker) dropped(d Desc, r reason.Drop) {
	w.countDrop(d, r)
	if w.tap != nil {
		w.tapDrop(d, r)
	}
	w.free(d)
}

// countHeld counts a packet that enters a hold queue (by 1) or leaves it (by -1). Its chain must
// not change in between.
func (w *Worker) countHeld(d Desc, by int) {
	w.n.held += int64(by)
	w.n.heldMore += by * (w.chains.Buffers(d) - 1)
}

// countDrop counts a dropped packet. d must still hold the packet's bytes, or, for a fragment that
// was not created, the bytes of the whole packet.
func (w *Worker) countDrop(d Desc, r reason.Drop) {
	w.n.drops[r]++
	w.n.dirty |= 1 << r
	if w.n.drops[r] == w.samples.next[r] {
		w.sample(d, r)
	}
}

// publishEvery is the maximum age of the counters of a saturated worker. Publishing after each step
// would be a tenth of its work.
const publishEvery = flowtable.Time(100 * time.Microsecond)

// publish makes the step's counts visible. The snapshot generation that the step used follows
// later: see advanceGeneration.
func (w *Worker) publish(moved int) {
	s, n := w.stats, &w.n
	s.LoopTick.Store(uint64(w.planner.Now))
	if w.c.Validate {
		w.validate()
	}
	w.publishBackends(moved)
	n.batches += uint64(min(moved, 1))
	n.moved = n.moved || moved != 0 || n.dirty != 0
	if moved >= w.budget.packets && w.planner.Now-w.publishing.counts < publishEvery {
		return
	}
	w.publishing.counts = w.planner.Now
	total, free, links, held := w.Frames()
	s.FramesTotal.Store(uint64(total))
	s.FramesFree.Store(uint64(free))
	s.FramesLinks.Store(uint64(links))
	s.FramesHeld.Store(uint64(held))
	if !n.moved {
		return
	}
	n.moved = false
	s.Rx.Store(n.rx)
	s.RxBytes.Store(n.rxBytes)
	s.Tx.Store(n.tx)
	s.TxBytes.Store(n.txBytes)
	s.Generated.Store(n.generated)
	s.Returned.Store(n.returned)
	s.KernelRx.Store(n.kernelRx)
	s.FlowsCreated.Store(n.flows)
	s.FlowsRetried.Store(n.retried)
	s.ICMPLimited.Store(n.icmpLimited)
	s.EchoReplies.Store(n.echoReplies)
	s.ProxyHeaders.Store(n.proxyHeaders)
	s.Resets.Store(n.resets)
	s.ResetsLimited.Store(n.resetsLimited)
	s.WrongChecksums.Store(n.wrongChecksums)
	s.UnfinishedChecksums.Store(n.unfinishedChecksums)
	s.Held.Store(n.held)
	s.Batches.Store(n.batches)
	for ; n.dirty != 0; n.dirty &= n.dirty - 1 {
		r := bits.TrailingZeros64(n.dirty)
		s.Drops[r].Store(n.drops[r])
	}
}

// A saturated worker begins to publish backends' counters when they are backendsEvery old, other
// workers in each step. A step publishes at most backendsAtOnce of them, or backendsIdle if neither
// it nor the step before moved a packet: a hundred thousand take milliseconds, for which a packet
// would have to wait. The worker does not sleep before all are published (mayRest).
const (
	backendsEvery  = flowtable.Time(time.Second)
	backendsAtOnce = 16
	backendsIdle   = 64
)

// publishBackends publishes the counters of backends, and then the generation. A worker that
// received a full batch is saturated.
func (w *Worker) publishBackends(moved int) {
	wasIdle := w.publishing.idle
	w.publishing.idle = moved == 0
	w.advanceGeneration()
	if w.publishing.rounds == 0 && moved >= w.budget.packets && w.planner.Now-w.publishing.backends < backendsEvery {
		return
	}
	limit := backendsAtOnce
	if wasIdle && moved == 0 {
		limit = backendsIdle
	}
	for w.stats.Backends.Publish(limit) {
		w.publishing.backends = w.planner.Now
		if w.publishing.rounds == 0 {
			return
		}
		if w.publishing.rounds--; w.publishing.rounds == 0 {
			w.stats.Generation.Store(w.publishing.generation)
			return
		}
	}
}

// advanceGeneration starts to advance the published generation to the current snapshot's. All
// counts made with earlier snapshots must be published first: then a backend's counters are final
// once no worker uses a snapshot that has it. That takes the rest of the current round, and another
// round.
func (w *Worker) advanceGeneration() {
	g := &w.stats.Generation
	if w.planner.Snap == nil || w.publishing.rounds > 0 || g.Load() == w.planner.Snap.Generation {
		return
	}
	if g.Load() == 0 { // just awake: all counts were published before the sleep
		g.Store(w.planner.Snap.Generation)
		return
	}
	w.publishing.generation, w.publishing.rounds = w.planner.Snap.Generation, 2
}

// publishAllBackends publishes the remaining backends' counters before the worker sleeps, pauses or
// ends. If mayRest is true, there are none.
func (w *Worker) publishAllBackends() {
	w.stats.Backends.Publish(stats.MaxBackends) // the rest of the current round
	w.stats.Backends.Publish(stats.MaxBackends)
	w.publishing.rounds = 0
}

// validate panics if a law is broken; tests and SLUICE_VALIDATE=1 run it.
func (w *Worker) validate() {
	if total, free, links, held := w.Frames(); total != free+links+held {
		panic(fmt.Sprintf(
			"fastpath: frame law broken: UMEM %d, free %d + links %d + held %d; look for the path that neither "+
				"queued nor freed a frame", total, free, links, held,
		))
	}
	var drops uint64
	for _, d := range w.n.drops {
		drops += d
	}
	in, out := w.n.rx+w.n.generated, w.n.tx+w.n.returned+drops+uint64(w.n.held)
	if in != out {
		panic(fmt.Sprintf(
			"fastpath: packet law broken: in %d, accounted %d; look for the path that ended a packet twice or never",
			in, out,
		))
	}
}
