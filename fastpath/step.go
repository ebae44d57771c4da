package fastpath

import (
	"math"
	"time"

	"sluice.dev/sluice/fastpath/decide"
	"sluice.dev/sluice/flowtable"
)

// Step is one pass of the loop: it forwards the packets that have arrived, and returns how many
// moved. now is CLOCK_BOOTTIME in nanoseconds. A Runner calls it repeatedly; tests and replays call
// it directly.
func (w *Worker) Step(now uint64) int {
	if w.control.paused {
		return 0
	}
	w.begin(flowtable.Time(now))
	moved := 0
	for i, link := range w.c.Links {
		n := link.Receive(w.b.desc[:w.budget.packets])
		if n == 0 {
			continue
		}
		moved += n
		w.count(i, n)
		if w.pieces.suspects != 0 {
			w.pieces.refute(i, w.b.desc[:n])
		}
		w.budget.received(n)
		w.load()
		w.handleBatch(n) // find or make flows; then rewrite, queue, park, or drop with a reason
		w.transmit()
	}
	if w.parked.count > 0 {
		moved += w.openParked()
	}
	if len(w.waiting.held) > 0 {
		moved += w.openWaiting()
	}
	moved += w.release()
	w.transmit()
	w.reclaim()
	w.expire(moved)
	w.publish(moved)
	if w.samples.open != 0 && w.planner.Now >= w.samples.due {
		w.publishSamples(false)
	}
	if w.c.Copies != nil {
		w.publishChanges()
	}
	if w.tap != nil {
		w.publishTaps()
	}
	return moved
}

// begin starts a step. The whole step uses one clock value.
func (w *Worker) begin(now flowtable.Time) {
	w.planner.Now, w.ticks, w.budget.flows = now, now.Ticks(), OpensPerStep
	w.hops.mayDisplace = displacedPerStep
	w.flows.Enter(now)
	w.planner.Silent = w.c.Copies != nil && !w.c.Copies.MayReset(uint64(now))
	w.budget.packets = min(2*w.budget.packets, BatchSize)
	if w.planner.Rebound > groupSize {
		w.budget.packets = packetsPerBinding
	}
	w.planner.Rebound = 0
	w.load()
}

// packetsPerBinding is the number of packets that a step takes from a link while their flows must
// be bound to a new view of the routes, or to new owners of their frontends. At about 0.6 us each
// they delay other packets by less than 50 us.
const packetsPerBinding = 64

// load loads the newest snapshot and view. A step calls it after each Receive: the worker that
// forwarded a request had loaded its snapshot and view before the reply arrived, so a reply is
// never handled with older ones, which may lack its endpoint or next hop.
func (w *Worker) load() {
	snap, view := w.c.Services.Load(), w.c.Hops.View()
	if snap == w.planner.Snap && view == w.planner.View {
		return
	}
	binding := decide.BindingOf(snap, view)
	if w.planner.Binding != 0 && w.planner.Binding != binding {
		w.budget.packets = packetsPerBinding
	}
	w.planner.Snap, w.planner.View, w.planner.Binding = snap, view, binding
	w.tunnels.load(snap, view)
	if snap != nil && w.c.Copies != nil {
		w.flows.ShareHidden(snap.SelectKey)
	}
	if snap != nil {
		w.stats.Backends.Expect(snap.BackendIndexes())
	}
}

// openParked handles parked packets until the step's budget is spent, and returns how many it
// handled. They pass the pipeline again, so that the lookahead prefetches for them (lookahead.go).
func (w *Worker) openParked() (moved int) {
	w.budget.emptying = true
	for w.parked.count > 0 && w.budget.flows > 0 {
		n, link := w.parked.take(w.b.desc[:], w.budget.flows)
		for _, d := range w.b.desc[:n] {
			w.countHeld(d, -1)
		}
		w.b.origin = w.originOf(link)
		bytes := w.n.rxBytes
		w.handleBatch(n)
		w.n.rxBytes = bytes // they were counted on arrival
		w.transmit()
		moved += n
	}
	w.budget.emptying = false
	return moved
}

// release looks up the next hops of held packets and the first fragments of held fragments again.
// It returns how many packets left the queues.
func (w *Worker) release() int {
	return w.releaseHops() + w.releaseFragments()
}

// reclaim takes sent frames back and gives the links empty ones.
func (w *Worker) reclaim() {
	for _, link := range w.c.Links {
		link.Flush()
		link.Complete(w.pool)
		link.Refill(w.pool)
	}
}

// sweepEvery is the minimum time between two calls of Sweep: shorter slices are not worth a call.
const sweepEvery = flowtable.Time(time.Millisecond)

// sweepBusy is the maximum number of records that a step sweeps if it received a full batch, which
// means that more packets wait.
const sweepBusy = flowtable.SweepRecords / 4

// expire sweeps the part of this worker's share of the flow table that is due. A step sweeps a
// bounded part, so that packets do not wait long; the next steps sweep the rest.
func (w *Worker) expire(moved int) {
	if elapsed := w.planner.Now - w.sweep.until; elapsed >= sweepEvery {
		w.sweep.until = w.planner.Now
		w.sweep.due = min(w.sweep.due+w.sweepShare(time.Duration(elapsed)), w.sweepShare(math.MaxInt64))
	}
	if w.sweep.due > 0 {
		limit := w.sweep.due
		if moved >= w.budget.packets {
			limit = min(limit, sweepBusy)
		}
		examined, _ := w.flows.Sweep(w.planner.Now, limit)
		w.sweep.due -= examined
		w.resendHeaders()
	}
}

// sweepShare returns how many records this worker must sweep for an elapsed time.
func (w *Worker) sweepShare(elapsed time.Duration) int {
	return (w.c.Flows.SweepQuota(elapsed) + w.c.Workers - 1) / w.c.Workers
}
