package fastpath

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"sluice.dev/sluice/fastpath/copies"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/fragment"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/reason"
)

// A worker of another process can continue the work of this one, with the same frames, links and
// flow table. Remains carries the rest: the held packets and the counts. Times are of
// CLOCK_BOOTTIME, which all processes share.

// Remains is the state of a worker without its UMEM, its links and the flow table.
type Remains struct {
	// Counts has the worker's counts by name. The process that takes over must know all names, or
	// the packet law would not hold.
	Counts map[string]uint64
	Free   int // frames in the pool
	// Hops are packets that wait for a next hop, Parked are packets that wait to open a flow, and
	// Fragments are fragments that wait for the first one of their datagram. All are oldest first.
	Hops      []HeldPacket
	Parked    []ParkedPacket
	Fragments []HeldFragment
}

// Buffers has the frames of a packet, in order.
type Buffers []Desc

// HeldPacket is a translated packet whose next hop is not known yet.
type HeldPacket struct {
	Buffers    Buffers
	L3, End    uint16 // IP header and end of the IP packet, bytes from the packet's first
	V6         bool
	Splittable bool // IPv4 without DF
	Dst        header.Addr
	Precedence uint8
	Deadline   flowtable.Time
}

// ParkedPacket is a packet that would open a flow, as it was received.
type ParkedPacket struct {
	Buffers Buffers
	Hash    uint64 // of its tuple, with the flow table's secret; 0 of a SYN-ACK that waited for copies
	Link    int    // its position in Links
}

// HeldFragment is a later fragment, as it was received.
type HeldFragment struct {
	Buffers  Buffers
	Of       fragment.Datagram // hashed with the fragment table's secret
	Deadline flowtable.Time
	Link     int // its position in Links
}

// Pause makes Step do nothing until Resume, and returns the worker's state, which the worker also
// keeps. While paused the worker uses no frame, ring, flow or snapshot. It must run on the worker's
// goroutine (Do).
func (w *Worker) Pause() Remains {
	w.control.paused = true
	w.publish(1)
	w.publishSamples(true)
	w.rest()
	r := Remains{Counts: map[string]uint64{}, Free: w.pool.Free()}
	w.eachCount(func(name string, v *uint64) { r.Counts[name] = *v })
	for drop, n := range w.n.drops {
		r.Counts[dropName(reason.Drop(drop))] = n
	}
	for i := range w.hops.held {
		h := &w.hops.held[i]
		r.Hops = append(r.Hops, HeldPacket{
			Buffers: w.buffers(h.o.desc), L3: h.o.l3, End: h.o.end, V6: h.o.v6, Splittable: h.o.splittable,
			Dst: h.o.dst, Precedence: uint8(h.o.precedence), Deadline: h.deadline,
		})
	}
	q := &w.parked
	for at := q.head; at != q.tail; at++ {
		if p := q.slot(at); p.here {
			r.Parked = append(r.Parked, ParkedPacket{w.buffers(p.desc), p.hash, int(p.link)})
		}
	}
	for _, h := range w.waiting.held { // the next process decides about them, as about any packet
		r.Parked = append(r.Parked, ParkedPacket{Buffers: w.buffers(h.desc), Link: h.origin.link})
	}
	for i := w.frags.first; i != 0; i = w.frags.slots[i].next {
		h := &w.frags.slots[i]
		r.Fragments = append(r.Fragments,
			HeldFragment{w.buffers(h.desc), h.of, h.deadline, h.link})
	}
	return r
}

// Resume ends Pause. It must run on the worker's goroutine (Do).
func (w *Worker) Resume() {
	if w.control.paused {
		w.control.paused = false
		w.awake()
	}
}

// CountNames returns the sorted names of the counts in Remains.
func CountNames() (names []string) {
	var w Worker
	w.eachCount(func(name string, _ *uint64) { names = append(names, name) })
	for drop := range w.n.drops {
		names = append(names, dropName(reason.Drop(drop)))
	}
	slices.Sort(names)
	return names
}

func dropName(r reason.Drop) string { return "drop " + r.String() }

// eachCount visits the counts that never decrease, except for drops.
func (w *Worker) eachCount(f func(name string, v *uint64)) {
	n := &w.n
	for name, v := range map[string]*uint64{
		"rx": &n.rx, "rxBytes": &n.rxBytes, "tx": &n.tx, "txBytes": &n.txBytes, "generated": &n.generated,
		"returned": &n.returned, "kernelRx": &n.kernelRx, "flows": &n.flows, "icmpLimited": &n.icmpLimited,
		"retried": &n.retried, "echoReplies": &n.echoReplies, "proxyHeaders": &n.proxyHeaders,
		"resets": &n.resets, "resetsLimited": &n.resetsLimited, "wrongChecksums": &n.wrongChecksums,
		"unfinishedChecksums": &n.unfinishedChecksums, "batches": &n.batches,
	} {
		f(name, v)
	}
}

// buffers returns a packet's frames.
func (w *Worker) buffers(d Desc) (list Buffers) {
	if d.Len != 0 {
		return Buffers{d}
	}
	for addr, more := d.Addr, true; more; addr, more = w.chains.Next(addr) {
		list = append(list, Desc{Addr: addr, Len: w.chains.First(Desc{Addr: addr})})
	}
	return list
}

