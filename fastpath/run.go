package fastpath

import (
	"context"
	"crypto/rand"
	"fmt"
	mrand "math/rand/v2"
	"time"

	"sluice.dev/sluice/fastpath/stats"
	"sluice.dev/sluice/fastpath/thread"
	"sluice.dev/sluice/nat/reason"
)

// RunConfig sets how a runner uses its CPU.
type RunConfig struct {
	CPU int // to pin to, or -1
	// Threads, if CPU is set, pins the goroutine without locking it to a thread, which makes gaps
	// much shorter when the Go scheduler preempts it (package thread). Nil: it is locked to its
	// thread.
	Threads *thread.Group
	// Turn is the maximum time before the goroutine yields to the Go scheduler, which otherwise
	// preempts it after 10 ms (thread.Yield). 0 means never; a goroutine that is locked to its
	// thread never yields.
	Turn time.Duration
	Waiting
}

// Waiting sets how workers wait for packets.
type Waiting struct {
	// Spin is how long workers poll for more packets before they sleep. A longer time lowers the
	// latency of the next packet and raises the cost of idle time.
	Spin time.Duration
	// SpinAsWorked limits the total time spent polling to the time spent on packets: CPU time then
	// follows the load, instead of reaching a whole core as soon as packets are less than Spin
	// apart.
	SpinAsWorked bool
	// Coalesce is the length of a nap. Workers nap if the packet rate is so high that some packets
	// are expected during a nap (Pace); 0 means never.
	Coalesce time.Duration
	// LongNap replaces Coalesce as the length of naps if it is longer. Coalesce still decides when
	// workers nap.
	LongNap time.Duration
	// Break is how long workers leave their CPU to other threads, every half millisecond and only
	// when no packets are waiting; 0 means never. It is for workers that poll all the time and have
	// a higher priority than all other threads.
	Break time.Duration
	// Quiet: naps, breaks, and the beginning of a sleep (thread.Poll) are system calls that the Go
	// scheduler does not know of. It is for real-time threads (thread.QuietNap).
	Quiet bool
	// Sleep bounds one sleep, so that flows expire on an idle gateway.
	Sleep time.Duration
}

// busySleep is the maximum sleep while packets wait for a next hop, a fragment or another Flush.
const busySleep = time.Millisecond

// Run runs the worker on a Runner of its own, until ctx is done or Stop is called. Packets that are
// still held are then dropped.
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
	return w.paused || w.due == 0 && w.parked.count == 0 && !w.stats.Backends.Pending()
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

// holds reports whether packets wait for a next hop or a fragment.
func (w *Worker) holds() bool { return w.hops.len()+w.frags.len() > 0 }

// Stop ends the worker after the current step. Safe from any goroutine.
func (w *Worker) Stop() {
	w.stop.Store(true)
	w.wake.signal()
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
