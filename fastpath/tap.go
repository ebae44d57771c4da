package fastpath

import (
	"math/bits"
	"slices"

	"sluice.dev/sluice/fastpath/capture"
	"sluice.dev/sluice/fastpath/decide"
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/reason"
)

// A capture records a packet where it arrives, where it leaves, and where it is dropped. The packet
// stays in its frame in between, so a mark of the frame has the captures that follow the packet:
//
//	tapGroup, tapEnd  the verdict is known: record the packet as it arrived, and mark its frame
//	tapSend           record marked frames that a link takes
//	tapDrop           record the packet
//
// A plain packet is recorded before it is rewritten. The slow path keeps a copy of other packets,
// made by tapBegin. Recorded plain packets are in a list, so that a batch is searched for marked
// frames only if other packets have a mark. A packet that waits for its flow, or for the first
// fragment of its datagram, is not changed meanwhile, and is recorded when it is handled again
// (tapWait).
//
// Without a capture Worker.tap is nil, and each of these places costs one comparison.

// MaxTaps is the maximum number of captures at once: a mark has a bit for each.
const MaxTaps = 4

// waits is the bit of a mark for a packet that has not been recorded where it arrived, because it
// waits.
const waits = 1 << MaxTaps

// plain is the bit of a mark for a packet in Taps.plain.
const plain = 2 * waits

// Taps are the captures of a worker, and its marks.
type Taps struct {
	list  []*capture.Tap // by bit of a mark; nil where there is none
	all   []*capture.Tap // the same, but nil for captures that need no forwarded packets (capture.Tap.Plain)
	marks []uint8        // by frame
	shift uint8          // of an address to its frame's number
	count int            // frames with a mark, except for the frames in plain
	notes []tapNote      // by frame, valid if it has a mark
	plain []tapPlain     // recorded packets that finishPlain has queued

	// The packet that the slow path handles, or nil if it is recorded already; whether its frame
	// has its mark; its bytes as it arrived, and its note.
	current *packet
	matched bool
	arrived []byte
	note    tapNote
	scratch []byte // a packet in several frames, for an expression

	// sent has, by tap, the positions in a batch of the packets that tapSend has recorded; added is
	// capture.Ring.Added before them.
	sent  [MaxTaps][]uint16
	added [MaxTaps]uint64
}

// tapNote describes the packet in a marked frame.
type tapNote struct {
	at      uint64 // when it arrived
	link    uint16 // on which it arrived
	verdict capture.Verdict
	flow    capture.Flow
}

// tapPlain is a packet in the queue of a link.
type tapPlain struct {
	Desc
	link int
}

// longest is the length of the longest packet, in bytes.
const longest = 1<<16 - 1 + header.EthernetBytes

// NewTaps makes the memory for captures of this worker: at most MaxTaps. A nil entry of list does
// nothing. A capture that continues keeps its position in list. Any goroutine may call NewTaps.
func (w *Worker) NewTaps(list []*capture.Tap) *Taps {
	frames := w.c.Pool.Total()
	t := &Taps{list: list, all: make([]*capture.Tap, len(list)), marks: make([]uint8, frames),
		notes: make([]tapNote, frames),
		shift: w.chains.frameShift, plain: make([]tapPlain, 0, 2*BatchSize)}
	bytes := 0
	for k, tap := range list {
		if tap == nil {
			continue
		}
		t.sent[k] = make([]uint16, 0, 2*BatchSize)
		if tap.Plain() {
			t.all[k] = tap
		}
		switch {
		case tap.Expression != nil:
			bytes, t.scratch = longest, make([]byte, longest)
		case tap.Reasons == 0:
			bytes = max(bytes, min(tap.Snap, longest))
		}
	}
	t.arrived = make([]byte, bytes)
	return t
}

// SetTaps replaces the worker's captures; nil ends them. It must run on the worker's goroutine
// (Do).
func (w *Worker) SetTaps(t *Taps) {
	if old := w.tap; old != nil {
		w.publishTaps()
		if t != nil {
			t.inherit(old)
		}
	}
	w.tap = t
}

