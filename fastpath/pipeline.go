package fastpath

import (
	"unsafe"

	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/flowtable/prefetch"
	"sluice.dev/sluice/nat"
	"sluice.dev/sluice/nat/header"
)

// Most packets are plain (header.Plain4) and of a flow that stays as it is. A worker takes them
// through three stages, in groups, so that the cache misses of one group are under way
// while others are worked on:
//
//	          time ─────────────────────────────▶
//	group 0   inspect │ find    │ finish  │
//	group 1           │ inspect │ find    │ finish
//	group 2           │         │ inspect │ find
//
//	inspect   judge the headers, hash, ask for the bucket of the index
//	find      match tags, ask for the flow
//	finish    compare, rewrite, queue; or judgeAny
//
// Headers are asked for one group ahead of inspect. Whatever is not plain, and whatever
// about a plain packet takes a decision (a flow to be made or ended, a neighbour that is not
// resolved, a backend that is gone), goes to judgeAny in finish, so packets leave in the order
// in which they came. judgeAny decides the same about plain packets too: it is
// the oracle of the tests.

// groupSize is the packets of a stage: enough misses to fill what the processor can have under
// way, few enough that the first lines have not been pushed out when their turn comes.
const groupSize = 16

// plain is what inspect found out about a packet: where its IP packet ends, in bytes from the
// frame's start, and whether it is of IPv6. Zero: ask judgeAny.
type plain uint32

const plainV6 plain = 1 << 31

// count notes that a link delivered n packets, the batch.
func (w *Worker) count(link, n int) {
	w.b.link, w.b.kernel = link, link == w.c.Host
	w.n.rx += uint64(n)
	if w.b.kernel {
		w.n.kernelRx += uint64(n)
	}
}

// judgeAll judges the n packets of the batch, and carries out the verdicts.
func (w *Worker) judgeAll(n int) {
	w.b.long, w.b.anyLong = w.b.anyLong, false
	w.ahead.end = 0
	w.fetchHeaders(0, min(groupSize, n))
	for at := 0; at < n+2*groupSize; at += groupSize {
		if at < n {
			w.inspect(at, min(at+groupSize, n), n)
		}
		if i := at - groupSize; i >= 0 && i < n {
			w.flows.FetchFlows(w.b.search[i:min(i+groupSize, n)])
		}
		if i := at - 2*groupSize; i >= 0 {
			w.finish(i, min(i+groupSize, n))
		}
	}
}

const descBytes = 16 // of a Desc

// fetchAtOnce is how many headers are asked for in between: one call for each costs more
// than it brings, and all of a group at once are more misses than there is room for.
const fetchAtOnce = 4

// fetchHeaders asks for the headers of packets of the batch.
func (w *Worker) fetchHeaders(first, end int) {
	if first < end {
		d := w.b.desc[first:end]
		if w.b.long {
			prefetch.WritePairs(&w.mem[0], &d[0].Addr, descBytes, len(d))
			return
		}
		prefetch.WriteAll(&w.mem[0], &d[0].Addr, descBytes, len(d))
	}
}

// window4 and window6 are what plain packets are judged by, of a packet whose address is not above w.windows. They do not
// check that again, which would be twelve instructions for each packet in each stage.
func (w *Worker) window4(d Desc) *[header.Window4Bytes]byte {
	return (*[header.Window4Bytes]byte)(unsafe.Add(w.base, d.Addr)) // Safety: inspect has compared the address with w.windows
}

func (w *Worker) window6(d Desc) *[header.Window6Bytes]byte {
	return (*[header.Window6Bytes]byte)(unsafe.Add(w.base, d.Addr)) // Safety: as above
}

// inspect is the first stage, of the packets from first to end of a batch of n.
func (w *Worker) inspect(first, end, n int) {
	descs, plains, searches := w.b.desc[first:end], w.b.plain[first:end], w.b.search[first:end]
	bytes := uint64(0)
	for i := range descs {
		if i%fetchAtOnce == 0 {
			next := first + i + groupSize
			w.fetchHeaders(next, min(next+fetchAtOnce, n))
		}
		d := descs[i]
		bytes += uint64(d.Len)
		s := &searches[i]
		if d.Addr > w.windows {
			plains[i] = 0
			s.SeekNothing()
			continue
		}
		h := w.window4(d)
		if !header.MayBePlain4(h) {
			plains[i] = w.inspect6(d, s)
			continue
		}
		size, special := header.Plain4(h, d.Len)
		if size == 0 {
			plains[i] = 0
			s.SeekNothing()
			continue
		}
		addrs, ports := header.PlainKey4(h)
		w.flows.Seek4(s, addrs, ports, header.PlainProto4(h))
		if special {
			size = 0
		}
		plains[i] = plain(size)
	}
	w.n.rxBytes += bytes
	w.flows.FetchBuckets(searches)
}

