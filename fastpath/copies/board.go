// Package copies has what workers, and the goroutine that copies flows to other gateways of a
// group, tell each other beside the flow table:
//
//	worker ── Changed: a flow changed (flowtable.Table.Changed) ──────────────────► goroutine
//	       ◄── Decided: it may forward the answers of backends (flowtable.Handle.Answer) ──
//	       ◄── MayReset: it may answer segments of unknown connections with RST ──
//
// A gateway without a group has no Board.
package copies

import (
	"sync/atomic"
	"time"
)

// Delay bounds the time from the answer of a flow of another gateway to its copy here, while
// MayReset: messages of a stream arrive in order, and a lease is not longer (group.LeaseNanos).
const Delay = 300 * time.Millisecond

// Outcome is whether other gateways had a copy of a flow when the backend's answer left to the
// client. Handle.Decide gets one.
type Outcome uint8

const (
	// Undecided: the goroutine has not decided yet.
	Undecided Outcome = iota
	// Protected: all gateways that are in step have a copy, and there is one at least.
	Protected
	// NoMember: no other gateway is in step.
	NoMember
	// Refused: a gateway that is in step has no copy, for lack of room.
	Refused
	// Late: a gateway did not acknowledge the copy in time.
	Late
	// NoRoom: the worker had no room to let the answer wait.
	NoRoom

	NumOutcomes = iota
)

// String returns the name used in metrics.
func (o Outcome) String() string {
	return [...]string{"undecided", "protected", "no_member", "refused", "late", "no_room"}[min(o, NumOutcomes-1)]
}

// WaitBounds are the upper bounds of Waits.Flows, but for the last one.
var WaitBounds = [...]time.Duration{50 * time.Microsecond, 100 * time.Microsecond, 150 * time.Microsecond,
	200 * time.Microsecond, 300 * time.Microsecond, 400 * time.Microsecond, 600 * time.Microsecond,
	800 * time.Microsecond, 1000 * time.Microsecond, 1500 * time.Microsecond, 2000 * time.Microsecond}

// Waits is how long backends' answers waited for copies of their flows.
type Waits struct {
	Flows [len(WaitBounds) + 1]uint64 // by duration
	Sum   time.Duration
}

// Quantile returns an upper bound of a share of the waits: 0.5 for the median. It is the longest
// bound for waits that are longer, and 0 if nothing waited.
func (w *Waits) Quantile(share float64) time.Duration {
	all := uint64(0)
	for _, n := range w.Flows {
		all += n
	}
	seen := uint64(0)
	for i, n := range w.Flows {
		if seen += n; seen > 0 && float64(seen) >= share*float64(all) {
			return WaitBounds[min(i, len(WaitBounds)-1)]
		}
	}
	return 0
}

// Board belongs to a table of a group. Its methods may be called by any goroutine.
type Board struct {
	workers     []worker
	changed     func()
	resting     atomic.Bool // changed is to be called
	decided     atomic.Uint64
	resetsUntil atomic.Uint64
}

// worker is a worker's part of the Board.
type worker struct {
	wake    func()
	waiting atomic.Int32 // packets that wait for a decision
	left    [NumOutcomes]atomic.Uint64
	waits   [len(WaitBounds) + 1]atomic.Uint64
	waited  atomic.Int64 // nanoseconds
	_       [64]byte
}

// NewBoard returns the Board of a number of workers. changed is called by a worker after it has
// changed flows, if the goroutine rests. It must not wait.
func NewBoard(workers int, changed func()) *Board {
	b := &Board{workers: make([]worker, workers), changed: changed}
	for i := range b.workers {
		b.workers[i].wake = func() {}
	}
	return b
}

// SetWake sets the function that ends a worker's sleep. It must be called before Decided.
func (b *Board) SetWake(worker int, wake func()) { b.workers[worker].wake = wake }

// Rest is called by the goroutine before it looks for changes: a change that it does not see calls
// changed, once.
func (b *Board) Rest() { b.resting.Store(true) }

// Changed is called by a worker after it has made changes visible.
func (b *Board) Changed() {
	// Pairs with the store in Rest: the goroutine stores it before it looks for changes.
	if b.resting.Load() && b.resting.CompareAndSwap(true, false) {
		b.changed()
	}
}

// Wait notes how many packets of a worker wait for decisions.
func (b *Board) Wait(worker, packets int) { b.workers[worker].waiting.Store(int32(packets)) }

// Decided is called by the goroutine after it has decided about flows.
func (b *Board) Decided() {
	b.decided.Add(1)
	for i := range b.workers {
		if w := &b.workers[i]; w.waiting.Load() > 0 {
			w.wake()
		}
	}
}

// Decisions returns a number that each Decided changes.
func (b *Board) Decisions() uint64 { return b.decided.Load() }

// Left counts a flow whose answer has left, and how long the answer waited.
func (b *Board) Left(worker int, o Outcome, waited time.Duration) {
	w := &b.workers[worker]
	w.left[o].Add(1)
	i := 0
	for i < len(WaitBounds) && waited > WaitBounds[i] {
		i++
	}
	w.waits[i].Add(1)
	w.waited.Add(int64(waited))
}

// Waits returns the durations that were counted by Left.
func (b *Board) Waits() (all Waits) {
	for i := range b.workers {
		for j := range all.Flows {
			all.Flows[j] += b.workers[i].waits[j].Load()
		}
		all.Sum += time.Duration(b.workers[i].waited.Load())
	}
	return all
}

// Flows returns how many flows were counted by Left, by outcome.
func (b *Board) Flows() (n [NumOutcomes]uint64) {
	for i := range b.workers {
		for o := range n {
			n[o] += b.workers[i].left[o].Load()
		}
	}
	return n
}

// SetResetsUntil sets the end of MayReset, in nanoseconds of CLOCK_BOOTTIME.
func (b *Board) SetResetsUntil(nanos uint64) { b.resetsUntil.Store(nanos) }

// MayReset reports whether the gateway has copies of all flows of the other gateways, so that it
// may answer segments of unknown connections with RST.
func (b *Board) MayReset(now uint64) bool { return now < b.resetsUntil.Load() }