// inherit takes over the marks of the captures that continue.
func (t *Taps) inherit(old *Taps) {
	kept := uint8(waits)
	for k, tap := range old.list {
		if tap != nil && k < len(t.list) && t.list[k] == tap {
			kept |= 1 << k
		}
	}
	t.marks, t.notes, t.count = old.marks, old.notes, 0
	for i, m := range t.marks {
		if m&kept != 0 {
			t.count++
		}
		t.marks[i] = m & kept
	}
}

// publishTaps gives the records of a step to their readers.
func (w *Worker) publishTaps() {
	for _, tap := range w.tap.list {
		if tap != nil {
			tap.Rings[w.c.ID].Publish()
		}
	}
}

func (w *Worker) frameOf(d Desc) uint64 { return d.Addr >> w.chains.frameShift }

func (t *Taps) mark(frame uint64, bits uint8) {
	if t.marks[frame] == 0 && bits != 0 {
		t.count++
	}
	t.marks[frame] |= bits
}

func (t *Taps) unmark(frame uint64) {
	switch m := t.marks[frame]; {
	case m&plain != 0:
		t.plain = slices.DeleteFunc(t.plain, func(p tapPlain) bool { return p.Addr>>t.shift == frame })
	case m != 0:
		t.count--
	}
	t.marks[frame] = 0
}

// take reports whether the rate of a prepaid tap (capture.Tap.Prepaid) allows n more records. If
// not, it counts them. For other taps it returns true.
func (w *Worker) take(tap *capture.Tap, n uint64) bool {
	return !tap.Prepaid() || tap.Take(w.c.ID, uint64(w.planner.Now), n)
}

// flowOf describes a live flow, for a packet that arrived on side.
func flowOf(f *flowtable.Flow, side flowtable.Side, v6 bool) capture.Flow {
	return capture.Flow{
		Known: true, Reply: side == flowtable.ReplySide, Proto: f.Proto(), Service: f.Service(),
		Client: f.Source(flowtable.ClientSide, v6), Frontend: f.Destination(flowtable.ClientSide, v6),
		Source: f.Destination(flowtable.ReplySide, v6), Backend: f.Source(flowtable.ReplySide, v6),
	}
}

// tapGroup records packets of a group that finishPlain forwards, before they are rewritten: from
// packet first of the batch to position end of the group. found has the flows of the group.
func (w *Worker) tapGroup(first int, end uint, found *[groupSize]*flowtable.Flow) {
	g, from := w.b.group(first&^(groupSize-1)), uint(first)%groupSize
	flows := found[from:end]
	for k, tap := range w.tap.all {
		if tap == nil {
			continue
		}
		if matched := tap.MatchGroup(flows, g.search[from:]); matched != 0 {
			w.tapMatched(k, matched, g, from, flows)
		}
	}
}

// unrecorded returns the number of packets of a group before the first one that a capture records.
// flows has their flows.
func (w *Worker) unrecorded(group []flowtable.Search, flows *[groupSize]*flowtable.Flow) int {
	n := len(group)
	for _, tap := range w.tap.all {
		if tap == nil {
			continue
		}
		if matched := tap.MatchGroup(flows[:len(group)], group); matched != 0 {
			n = min(n, bits.TrailingZeros32(matched))
		}
	}
	return n
}

// tapMatched records the packets of tapGroup that match tap k.
func (w *Worker) tapMatched(k int, matched uint32, g group, first uint, flows []*flowtable.Flow) {
	for ; matched != 0; matched &= matched - 1 {
		i := uint(bits.TrailingZeros32(matched))
		if w.take(w.tap.list[k], 2) {
			w.tapFlow(k, g.desc[first+i], &g.search[first+i], flows[i])
		}
	}
}

