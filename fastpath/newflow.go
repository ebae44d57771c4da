package fastpath

import (
	"math/rand/v2"

	"sluice.dev/sluice/fastpath/stats"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat"
	"sluice.dev/sluice/nat/header"
)

// A packet that has no flow gets one in finish, one after the other, because what the flow will be may
// depend on the flow before. Where its reply will be found depends on nothing but the packet, the snapshot and a random
// number, though, and that bucket of the index is as far away as memory is. So the first packet of a group that seems to
// have no flow has the worker look ahead, at all of its group that seem so:
//
//	foresee   parse, plan, ask for the lines that the flow will be written to
//	admit     as without; the plan is there already
//
// A forecast changes nothing and is believed where it is certain: the parse, because the frame is the
// worker's; the plan, where it is a function of packet, snapshot, view and random number, and if the number is the one
// that the packet draws in its turn. Else admit plans as if nobody had looked ahead.

// forecast is what is known ahead about a packet.
type forecast struct {
	packet  header.Packet // parsed
	hash    uint64
	known   bool // packet and hash are
	planned bool // so are the plan and, where its verdict is Queued, the flow to be made
	draw    uint64
	plan    plan
	flow    flowtable.NewFlow
	reply   uint64 // what FetchCreate said, or 0
}

// outlook is what was foreseen of packets first to end of the batch.
type outlook struct {
	first, end int
	of         [groupSize]forecast
}

// judgeLeft judges packet i of a batch, of the group that ends at end: finish has left it.
func (w *Worker) judgeLeft(i, end int) {
	d, s := w.b.desc[i], w.b.searchOf(i)
	if missed, _ := w.missed(s); !missed || w.b.kernel {
		w.judgeAny(d)
		return
	}
	ahead := &w.ahead
	if i >= ahead.end {
		w.foresee(i, end)
	}
	f := &ahead.of[i-ahead.first]
	if !f.known {
		w.judgeAny(d)
		return
	}
	w.carryOut(d, &f.packet, w.judgeFlow(d, &f.packet, f.hash, f))
}

// missed reports whether a packet seems to have no flow. It is not sure where the packet's own flow may be behind what the
// search looked at, which only Lookup knows: where another flow has the same tag, and where the home bucket has overflowed.
func (w *Worker) missed(s *flowtable.Search) (missed, sure bool) {
	if !s.Found() {
		return s.Missed(), !s.Missed() || !w.flows.Overflowed(s)
	}
	return w.flows.Mistaken(s), false
}

// foresee makes forecasts of the packets that seem to have no flow, of packets first to end of the batch, and then asks
// for the flows that have the ports they would get.
func (w *Worker) foresee(first, end int) {
	ahead, draw := &w.ahead, w.draws.taken
	ahead.first, ahead.end = first, end
	for i := range end - first {
		f, s, d := &ahead.of[i], w.b.searchOf(first+i), w.b.desc[first+i]
		f.known, f.planned, f.hash, f.reply = false, false, s.Hash(), 0
		missed, sure := w.missed(s)
		if !missed || ahead.again(i) || header.Parse(w.frame(d), &f.packet) != stats.None {
			continue
		}
		if !sure {
			if ref, _ := w.flows.Lookup(f.hash, &f.packet.Tuple, w.now); ref != 0 {
				continue
			}
		}
		f.known, f.draw = true, draw
		draw++
		w.forecast(f)
	}
	for i := range end - first { // when the first buckets are there
		if f := &ahead.of[i]; f.reply != 0 {
			w.flows.FetchRival(&f.flow, f.reply)
		}
	}
}

// again says whether packet i of an outlook is of a flow that one before it will make, so that it will
// draw no number.
func (o *outlook) again(i int) bool {
	for j := range o.of[:i] {
		if f := &o.of[j]; f.hash == o.of[i].hash && f.known {
			return !f.planned || f.plan.verdict.Action == Queued
		}
	}
	return false
}

// forecast plans what a packet will get. Nobody's turn is taken by it, and where turns, loads or pins decide, it is
// a guess, good enough to ask for lines by, and made again.
func (w *Worker) forecast(f *forecast) {
	n := &f.plan
	*n = plan{}
	o := opening{tuple: &f.packet.Tuple, opens: isSYN(f.packet.TCPFlags), ttl: f.packet.TTL, random: *w.draws.peek(f.draw), look: true}
	w.plan(n, &o)
	if f.planned = n.certain(); n.verdict.Action == Queued {
		w.newFlow(&f.flow, &f.packet, n)
		f.reply = w.flows.FetchCreate(&f.flow)
	}
}

// certain says whether the plan is a function of packet, snapshot, view and random number alone.
func (n *plan) certain() bool {
	if n.Frontend == nil {
		return true
	}
	svc := n.Frontend.Service
	return svc.AffinitySeconds == 0 && !svc.Scheduler.InTurn() && !svc.Scheduler.ByLoad()
}

// admitForeseen is admit with a plan that is certain.
func (w *Worker) admitForeseen(d Desc, f *forecast) (flowtable.Ref, Verdict) {
	w.draws.taken++
	if n := &f.plan; n.verdict.Action != Queued {
		return 0, w.refused(d, &f.packet, n)
	}
	ref, v, _ := w.insert(&f.flow, &f.plan)
	return ref, v
}

// forwardFirst is forward for a plain packet that has made its flow: as finishPlain where nothing speaks against it.
func (w *Worker) forwardFirst(d Desc, p *header.Packet, ref flowtable.Ref) Verdict {
	f, end := w.flows.Flow(ref), uint32(p.End)
	hop := w.boundHop(f.BoundTo(flowtable.ClientSide))
	if hop == nil || end > hop.PlainEnd() || w.toLink[hop.Link] == nil {
		return w.forward(d, p, ref, flowtable.ClientSide)
	}
	leaving := [1]header.Leaving{{MACs: hop.MACs()}}
	f.Leave(flowtable.ClientSide, p.Tuple.V6, &leaving[0])
	nat.TranslatePlain(&w.memory, []Desc{d}, leaving[:], nil)
	w.stats.Backends.Count(f.BackendRef(), uint8(flowtable.ClientSide), d.Len)
	w.queue(w.toLink[hop.Link].link, Desc{Addr: d.Addr, Len: end})
	w.flows.Observe(ref, flowtable.ClientSide, p.TCPFlags, w.now)
	return queued
}

// draws are the random numbers for new flows, two for each, by the number of the draw. They can be looked at before they
// are taken, and are taken in one order, whether somebody looked or not.
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
