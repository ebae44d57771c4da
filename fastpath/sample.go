package fastpath

import (
	"math/bits"
	"math/rand/v2"
	"time"

	"sluice.dev/sluice/fastpath/capture"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/reason"
	"sluice.dev/sluice/nat/vxlan"
)

// A worker samples the packets that it drops. The first drop for a reason opens a window of
// sampleEvery, and at its end one of the window's drops for this reason, each with the same
// probability, is a sample with the number of them as its weight. So the weights of all samples add
// up to the counters, and the expected weight of a client is the number of its drops, also if they
// come in bursts: a sample of the first drop of each window would stand for a burst after it.
//
// The drop that is picked is not known before the end, so a drop may replace the one picked before
// it: the n-th of a window with probability 1/n. The number of the next one that does is drawn in
// advance (Li, "Reservoir-sampling algorithms of time complexity O(n(1+log(N/n)))", ACM TOMS 20(4),
// 1994), so that all others cost one comparison. Of n drops about ln n + 1 are picked.

// sampleEvery is the length of a window: a worker makes at most one sample in this time for each
// reason.
const sampleEvery = flowtable.Time(10 * time.Millisecond)

// sampleRing is the number of samples that wait for the reader: ten reasons for a second. Without
// room a window goes on, so that no drop is missing in the weights.
const sampleRing = 1 << 10

// dropSamples has the windows of a worker, by reason.
type dropSamples struct {
	ring   *capture.Ring
	random *rand.PCG
	next   [reason.Count]uint64 // the value of counts.drops at which a drop is picked
	before [reason.Count]uint64 // counts.drops before the window
	until  [reason.Count]flowtable.Time
	picked [reason.Count]capture.Record
	open   uint64         // reasons with a window, by bit
	due    flowtable.Time // the earliest end of a window; set if open is not 0

	outer, inner header.Packet // of pick
}

func newDropSamples(random *rand.PCG) *dropSamples {
	s := &dropSamples{ring: capture.NewRecords(sampleRing), random: random}
	for r := range s.next {
		s.next[r] = 1
	}
	return s
}

// DropSamples returns the ring of samples of dropped packets. Only one goroutine may read it.
func (w *Worker) DropSamples() *capture.Ring { return w.samples.ring }

// sample picks a drop that was just counted, in place of the one picked before.
func (w *Worker) sample(d Desc, r reason.Drop) {
	s := w.samples
	n := w.n.drops[r] - s.before[r]
	if n == 1 {
		s.until[r] = w.planner.Now + sampleEvery
		if s.open == 0 || s.until[r] < s.due {
			s.due = s.until[r]
		}
		s.open |= 1 << r
	}
	s.next[r] = s.before[r] + s.after(n)
	s.picked[r] = capture.Record{At: uint64(w.planner.Now), Point: capture.Dropped, Verdict: capture.Drop, Reason: r}
	if r != reason.Shutdown { // the worker may be at rest, and use no flow
		w.pick(d, &s.picked[r])
	}
}

// after returns the number of the next drop to pick after the n-th of a window: m with probability
// n/(m-1) - n/m.
func (s *dropSamples) after(n uint64) uint64 {
	const unit, most = 1 << 53, 1 << 62
	u := float64(s.random.Uint64()%unit+1) / unit // in (0, 1]
	return uint64(min(float64(n)/u, most)) + 1
}

// pick sets a record's packet and flow from the packet's present bytes.
func (w *Worker) pick(d Desc, rec *capture.Record) {
	frame, bytes, p := w.frame(d), w.bytes(d), &w.samples.outer
	rec.Bytes = bytes
	header.ParseLong(frame, int(bytes), p)
	if in := int(p.L4) + header.UDPBytes + vxlan.HeaderBytes; w.tunnels.VNI != 0 && p.Tuple.Proto == header.ProtoUDP &&
		p.Tuple.DstPort == w.tunnels.Port && p.Fragment != header.LaterFragment && in < len(frame) {
		// The packet of a client, on its way to a node.
		header.ParseLong(frame[in:], int(bytes)-in, p)
		frame = frame[in:]
	}
	if p.L3 == 0 { // no addresses were read
		return
	}
	rec.Later = p.Fragment == header.LaterFragment
	rec.Flow = capture.Flow{Proto: p.Tuple.Proto, Client: flowtable.SocketOf(&p.Tuple.Src, p.Tuple.SrcPort),
		Frontend: flowtable.SocketOf(&p.Tuple.Dst, p.Tuple.DstPort)}
	t, quoted := &p.Tuple, false
	if p.L4 != 0 && p.Fragment == header.NotFragment && header.IsICMPError(p.Tuple.V6, p.ICMPType) &&
		(p.Tuple.Proto == header.ProtoICMP || p.Tuple.Proto == header.ProtoICMPv6) &&
		header.ParseInner(frame, p, &w.samples.inner) == reason.None {
		t, quoted = &w.samples.inner.Tuple, true
		rec.Quoted = [2]flowtable.Socket{flowtable.SocketOf(&t.Src, t.SrcPort), flowtable.SocketOf(&t.Dst, t.DstPort)}
		rec.QuotedProto = t.Proto
	}
	w.pickFlow(t, quoted, rec)
}

// pickFlow sets a record's flow by the packet's tuple, or, if quoted, by the tuple of the packet
// that it quotes. The packet may be translated already: the reverse of its tuple is then a tuple of
// the flow.
func (w *Worker) pickFlow(t *header.Tuple, quoted bool, rec *capture.Record) {
	now := w.planner.Now
	ref, side := w.flows.Lookup(w.flows.Hash(t), t, now)
	if ref == 0 {
		back := t.Reverse()
		ref, side = w.flows.Lookup(w.flows.Hash(&back), &back, now)
		side ^= 1
	}
	if ref == 0 {
		return
	}
	if quoted {
		side ^= 1
	}
	rec.Flow = flowOf(w.flows.Flow(ref), side, t.V6)
}

// publishSamples makes the samples of the windows that have ended, or of all windows.
func (w *Worker) publishSamples(all bool) {
	s, now := w.samples, w.planner.Now
	s.due = now + sampleEvery
	for open := s.open; open != 0; open &= open - 1 {
		r := bits.TrailingZeros64(open)
		if !all && now < s.until[r] {
			s.due = min(s.due, s.until[r])
			continue
		}
		rec := &s.picked[r]
		rec.Weight = w.n.drops[r] - s.before[r]
		if _, ok := s.ring.Add(rec, 0); !ok {
			s.until[r] = now + sampleEvery
			continue
		}
		s.open &^= 1 << r
		s.before[r], s.next[r] = w.n.drops[r], w.n.drops[r]+1
	}
	s.ring.Publish()
}