// tapFlow records a plain packet of a known flow for tap k, and marks its frame.
func (w *Worker) tapFlow(k int, d Desc, s *flowtable.Search, f *flowtable.Flow) {
	t, frame := w.tap, w.frameOf(d)
	n := &t.notes[frame]
	if t.marks[frame]&plain == 0 { // otherwise another tap has noted it
		if t.marks[frame] == 0 { // otherwise it waited
			n.at, n.link = uint64(w.planner.Now), uint16(w.b.link)
		}
		n.verdict, n.flow = capture.Forwarded, flowOf(f, s.Side(), s.Family == header.PlainIPv6)
		t.unmark(frame)
		_, id := f.BoundTo(s.Side())
		hop := w.c.Hops.Hop(nexthop.ID(id))
		t.plain = append(t.plain, tapPlain{Desc{Addr: d.Addr, Len: s.End}, w.egress.to[hop.Link].link})
		t.marks[frame] = plain
	}
	t.marks[frame] |= 1 << k
	w.tapIn(k, d, nil, n, reason.None, 0)
}

// record writes a record of tap k if its expression matches. The bytes are arrived, or if that is
// nil the present bytes of the packet in d. paid: take was called for this record.
func (w *Worker) record(k int, d Desc, arrived []byte, r *capture.Record, paid bool) bool {
	tap := w.tap.list[k]
	b := arrived
	if b == nil && (d.Len != 0 || tap.Expression != nil) {
		b = w.tapBytes(d)
	}
	if !tap.MatchBytes(b) {
		return false
	}
	if (!paid || !tap.Prepaid()) && !tap.Take(w.c.ID, uint64(w.planner.Now), 1) {
		return false
	}
	if r.Bytes == 0 {
		r.Bytes = w.bytes(d)
	}
	to, ok := tap.Rings[w.c.ID].Add(r, min(int(r.Bytes), tap.Snap))
	switch {
	case !ok:
		return false
	case b != nil:
		copy(to, b)
	default:
		w.copy(to, d, 0)
	}
	return true
}

// tapBytes returns the bytes of a packet in one piece, valid until the next call.
func (w *Worker) tapBytes(d Desc) []byte {
	if d.Len != 0 {
		return w.frame(d)
	}
	b := w.tap.scratch[:min(int(w.bytes(d)), len(w.tap.scratch))]
	w.copy(b, d, 0)
	return b
}

// tapBegin keeps a copy of a packet that the slow path begins to handle.
func (w *Worker) tapBegin(p *packet) {
	t, frame := w.tap, w.frameOf(p.desc)
	t.current, t.matched = p, false
	t.note.at, t.note.link = uint64(w.planner.Now), uint16(p.link)
	if t.marks[frame]&waits != 0 {
		t.note.at, t.note.link = t.notes[frame].at, t.notes[frame].link
	}
	t.unmark(frame)
	w.copy(t.arrived[:min(int(p.bytes), len(t.arrived))], p.desc, 0)
}

// tapWait marks the current packet as waiting: it will be handled again, unchanged.
func (w *Worker) tapWait(p *packet) {
	t := w.tap
	if t.current != p {
		return
	}
	t.current = nil
	frame := w.frameOf(p.desc)
	w.describe(p, &t.note)
	t.notes[frame] = t.note
	t.mark(frame, waits)
}

// describe sets the flow of a packet's note.
func (w *Worker) describe(p *packet, n *tapNote) {
	if p.flow != 0 {
		n.flow = flowOf(w.flows.Flow(p.flow), p.side, p.Tuple.V6)
		return
	}
	n.flow = capture.Flow{Proto: p.Tuple.Proto,
		Client:   flowtable.SocketOf(&p.Tuple.Src, p.Tuple.SrcPort),
		Frontend: flowtable.SocketOf(&p.Tuple.Dst, p.Tuple.DstPort),
	}
	if f := w.planner.Snap.Frontend(&p.Tuple); f != nil {
		n.flow.Service = uint32(f.Service.ID)
	}
}

// tapMatch marks the frame of the current packet with the taps that follow it.
func (w *Worker) tapMatch() {
	t := w.tap
	if t.matched {
		return
	}
	p := t.current
	t.matched = true
	w.describe(p, &t.note)
	frame := w.frameOf(p.desc)
	t.notes[frame] = t.note
	w.follow(frame, p.flow, 2)
}

