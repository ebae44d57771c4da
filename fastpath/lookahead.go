package fastpath

import (
	"math/rand/v2"

	"sluice.dev/sluice/fastpath/decide"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat"
	"sluice.dev/sluice/nat/header"
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

// prepared has the results of the lookahead for one packet.
type prepared struct {
	packet       // only its hash is valid if known is false
	known   bool // the packet is parsed
	planned bool // the plan is certain; flow is its flow if its verdict is Queued
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
		if !w.missed(s) || ahead.repeats(i) || w.parse(&f.packet, d) != reason.None {
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

// repeats reports whether packet i of a lookahead belongs to the new flow of an earlier packet, and
// so draws no random number.
func (o *lookahead) repeats(i int) bool {
	for j := range o.of[:i] {
		if f := &o.of[j]; f.hash == o.of[i].hash && f.known {
			return !f.planned || f.plan.Verdict.Action == decide.Queued
		}
	}
	return false
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

// admitPlanned is admit for a packet whose speculative plan is certain.
func (w *Worker) admitPlanned(f *prepared) (flowtable.Ref, decide.Verdict) {
	w.draws.taken++
	if n := &f.plan; n.Verdict.Action != decide.Queued {
		return 0, w.respond(&f.packet, n)
	}
	ref, v, _ := w.insert(&f.flow, &f.plan)
	return ref, v
}

// forwardFirst is forward for a plain packet that has just made its flow. If the hop needs no VLAN
// tags and the packet fits, it forwards the packet as finishPlain does.
func (w *Worker) forwardFirst(p *packet, ref flowtable.Ref) decide.Verdict {
	f, end := w.flows.Flow(ref), uint32(p.End)
	hop := w.boundHop(f.BoundTo(flowtable.ClientSide))
	if hop == nil || end > hop.PlainEnd() || w.toLink[hop.Link] == nil {
		return w.forward(p, ref, flowtable.ClientSide)
	}
	hop.Use()
	s := w.verified(p, ref, flowtable.ClientSide)
	rewrites := [1]header.Rewrite{{MACs: hop.MACs()}}
	f.Rewrite(flowtable.ClientSide, p.Tuple.V6, &rewrites[0])
	nat.TranslatePlain(&w.memory, []Desc{p.desc}, rewrites[:], nil)
	w.stats.Backends.Count(f.BackendRef(), uint8(flowtable.ClientSide), p.bytes)
	w.queue(w.toLink[hop.Link].link, Desc{Addr: p.desc.Addr, Len: end})
	w.flows.Observe(ref, flowtable.ClientSide, s, w.planner.Now)
	return queued
}

// draws has the random numbers for new flows, a pair for each, numbered in the order of the draws.
// peek reads a pair in advance; take returns the pairs in the same order, with and without peek.
type draws struct {
	source       *rand.ChaCha8
	drawn, taken uint64
	pairs        [2 * groupSize][2]uint64
}

// peek returns the pair of a draw, which must be less than 2*groupSize ahead.
func (d *draws) peek(draw uint64) *[2]uint64 {
	for d.drawn <= draw {
		d.pairs[d.drawn%uint64(len(d.pairs))] = [2]uint64{d.source.Uint64(), d.source.Uint64()}
		d.drawn++
	}
	return &d.pairs[draw%uint64(len(d.pairs))]
}

// take draws the next pair.
func (d *draws) take() [2]uint64 {
	d.taken++
	return *d.peek(d.taken - 1)
}