// Assume gives the worker the state of a paused worker. ownFrames has the frames that no link has:
// the held packets' frames are among them, and the others go to the pool. The worker must not run
// yet. After an error it must not be used.
func (w *Worker) Assume(r Remains, ownFrames []uint64) error {
	frames, err := w.stockOf(ownFrames)
	if err == nil {
		err = w.assumeCounts(r.Counts)
	}
	if err != nil {
		return err
	}
	for _, p := range r.Hops {
		d, err := frames.take(p.Buffers)
		if err != nil {
			return err
		}
		q := &w.hops
		if len(q.held) == cap(q.held) || p.Precedence > uint8(established) {
			return fmt.Errorf("worker %d: no room for %d packets that wait for next hops", w.c.ID, len(r.Hops))
		}
		o := outgoing{desc: d, l3: p.L3, end: p.End, v6: p.V6, splittable: p.Splittable, dst: p.Dst,
			precedence: precedence(p.Precedence)}
		q.add(o, p.Deadline)
		w.request(&o)
		w.countHeld(d, 1)
	}
	displaced := w.displaceParked(&r)
	for _, p := range r.Parked {
		d, err := frames.take(p.Buffers)
		if err != nil {
			return err
		}
		if p.Link < 0 || p.Link >= len(w.c.Links) {
			return fmt.Errorf("worker %d: a parked packet is from link %d, and there are %d", w.c.ID, p.Link,
				len(w.c.Links))
		}
		w.parked.add(d, p.Hash, p.Link)
		w.countHeld(d, 1)
		if p.Hash == 0 && w.c.Copies != nil { // its flow counts as answered (flowtable.Handle.Track)
			w.c.Copies.Left(w.c.ID, copies.Late, time.Duration(copyWait))
		}
	}
	for _, p := range r.Fragments {
		d, err := frames.take(p.Buffers)
		if err != nil {
			return err
		}
		if w.frags.free == 0 || p.Link < 0 || p.Link >= len(w.c.Links) {
			return fmt.Errorf("worker %d: no room for %d fragments", w.c.ID, len(r.Fragments))
		}
		w.frags.add(heldFragment{desc: d, of: p.Of, deadline: p.Deadline, link: p.Link})
		w.frags.more += w.chains.Buffers(d) - 1
		w.countHeld(d, 1)
	}
	*w.pool = *NewPoolOf(w.pool.total, int(w.pool.frameSize), frames.rest())
	if free := w.pool.Free() - displaced; free != r.Free {
		return fmt.Errorf("worker %d: %d frames are free, the former process had %d", w.c.ID, free, r.Free)
	}
	w.n.moved = true
	return nil
}

// displaceParked drops the oldest parked packets for which the queue has no room, as park does, and
// returns how many frames they leave in the stock. The former process had SYN-ACKs in a queue of
// their own. The drops have no samples, because the flow table is not this process's yet.
func (w *Worker) displaceParked(r *Remains) (frames int) {
	n := max(0, len(r.Parked)-len(w.parked.slots))
	for _, p := range r.Parked[:n] {
		frames += len(p.Buffers)
	}
	r.Parked = r.Parked[n:]
	w.assumeDrops(reason.NewFlowDisplaced, w.n.drops[reason.NewFlowDisplaced]+uint64(n))
	return frames
}

// stock is the set of frames that no link has.
type stock struct {
	chains *Chains
	here   []bool // by frame
}

func (w *Worker) stockOf(frames []uint64) (s stock, err error) {
	s = stock{w.chains, make([]bool, w.pool.total)}
	for _, addr := range frames {
		frame := addr >> s.chains.frameShift
		if frame >= uint64(len(s.here)) {
			return s, fmt.Errorf("worker %d: there is no frame at %d", w.c.ID, addr)
		}
		s.here[frame] = true
	}
	return s, nil
}

// take removes a packet's frames from the stock.
func (s *stock) take(b Buffers) (d Desc, err error) {
	for i, part := range b {
		frame := part.Addr >> s.chains.frameShift
		if frame >= uint64(len(s.here)) || !s.here[frame] || part.Len == 0 ||
			(part.Addr+uint64(part.Len)-1)>>s.chains.frameShift != frame {
			return d, fmt.Errorf("a held packet has %d bytes at %d: in no frame, or in a link's frame", part.Len,
				part.Addr)
		}
		s.here[frame] = false
		switch {
		case len(b) == 1:
			return part, nil
		case i == 0:
			d = s.chains.Begin(part.Addr, part.Len)
		default:
			s.chains.Extend(b[i-1].Addr, part.Addr, part.Len)
		}
	}
	if len(b) == 0 {
		return d, errors.New("a held packet has no bytes")
	}
	return d, nil
}

// rest returns the frames that are still in the stock.
func (s *stock) rest() (frames []uint64) {
	for frame, here := range s.here {
		if here {
			frames = append(frames, uint64(frame)<<s.chains.frameShift)
		}
	}
	return frames
}

// assumeCounts sets the counts to another worker's.
func (w *Worker) assumeCounts(counts map[string]uint64) error {
	known := 0
	w.eachCount(func(name string, v *uint64) {
		if n, ok := counts[name]; ok {
			*v, known = n, known+1
		}
	})
	for drop := range w.n.drops {
		if n, ok := counts[dropName(reason.Drop(drop))]; ok {
			known++
			w.assumeDrops(reason.Drop(drop), n)
		}
	}
	if known != len(counts) {
		return fmt.Errorf("worker %d: %d counts of the former process are not known here", w.c.ID,
			len(counts)-known)
	}
	return nil
}

// assumeDrops sets the count of a reason. Samples begin with the next drop.
func (w *Worker) assumeDrops(drop reason.Drop, n uint64) {
	w.samples.before[drop], w.samples.next[drop] = n, n+1
	if w.n.drops[drop] = n; n != 0 {
		w.n.dirty |= 1 << drop
	}
}
