package loop

import (
	"time"

	"sluice.dev/sluice/control/steer"
)

// question is one walk over all live flows, which takes a tenth of a second where there
// are a million. The loop works on meanwhile: a new endpoint must not wait for it.
type question struct {
	set      steer.Set // what is to be closed
	rest     steer.Set // what of it no flow needs
	reopened wishes    // asked for again since: whoever walked may have missed their flows
}

// close takes from the kernel program what is not wanted and not in use.
func (l *Loop) close() {
	if !l.replaced || l.pending.closes() == 0 {
		return
	}
	if l.Flows == nil {
		l.closeNow(l.pending.closing())
		return
	}
	// A worker that still judges by an older snapshot may make a flow of what that
	// one serves after the flows were asked.
	if l.Publisher.Oldest() < l.Publisher.Published() {
		return
	}
	if now := time.Now(); l.asking == nil && !now.Before(l.askFlows) {
		l.askFlows = now.Add(l.askFlowsAfter)
		l.ask(&question{set: l.pending.closing(), reopened: newWishes()})
	}
}

func (l *Loop) closeNow(set steer.Set) {
	if l.steered(l.Steering.Close(&set)) {
		l.pending.closed(&set)
		l.askRefused, l.askRefusedAfter = time.Time{}, l.Retry
	}
}

// ask walks the flows beside the loop. There is one walk at a time, so that its answer
// has room.
func (l *Loop) ask(q *question) {
	l.asking = q
	go func() {
		used := l.Flows.InUse(&q.set)
		q.rest = q.set.Without(&used)
		l.answers <- q
	}()
}

// maxAskFlows bounds how long a frontend stays open after its last flow.
const maxAskFlows = time.Minute

// answered closes what no flow needs. No worker can have made one since the walk
// began: none was served by then, but for what was opened again.
func (l *Loop) answered(q *question) {
	l.asking = nil
	if l.askFlowsAfter = min(2*l.askFlowsAfter, maxAskFlows); !q.rest.Empty() {
		l.askFlowsAfter = l.Retry
	}
	reopened := q.reopened.list()
	if rest := q.rest.Without(&reopened); !rest.Empty() {
		l.closeNow(rest)
	}
	l.note()
}

// awaitAnswer returns when nobody walks the flows any more: their table may be
// unmapped next.
func (l *Loop) awaitAnswer() {
	if l.asking != nil {
		<-l.answers
	}
}