// follow marks a frame, whose note is set, with the taps that match it. ref is its flow, or 0.
// points is the number of points at which its packet will be recorded.
func (w *Worker) follow(frame uint64, ref flowtable.Ref, points uint64) {
	t := w.tap
	n := &t.notes[frame].flow
	for k, tap := range t.list {
		if tap == nil {
			continue
		}
		ok := false
		if n.Known && ref != 0 {
			ok = tap.MatchFlow(w.flows.Flow(ref), !n.Client.Is4())
		} else {
			ok = tap.MatchPacket(n.Client, n.Frontend, n.Service)
		}
		if ok && w.take(tap, points) {
			t.mark(frame, 1<<k)
		}
	}
}

// tapEnd records the current packet as it arrived, when its verdict is known.
func (w *Worker) tapEnd(p *packet, v decide.Verdict) {
	t := w.tap
	if t.current != p {
		return // it waits, or was dropped on its way
	}
	w.tapMatch()
	t.current = nil
	frame := w.frameOf(p.desc)
	n := &t.notes[frame]
	n.verdict = verdictOf(v)
	for k := range t.list {
		if t.marks[frame]>>k&1 != 0 {
			w.tapIn(k, p.desc, t.arrived[:min(int(p.bytes), len(t.arrived))], n, v.Reason, p.bytes)
		}
	}
}

func verdictOf(v decide.Verdict) capture.Verdict {
	switch v.Action {
	case decide.Queued:
		return capture.Forwarded
	case decide.ToKernel:
		return capture.ToKernel
	}
	return capture.Drop
}

// tapIn records a packet of tap k as it arrived, unless the tap wants dropped packets only.
func (w *Worker) tapIn(k int, d Desc, arrived []byte, n *tapNote, r reason.Drop, bytes uint32) {
	if w.tap.list[k].Reasons == 0 {
		w.record(k, d, arrived, &capture.Record{
			At: n.at, Bytes: bytes, Link: n.link, Point: capture.In, Verdict: n.verdict, Reason: r, Flow: n.flow,
		}, true)
	}
}

// tapDrop records a packet that is dropped, before its frames are free.
func (w *Worker) tapDrop(d Desc, r reason.Drop) {
	t, frame := w.tap, w.frameOf(d)
	if p := t.current; p != nil && w.frameOf(p.desc) == frame {
		w.tapEnd(p, drop(r))
	}
	if t.marks[frame]&waits != 0 {
		n := &t.notes[frame]
		n.verdict = capture.Drop
		w.follow(frame, 0, 2)
		for k := range t.list {
			if t.marks[frame]>>k&1 != 0 {
				w.tapIn(k, d, nil, n, r, 0)
			}
		}
	}
	w.recordDrop(d, frame, r, true)
	t.unmark(frame)
}

// recordDrop records a dropped packet for the taps that follow the packet of a frame, and for those
// that have all packets. paid: take was called for the drop of a marked frame.
func (w *Worker) recordDrop(d Desc, frame uint64, r reason.Drop, paid bool) {
	t := w.tap
	mark := t.marks[frame]
	rec := capture.Record{At: uint64(w.planner.Now), Point: capture.Dropped, Verdict: capture.Drop, Reason: r}
	if mark != 0 {
		rec.Flow = t.notes[frame].flow
	}
	for k, tap := range t.list {
		followed := mark>>k&1 != 0
		if tap == nil || !followed && !tap.All() || tap.Reasons != 0 && tap.Reasons>>r&1 == 0 {
			continue
		}
		w.record(k, d, nil, &rec, paid && followed)
	}
}

