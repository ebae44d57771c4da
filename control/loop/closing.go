package loop

import (
	"time"

	"sluice.dev/sluice/control/steer"
	"sluice.dev/sluice/internal/heartbeat"
)

// flowWalk is one walk over all live flows, which takes a tenth of a second for a million flows. It
// runs on a goroutine of its own, because a new endpoint must not wait for it.
type flowWalk struct {
	set      steer.Set // to be closed
	rest     steer.Set // the part of set that no flow needs
	reopened entries   // opened again since the walk began, which may have missed their flows
}

// close removes from the kernel program entries that are no longer wanted or in use.
func (l *Loop) close() {
	if !l.replaced || l.pending.closes() == 0 {
		return
	}
	if l.Flows == nil {
		l.closeNow(l.pending.closing())
		return
	}
	// A worker that still uses an older snapshot may make a flow to a frontend of that snapshot
	// after the walk has passed its place.
	if l.Publisher.Oldest() < l.Publisher.Published() {
		return
	}
	if now := time.Now(); l.walking == nil && !now.Before(l.nextWalk) {
		l.nextWalk = now.Add(l.walkInterval)
		l.startWalk(&flowWalk{set: l.pending.closing(), reopened: newEntries()})
	}
}

func (l *Loop) closeNow(set steer.Set) {
	if l.steered(l.Steering.Close(&set)) {
		l.pending.closed(&set)
		l.retryRefusedAt, l.refusedInterval = time.Time{}, l.Retry
	}
}

// walkBounds: a walk takes 10 s for a hundred million flows on an idle machine.
var walkBounds = heartbeat.Bounds{Unready: time.Minute, Restart: 5 * time.Minute}

// startWalk starts a walk beside the loop. There is one walk at a time, so that walkDone has room
// for it.
func (l *Loop) startWalk(q *flowWalk) {
	l.walking = q
	go func() {
		l.walkBeat.Beat()
		used := l.Flows.InUse(&q.set)
		q.rest = q.set.Without(&used)
		l.walkBeat.Rest()
		l.walkDone <- q
	}()
}

// maxWalkInterval bounds the time between two walks, and so how long a frontend stays open after
// its last flow.
const maxWalkInterval = time.Minute

// finishWalk closes what no flow needs. No worker can have made such a flow since the walk began,
// because no snapshot in use serves these frontends any more, except for those opened again.
func (l *Loop) finishWalk(q *flowWalk) {
	l.walking = nil
	if l.walkInterval = min(2*l.walkInterval, maxWalkInterval); !q.rest.Empty() {
		l.walkInterval = l.Retry
	}
	reopened := q.reopened.list()
	if rest := q.rest.Without(&reopened); !rest.Empty() {
		l.closeNow(rest)
	}
	l.note()
}

// awaitWalk returns when no walk runs: the caller may unmap the flow table afterwards.
func (l *Loop) awaitWalk() {
	if l.walking != nil {
		<-l.walkDone
	}
}
