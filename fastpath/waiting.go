package fastpath

import (
	"time"

	"sluice.dev/sluice/fastpath/copies"
	"sluice.dev/sluice/fastpath/decide"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/reason"
)

// The SYN-ACK of a flow of a group waits until the other gateways have a copy of the flow
// (docs/adr/0037, waitForCopy), at most copyWait. Its flow is updated when it arrives, so that the
// copy has the backend's sequence number. When it may leave, the worker handles it as if it had
// just arrived.

// copyWait is the longest time that a SYN-ACK waits.
const copyWait = flowtable.Time(2 * time.Millisecond)

// maxWaiting bounds the SYN-ACKs that wait at a worker. Two workers with 1,000,000 new flows a
// second get 1,000 each in copyWait.
const maxWaiting = 1024

// waitingQueue holds SYN-ACKs, as they were received, oldest first.
type waitingQueue struct {
	held    []waitingPacket // capacity is fixed
	decided uint64          // Board.Decisions when all packets were last checked
	until   flowtable.Time  // of the packet that is handled again, or 0
}

type waitingPacket struct {
	desc   Desc
	origin origin
	// flow is valid until the next Enter. Later the record may have another flow, whose decision
	// then only ends the wait too early or too late: the packet is handled by its own flow in any
	// case.
	flow  flowtable.Ref
	until flowtable.Time
}

func newWaitingQueue(frames int) waitingQueue {
	return waitingQueue{held: make([]waitingPacket, 0, min(maxWaiting, frames/8))}
}

func (q *waitingQueue) len() int { return len(q.held) }

// mayLeave reports whether a packet of a backend may be forwarded now. If not, it returns a
// verdict: the packet waits, or is dropped because its flow has ended meanwhile. s is the result of
// verified.
func (w *Worker) mayLeave(p *packet, ref flowtable.Ref, s *flowtable.Segment) (decide.Verdict, bool) {
	if w.c.Copies == nil || !s.SYNACK() || p.Tuple.Proto != header.ProtoTCP || !w.flows.Tracked(ref) {
		return queued, true
	}
	said, left := w.flows.Answer(ref)
	switch {
	case left:
		return queued, true
	case w.c.StrictReversePath && w.offPath(p, ref): // before it changes the flow
		return drop(reason.ReversePath), false
	}
	outcome := copies.Outcome(said)
	if outcome == copies.Undecided {
		if !s.Unverified {
			if w.flows.Awaits(ref) {
				w.countFirst(ref, s.Flags)
			}
			w.observe(ref, flowtable.ReplySide, *s)
		}
		// Read before Live: so if the flow is live, the state was not read from a given-up flow.
		switch state := w.flows.Flow(ref).State(); {
		case !w.flows.Live(ref): // the flow was given up since the lookup
			return drop(reason.NoFlow), false
		case flowtable.Proven(state): // data of the backend has overtaken it
			outcome = copies.Late
		case state != flowtable.SynRecv: // it is damaged, or answers another SYN
			return queued, true
		case w.waiting.until != 0 && w.planner.Now >= w.waiting.until:
			outcome = copies.Late
		case w.wait(p, ref):
			return queued, false
		default:
			outcome = copies.NoRoom
		}
	}
	if !w.flows.AnswerLeaves(ref) {
		return drop(reason.NoFlow), false
	}
	waited := time.Duration(0)
	if w.waiting.until != 0 {
		waited = time.Duration(w.planner.Now - (w.waiting.until - copyWait))
	}
	w.c.Copies.Left(w.c.ID, outcome, waited)
	return queued, true
}

// othersSegment reports whether a client's segment belongs to another gateway's connection
// (docs/adr/0037, proveSegments). The backend would answer the segment with an RST that the client
// accepts.
func (w *Worker) othersSegment(p *packet, ref flowtable.Ref) bool {
	return (w.flows.Tracked(ref) || w.flows.OwnerOf(ref) != 0) && w.flows.UnprovenBy(ref, &p.segment)
}

// wait keeps a packet until its flow is decided. It returns false if there is no room.
func (w *Worker) wait(p *packet, ref flowtable.Ref) bool {
	q := &w.waiting
	if len(q.held) == cap(q.held) || p.long() || !w.mayHold(p.desc, len(q.held), cap(q.held)) {
		return false
	}
	until := q.until
	if until == 0 {
		until = w.planner.Now + copyWait
	}
	q.held = append(q.held, waitingPacket{p.desc, p.origin, ref, until})
	w.countHeld(p.desc, 1)
	if w.tap != nil {
		w.tapWait(p)
	}
	return true
}

// openWaiting handles the packets whose flow was decided, or that have waited long enough, and
// returns how many.
func (w *Worker) openWaiting() (moved int) {
	q, board := &w.waiting, w.c.Copies
	decided := board.Decisions()
	if decided == q.decided && w.planner.Now < q.held[0].until {
		return 0
	}
	q.decided = decided
	waiting := q.held
	q.held = q.held[:0]
	for i := range waiting {
		h := waiting[i] // handleAny may append to held, up to this packet
		said, left := w.flows.Answer(h.flow)
		if said == 0 && !left && w.planner.Now < h.until {
			q.held = append(q.held, h)
			continue
		}
		moved++
		w.countHeld(h.desc, -1)
		w.b.origin, q.until = h.origin, h.until
		w.handleAny(h.desc)
		q.until = 0
	}
	w.transmit()
	return moved
}

// publishChanges publishes this step's changes to the goroutine that copies flows.
func (w *Worker) publishChanges() {
	w.c.Copies.Wait(w.c.ID, w.waiting.len())
	if w.flows.Publish() {
		w.c.Copies.Changed()
	}
}