// tapMade marks the frame of d, in which the worker has made a packet because of the packet in
// from.
func (w *Worker) tapMade(from, d Desc) {
	t := w.tap
	origin, frame := w.frameOf(from), w.frameOf(d)
	if p := t.current; p != nil && w.frameOf(p.desc) == origin {
		w.tapMatch()
	}
	n := &t.notes[frame]
	*n = t.notes[origin]
	n.at, n.verdict = uint64(w.planner.Now), capture.Generated
	for k, tap := range t.list {
		if t.marks[origin]>>k&1 != 0 && w.take(tap, 1) {
			t.mark(frame, 1<<k)
		}
	}
}

// tapHeader marks the frame of d, in which the worker makes a segment towards a flow's backend.
func (w *Worker) tapHeader(d Desc, ref flowtable.Ref) {
	frame, f := w.frameOf(d), w.flows.Flow(ref)
	w.tap.notes[frame] = tapNote{at: uint64(w.planner.Now), verdict: capture.Generated,
		flow: flowOf(f, flowtable.ClientSide, ref.V6())}
	w.follow(frame, ref, 1)
}

// tapLost records a fragment that the worker could not make of the packet in from.
func (w *Worker) tapLost(from Desc, r reason.Drop) {
	t, origin := w.tap, w.frameOf(from)
	if p := t.current; p != nil && w.frameOf(p.desc) == origin {
		w.tapMatch()
	}
	w.recordDrop(from, origin, r, false)
}

// tapSend records the marked packets of a batch that a link is about to get. tapSent removes the
// records of the packets that the link did not take.
func (w *Worker) tapSend(link int, batch []Desc) {
	t := w.tap
	for k, tap := range t.list {
		if tap != nil {
			t.sent[k], t.added[k] = t.sent[k][:0], tap.Rings[w.c.ID].Added()
		}
	}
	if t.count == 0 {
		return
	}
	for i, d := range batch {
		frame := w.frameOf(d)
		mark := t.marks[frame]
		if mark&plain != 0 {
			continue
		}
		for mark &^= waits; mark != 0; mark &= mark - 1 {
			if k := bits.TrailingZeros8(mark); w.tapOut(k, d, frame, link) {
				t.sent[k] = append(t.sent[k], uint16(i))
			}
		}
	}
}

// tapOut records a packet of tap k for a link, and reports whether it did.
func (w *Worker) tapOut(k int, d Desc, frame uint64, link int) bool {
	n := &w.tap.notes[frame]
	return w.tap.list[k].Reasons == 0 && w.record(k, d, nil, &capture.Record{
		At: uint64(w.planner.Now), Link: uint16(link), Point: capture.Out, Verdict: n.verdict, Flow: n.flow,
	}, true)
}

// tapSent ends tapSend: the link took the first taken packets of the batch. It records the plain
// ones of them: their bytes do not change before the link gets free frames again.
func (w *Worker) tapSent(link int, batch []Desc, taken int) {
	t := w.tap
	if t.count != 0 {
		w.tapTook(batch, taken)
	}
	kept := t.plain[:0]
	for _, p := range t.plain {
		if p.link != link || holds(batch[taken:], p.Desc) {
			kept = append(kept, p)
			continue
		}
		frame := w.frameOf(p.Desc)
		for mark := t.marks[frame] &^ plain; mark != 0; mark &= mark - 1 {
			w.tapOut(bits.TrailingZeros8(mark), p.Desc, frame, link)
		}
		t.marks[frame] = 0
	}
	t.plain = kept
}

// tapTook removes the records of tapSend whose packets the link did not take, and the marks of the
// others.
func (w *Worker) tapTook(batch []Desc, taken int) {
	t := w.tap
	for k, tap := range t.list {
		n := 0
		for n < len(t.sent[k]) && int(t.sent[k][n]) < taken {
			n++
		}
		if tap != nil {
			tap.Rings[w.c.ID].Rewind(t.added[k] + uint64(n))
		}
	}
	for _, d := range batch[:taken] {
		if frame := w.frameOf(d); t.marks[frame]&plain == 0 {
			t.unmark(frame)
		}
	}
}

func holds(batch []Desc, d Desc) bool {
	for i := range batch {
		if batch[i].Addr == d.Addr {
			return true
		}
	}
	return false
}