// inspect6 is inspect of a packet that is not a plain one of IPv4.
func (w *Worker) inspect6(d Desc, s *flowtable.Search) plain {
	h := w.window6(d)
	size, special := header.Plain6(h, d.Len)
	if size == 0 {
		s.SeekNothing()
		return 0
	}
	a, b, c, e, ports := header.PlainKey6(h)
	w.flows.Seek6(s, a, b, c, e, ports, header.PlainProto6(h))
	w.b.anyLong = true
	if special {
		return 0
	}
	return plain(size) | plainV6
}

// finish is the last stage.
func (w *Worker) finish(first, end int) {
	descs, plains, searches := w.b.desc[first:end], w.b.plain[first:end], w.b.search[first:end]
	for i := range descs {
		d, p := descs[i], plains[i]
		if p&plainV6 != 0 {
			if !w.finish6(d, uint32(p&^plainV6), &searches[i]) {
				w.judgeLeft(first+i, end)
			}
			continue
		}
		if p == 0 || !w.finish4(d, uint32(p), &searches[i]) {
			w.judgeLeft(first+i, end)
		}
	}
}

// finish4 forwards a plain IPv4 packet that ends at byte end of its frame, or returns false and
// has changed nothing.
func (w *Worker) finish4(d Desc, end uint32, s *flowtable.Search) bool {
	h := w.window4(d)
	addrs, ports := header.PlainKey4(h)
	proto := header.PlainProto4(h)
	f, side := w.flows.Match4(s, addrs, ports, proto, w.ticks)
	if f == nil {
		if f, side = w.more4(h, s); f == nil {
			return false
		}
	}
	hop := w.boundHop(f.BoundTo(side))
	if hop == nil || end > hop.PlainEnd() {
		return false
	}
	q, ref := w.toLink[hop.Link], f.BackendRef()
	if q == nil || !w.serves(ref, proto) {
		return false
	}
	addrs, ports = f.Leaving4(side)
	nat.TranslatePlain4(h, addrs, ports, f.Delta(side))
	*(*[12]byte)(h[0:12]) = *hop.MACs()
	f.Seen(w.ticks)
	w.stats.Backends.Count(ref, uint8(side), d.Len)
	if !q.put(Desc{d.Addr, end}) {
		w.queue(q.link, Desc{d.Addr, end})
	}
	return true
}

// finish6 is finish4 for IPv6, line by line: a call for what both do costs each packet a nanosecond.
func (w *Worker) finish6(d Desc, end uint32, s *flowtable.Search) bool {
	h := w.window6(d)
	a, b, c, e, ports := header.PlainKey6(h)
	proto := header.PlainProto6(h)
	f, side := w.flows.Match6(s, a, b, c, e, ports, proto, w.ticks)
	if f == nil {
		if f, side = w.more6(h, s); f == nil {
			return false
		}
	}
	hop := w.boundHop(f.BoundTo(side))
	if hop == nil || end > hop.PlainEnd() {
		return false
	}
	q, ref := w.toLink[hop.Link], f.BackendRef()
	if q == nil || !w.serves(ref, proto) {
		return false
	}
	leaving, ports := f.Leaving6(side)
	nat.TranslatePlain6(h, leaving, ports, f.Delta(side))
	*(*[12]byte)(h[0:12]) = *hop.MACs()
	f.Seen(w.ticks)
	w.stats.Backends.Count(ref, uint8(side), d.Len)
	if !q.put(Desc{d.Addr, end}) {
		w.queue(q.link, Desc{d.Addr, end})
	}
	return true
}

// boundHop returns the hop of that ID, or nil if the flow was not bound by the view. The compiler inlines it.
func (w *Worker) boundHop(binding uint32, id uint16) *nexthop.Hop {
	if binding != w.view.Generation {
		return nil
	}
	return w.c.Hops.Hop(nexthop.ID(id)) // there is no hop 0
}

// more4 and more6 look on where Match4 and Match6 found nothing. They read the key again: a caller that kept it for this
// rare case would put it on the stack for each packet.
//
//go:noinline
func (w *Worker) more4(h *[header.Window4Bytes]byte, s *flowtable.Search) (*flowtable.Flow, flowtable.Side) {
	addrs, ports := header.PlainKey4(h)
	return w.flows.MatchMore(s, addrs, 0, 0, 0, ports, header.PlainProto4(h), w.ticks)
}

//go:noinline
func (w *Worker) more6(h *[header.Window6Bytes]byte, s *flowtable.Search) (*flowtable.Flow, flowtable.Side) {
	a, b, c, e, ports := header.PlainKey6(h)
	return w.flows.MatchMore(s, a, b, c, e, ports, header.PlainProto6(h), w.ticks)
}

// serves says that a flow need not be judged for its backend's sake: it is not of UDP, or the backend serves. In
// this order, because nearly all backends do, and TCP and UDP are mixed.
func (w *Worker) serves(ref uint32, proto uint8) bool {
	return w.snap.Serves(services.BackendRef(ref)) || proto != header.ProtoUDP
}
