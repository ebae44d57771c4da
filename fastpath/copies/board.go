// Package copies is the shared state, beside the flow table, of the workers and the goroutine that
// copies flows to the other gateways of a group:
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

	"sluice.dev/sluice/fastpath/stats"
)

// Delay bounds the time from the answer to a flow of another gateway until its copy arrives here,
// while MayReset is true: messages of a stream arrive in order, and a lease is not longer
// (group.LeaseNanos).
const Delay = 300 * time.Millisecond

// Outcome reports whether other gateways had a copy of a flow when the backend's answer was
// forwarded to the client. It is the decision of flowtable.Handle.Decide.
type Outcome uint8

const (
	// Undecided: the goroutine has not decided yet.
	Undecided Outcome = iota
	// Protected: all gateways that are in step have a copy, and there is at least one.
	Protected
	// NoMember: no other gateway is in step.
	NoMember
	// Refused: a gateway that is in step has refused the copy.
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

// Board belongs to a table of a group. Its methods may be called by any goroutine.
type Board struct {
	workers     []worker
	changed     func()
	resting     atomic.Bool // changed must be called
	decided     atomic.Uint64
	resetsUntil atomic.Uint64
}

// worker is a worker's part of the Board.
type worker struct {
	wake    func()
	waiting atomic.Int32 // packets that wait for a decision
	left    [NumOutcomes]atomic.Uint64
	waits   stats.Histogram
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

// Rest is called by the goroutine before it reads the changes: if a worker makes a later change, it
// calls changed, once.
func (b *Board) Rest() { b.resting.Store(true) }

// Changed is called by a worker after it has made changes visible.
func (b *Board) Changed() {
	// Pairs with the store in Rest, which the goroutine makes before it reads the changes.
	if b.resting.Load() && b.resting.CompareAndSwap(true, false) {
		b.changed()
	}
}

// Wait sets the number of a worker's packets that wait for decisions.
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

// Decisions returns a number that changes with each Decided.
func (b *Board) Decisions() uint64 { return b.decided.Load() }

// Left counts a flow whose answer has left, and how long the answer waited.
func (b *Board) Left(worker int, o Outcome, waited time.Duration) {
	w := &b.workers[worker]
	w.left[o].Add(1)
	w.waits.Add(waited)
}

// Waits returns, by worker, how long the answers counted by Left have waited.
func (b *Board) Waits() []*stats.Histogram {
	list := make([]*stats.Histogram, len(b.workers))
	for i := range b.workers {
		list[i] = &b.workers[i].waits
	}
	return list
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
// may answer segments of unknown connections with RST. now is CLOCK_BOOTTIME in nanoseconds.
func (b *Board) MayReset(now uint64) bool { return now < b.resetsUntil.Load() }
