package fastpath

import (
	"sluice.dev/sluice/fastpath/decide"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/reason"
)

// finish makes flows one packet after the other, because a flow may depend on the flow before it.
// But the bucket of a new flow's reply key depends only on the packet, the snapshot and a random
// number, and loading it is a cache miss. So the first packet of a group that seems to have no flow
// starts a lookahead over all such packets of the group:
//
//	lookAhead  parse, plan, prefetch the lines that the flow will be written to
//	admit      as without a lookahead, but the plan exists already
//
// The lookahead changes nothing: its plans are speculative. admit always uses the parsed headers,
// because only the worker can change the frame. It uses the plan only if that is a function of
// packet, snapshot, view and random number, and if the packet then draws the same random number.
// Otherwise admit plans as without a lookahead.

// handleSlow is the slow path: it handles packet i of a batch, which finishPlain did not forward.
// end is the end of the packet's group.
func (w *Worker) handleSlow(i, end int) {
	d, s := w.b.desc[i], w.b.searchOf(i)
	if !w.missed(s) || w.b.kernel {
		w.handleAny(d)
		return
	}
	if w.parks() {
		w.handleOrPark(d, s)
		return
	}
	ahead := &w.ahead
	if i >= ahead.end {
		w.lookAhead(i, end)
	}
	f := &ahead.of[i-ahead.first]
	if !f.known {
		w.handleAny(d)
		return
	}
	if w.tap != nil {
		w.tapBegin(&f.packet)
	}
	w.carryOut(&f.packet, w.handleFlow(&f.packet, f))
}

// missed reports whether a packet seems to have no flow.
func (w *Worker) missed(s *flowtable.Search) bool {
	if s.Found() {
		return w.flows.TagCollision(s)
	}
	return s.Missed()
}

// lookAhead prepares the packets from first to end of the batch that seem to have no flow. It then
// prefetches the flows that own the source ports which the new flows would get.
func (w *Worker) lookAhead(first, end int) {
	ahead, draw := &w.ahead, w.draws.taken
	ahead.first, ahead.end = first, end
	for i := range end - first {
		f, s, d := &ahead.of[i], w.b.searchOf(first+i), w.b.desc[first+i]
		f.known, f.planned, f.hash, f.reply = false, false, s.Hash(), 0
		if !w.missed(s) || ahead.repeats(i) || w.parse(&f.packet, d, w.b.origin) != reason.None {
			continue
		}
		// The search may have missed the packet's flow: if another flow has the same tag, or if the
		// home bucket has overflowed.
		if s.Found() || w.flows.Overflowed(s) {
			if ref, _ := w.flows.Lookup(f.hash, &f.Tuple, w.planner.Now); ref != 0 {
				continue
			}
		}
		f.known, f.draw = true, draw
		draw++
		w.prepare(f)
	}
	for i := range end - first { // the first buckets are in the cache by now
		if f := &ahead.of[i]; f.reply != 0 {
			w.flows.FetchPortOwner(&f.flow, f.reply)
		}
	}
}

// prepare makes a packet's speculative plan and prefetches the lines that its flow will be written
// to. It takes no turn. A plan that depends on turns, loads or pins only selects the lines to
// prefetch, and admit plans again.
func (w *Worker) prepare(f *prepared) {
	n := &f.plan
	*n = decide.Plan{}
	req := requestOf(&f.packet, *w.draws.peek(f.draw))
	req.DryRun, req.Speculative = true, true
	w.planner.Plan(n, &req)
	if f.planned = n.Certain(); n.Verdict.Action == decide.Queued {
		w.newFlow(&f.flow, &f.packet, n)
		f.reply = w.flows.FetchCreate(&f.flow)
	}
}

// handleOrPark handles a plain packet that seems to have no flow while packets are parked. It does
// not look ahead, because the packet is most likely parked.
func (w *Worker) handleOrPark(d Desc, s *flowtable.Search) {
	p := &w.b.pkt
	if w.parse(p, d, w.b.origin) != reason.None {
		w.handleAny(d)
		return
	}
	p.hash = s.Hash()
	if w.tap != nil {
		w.tapBegin(p)
	}
	w.carryOut(p, w.handleFlow(p, nil))
}
