package fastpath

import (
	"sluice.dev/sluice/fastpath/stats"
	"sluice.dev/sluice/nat/reason"
)

// rest prepares for a sleep: until the call of awake, the worker uses no flow and no snapshot.
func (w *Worker) rest() {
	w.publishAllBackends()
	w.flows.Leave()
	w.planner.Snap, w.planner.View = nil, nil
	w.stats.Generation.Store(stats.Offline)
}

// awake ends a rest. From now on the worker may load any generation. The store must come before the
// load in begin: a writer that publishes later then sees that the worker is awake.
func (w *Worker) awake() {
	w.stats.Polls.Add(1)
	w.stats.Generation.Store(0)
}

// mayRest reports whether the worker may rest. Unless it is paused, a worker goes on stepping while
// it is late with expiry, or has parked packets or unpublished counters of backends.
func (w *Worker) mayRest() bool {
	return w.control.paused || w.sweep.due == 0 && w.parked.count == 0 && !w.stats.Backends.Pending()
}

// probe makes each link ask the kernel for its state (Link.Probe). It runs after a sleep without
// packets, which is often enough.
func (w *Worker) probe() {
	for _, l := range w.c.Links {
		l.Probe()
	}
}

// unsent reports whether a link has frames that wait for another Flush.
func (w *Worker) unsent() bool {
	for _, l := range w.c.Links {
		if l.Unsent() {
			return true
		}
	}
	return false
}

// holds reports whether packets wait for a next hop, a fragment or the copies of a flow.
func (w *Worker) holds() bool { return w.hops.len()+w.frags.len()+w.waiting.len() > 0 }

// Stop ends the worker after the current step. Safe from any goroutine.
func (w *Worker) Stop() {
	w.control.stop.Store(true)
	w.control.wake.signal()
}

// shutdown drops the packets that the worker still holds, and publishes its counters.
func (w *Worker) shutdown() {
	for _, h := range w.hops.held {
		w.countHeld(h.o.desc, -1)
		w.dropped(h.o.desc, reason.Shutdown)
	}
	for w.frags.first != 0 {
		w.dropped(w.unhold(w.frags.first).desc, reason.Shutdown)
	}
	for w.parked.count > 0 {
		d := w.parked.shift().desc
		w.countHeld(d, -1)
		w.dropped(d, reason.Shutdown)
	}
	for _, h := range w.waiting.held {
		w.countHeld(h.desc, -1)
		w.dropped(h.desc, reason.Shutdown)
	}
	w.waiting.held = w.waiting.held[:0]
	w.hops.keep(w.hops.held[:0])
	w.control.tasks.end()
	w.planner.Snap, w.planner.View = nil, nil
	w.publishAllBackends()
	w.publish(1)
	w.publishSamples(true)
	if w.tap != nil {
		w.publishTaps()
	}
	w.stats.Generation.Store(stats.Offline)
	w.flows.Leave()
}
