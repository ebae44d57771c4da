package fastpath

import (
	"context"
	"crypto/rand"
	"fmt"
	mrand "math/rand/v2"
	"time"

	"sluice.dev/sluice/fastpath/stats"
	"sluice.dev/sluice/fastpath/thread"
)

// RunConfig is how the loop uses its core.
type RunConfig struct {
	CPU int // to pin to, or -1
	// Threads, where there is a CPU, pins the goroutine without locking it to a thread: much
	// shorter gaps when the Go scheduler preempts it (package thread). Nil: it is locked.
	Threads *thread.Group
	// Turn is how long the worker runs, at most, before it yields to the Go scheduler, which
	// otherwise preempts it after 10 ms (thread.Yield). 0 is never; a worker that is locked to its
	// thread never yields.
	Turn time.Duration
	Waiting
}

// Waiting is how workers wait for packets.
type Waiting struct {
	// Spin is how long they poll for more work before they sleep. The longer, the lower the latency
	// of the next packet and the higher the cost of silence.
	Spin time.Duration
	// SpinAsWorked limits the time spent spinning to the time spent on packets, in total: CPU time
	// then follows load, instead of reaching a whole core as soon as packets are closer than Spin.
	SpinAsWorked bool
	// Coalesce is how long one nap is. Workers nap if so many packets come that some are expected
	// meanwhile (Pace); 0 is never.
	Coalesce time.Duration
	// LongNap is how long naps are instead, if that is more. It does not change when workers nap.
	LongNap time.Duration
	// Break is how long they leave their CPU to others, every half millisecond and when no packets
	// are waiting; 0 is never. It is for workers that look for packets all the time and go before
	// whatever else would run.
	Break time.Duration
	// Quiet: the Go scheduler is not told of naps, breaks, and the beginning of a sleep
	// (thread.Poll). It is for real-time threads (thread.QuietNap).
	Quiet bool
	// Sleep bounds one sleep, so that flows expire on an idle gateway.
	Sleep time.Duration
}

// busySleep bounds a sleep while packets are held for a next hop or a fragment, or wait to be sent.
const busySleep = time.Millisecond

// Run runs the worker alone, until ctx is done or Stop is called. Packets that are still held are
// then dropped.
func (w *Worker) Run(ctx context.Context, c RunConfig) error {
	r, err := NewRunner(c)
	if err != nil {
		return fmt.Errorf("worker %d: %w", w.c.ID, err)
	}
	defer r.Close()
	cancel := context.AfterFunc(ctx, w.Stop)
	defer cancel()
	r.until = w
	r.Take(w)
	return r.Run(ctx)
}

// rest prepares for a sleep: until awake, the worker uses no flow and no snapshot.
func (w *Worker) rest() {
	w.publishAllBackends()
	w.flows.Leave()
	w.planner.Snap, w.planner.View = nil, nil
	w.stats.Generation.Store(stats.Offline)
}

// awake ends a rest. From here on any generation may be loaded. The store must come before the load
// in begin: a writer that has published since sees that the worker is awake.
func (w *Worker) awake() {
	w.stats.Polls.Add(1)
	w.stats.Generation.Store(0)
}

// patient reports whether the worker may rest: who is late with expiry, or has packets parked or
// counters of backends to publish, goes on in the next step, unless it is paused.
func (w *Worker) mayRest() bool {
	return w.paused || w.due == 0 && w.parked.count == 0 && !w.stats.Backends.Pending()
}

// probe has links find out what they are not told of, which is rare enough for the end of a sleep
// in which nothing came.
func (w *Worker) probe() {
	for _, l := range w.c.Links {
		l.Probe()
	}
}

// unsent reports whether a link has frames that the next step's Flush is to send.
func (w *Worker) unsent() bool {
	for _, l := range w.c.Links {
		if l.Unsent() {
			return true
		}
	}
	return false
}

// holds reports whether packets wait for a next hop or a fragment.
func (w *Worker) holds() bool { return w.hops.len()+w.frags.len() > 0 }

// Stop ends the worker after the current step. Safe from any goroutine.
func (w *Worker) Stop() {
	w.stop.Store(true)
	w.wake.signal()
}

// shutdown accounts for what the worker still holds.
func (w *Worker) shutdown() {
	for _, h := range w.hops.held {
		w.countHeld(h.o.desc, -1)
		w.dropped(h.o.desc, stats.Shutdown)
	}
	for w.frags.first != 0 {
		w.dropped(w.unhold(w.frags.first).desc, stats.Shutdown)
	}
	for w.parked.count > 0 {
		d := w.parked.shift().desc
		w.countHeld(d, -1)
		w.dropped(d, stats.Shutdown)
	}
	w.hops.keep(w.hops.held[:0])
	w.tasks.end()
	w.planner.Snap, w.planner.View = nil, nil
	w.publishAllBackends()
	w.publish(1)
	w.stats.Generation.Store(stats.Offline)
	w.flows.Leave()
}

func newRandom(seed [32]byte) *mrand.ChaCha8 {
	if seed == ([32]byte{}) {
		rand.Read(seed[:]) // never fails (crypto/rand)
	}
	return mrand.NewChaCha8(seed)
}
