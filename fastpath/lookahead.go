package fastpath

import (
	"math/rand/v2"

	"sluice.dev/sluice/fastpath/decide"
	"sluice.dev/sluice/fastpath/stats"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat"
	"sluice.dev/sluice/nat/header"
)

// A packet without a flow gets one in finish, one packet after the other, because a flow may depend
// on the flow before it. The bucket of its reply key, however, depends only on the packet, the
// snapshot and a random number, and a load of that bucket is a cache miss. So the first packet of a
// group that seems to have no flow starts a lookahead over all packets of its group that seem to
// have none:
//
//	lookAhead  parse, plan, prefetch the lines that the flow will be written to
//	admit      as without a lookahead, but the plan exists already
//
// The lookahead changes nothing: its plans are speculative. admit uses one only where it is
// certain: the parse, because the frame is the worker's; the plan, where it is a function of
// packet, snapshot, view and random number, and if the number is the one that the packet draws in
// its turn. Otherwise admit plans as if there had been no lookahead.

// prepared has the results of the lookahead for one packet.
type prepared struct {
	packet  header.Packet // parsed
	hash    uint64
	known   bool // packet and hash are valid
	planned bool // the plan is certain; flow is what it makes if its verdict is Queued
	draw    uint64
	plan    decide.Plan
	flow    flowtable.NewFlow
	reply   uint64 // hash of the reply key (FetchCreate), or 0
}

// lookahead has the results for packets first to end of the batch.
type lookahead struct {
	first, end int
	of         [groupSize]prepared
}

// handleSlow is the slow path: it judges packet i of a batch, of the group that ends at end, which
// finishPlain did not forward.
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
	w.carryOut(d, &f.packet, w.handleFlow(d, &f.packet, f.hash, f))
}

// missed reports whether a packet seems to have no flow.
func (w *Worker) missed(s *flowtable.Search) bool {
	if s.Found() {
		return w.flows.TagCollision(s)
	}
	return s.Missed()
}

// lookAhead prepares those of packets first to end of the batch that seem to have no flow, and then
// prefetches the flows that hold the ports they would get.
func (w *Worker) lookAhead(first, end int) {
	ahead, draw := &w.ahead, w.draws.taken
	ahead.first, ahead.end = first, end
	for i := range end - first {
		f, s, d := &ahead.of[i], w.b.searchOf(first+i), w.b.desc[first+i]
		f.known, f.planned, f.hash, f.reply = false, false, s.Hash(), 0
		if !w.missed(s) || ahead.repeats(i) || header.Parse(w.frame(d), &f.packet) != stats.None {
			continue
		}
		// The packet's own flow may be behind what the search examined, where another flow has the
		// same tag, and where the home bucket has overflowed.
		if s.Found() || w.flows.Overflowed(s) {
			if ref, _ := w.flows.Lookup(f.hash, &f.packet.Tuple, w.planner.Now); ref != 0 {
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

// repeats reports whether packet i of a lookahead belongs to the new flow of a packet before it,
// and so draws no number.
func (o *lookahead) repeats(i int) bool {
	for j := range o.of[:i] {
		if f := &o.of[j]; f.hash == o.of[i].hash && f.known {
			return !f.planned || f.plan.Verdict.Action == decide.Queued
		}
	}
	return false
}

// prepare makes a packet's speculative plan and prefetches the lines that its flow will be written
// to. It takes no turn. If the plan depends on turns, loads or pins, it only selects lines to
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

// admitPlanned is admit with a speculative plan that is certain.
func (w *Worker) admitPlanned(d Desc, f *prepared) (flowtable.Ref, decide.Verdict) {
	w.draws.taken++
	if n := &f.plan; n.Verdict.Action != decide.Queued {
		return 0, w.respond(d, &f.packet, n)
	}
	ref, v, _ := w.insert(&f.flow, &f.plan)
	return ref, v
}

// forwardFirst is forward for a plain packet that has made its flow. If its hop is plain too, it
// forwards the packet as finishPlain does.
func (w *Worker) forwardFirst(d Desc, p *header.Packet, ref flowtable.Ref) decide.Verdict {
	f, end := w.flows.Flow(ref), uint32(p.End)
	hop := w.boundHop(f.BoundTo(flowtable.ClientSide))
	if hop == nil || end > hop.PlainEnd() || w.toLink[hop.Link] == nil {
		return w.forward(d, p, ref, flowtable.ClientSide)
	}
	hop.Use()
	s := w.segment(d, p, ref, flowtable.ClientSide)
	rewrites := [1]header.Rewrite{{MACs: hop.MACs()}}
	f.Rewrite(flowtable.ClientSide, p.Tuple.V6, &rewrites[0])
	nat.TranslatePlain(&w.memory, []Desc{d}, rewrites[:], nil)
	w.stats.Backends.Count(f.BackendRef(), uint8(flowtable.ClientSide), d.Len)
	w.queue(w.toLink[hop.Link].link, Desc{Addr: d.Addr, Len: end})
	w.flows.Observe(ref, flowtable.ClientSide, s, w.planner.Now)
	return queued
}

// draws are the random numbers for new flows, two for each, by the number of the draw. peek reads
// them before they are taken; they are taken in the same order, with and without a peek.
type draws struct {
	source       *rand.ChaCha8
	drawn, taken uint64
	pairs        [2 * groupSize][2]uint64
}

// peek returns the numbers of a draw, which must be less than 2*groupSize ahead.
func (d *draws) peek(draw uint64) *[2]uint64 {
	for d.drawn <= draw {
		d.pairs[d.drawn%uint64(len(d.pairs))] = [2]uint64{d.source.Uint64(), d.source.Uint64()}
		d.drawn++
	}
	return &d.pairs[draw%uint64(len(d.pairs))]
}

// take takes the next.
func (d *draws) take() [2]uint64 {
	d.taken++
	return *d.peek(d.taken - 1)
}
