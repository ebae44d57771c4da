package fastpath

import (
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

const (
	descBytes = 16 // of a Desc
	lineBytes = 64 // of a cache line
)

// fetchAtOnce is how many headers are asked for in between: one call for each costs more
// than it brings, and all of a group at once are more misses than there is room for.
const fetchAtOnce = 4

// fetchHeaders asks for the headers of packets of the batch.
func (w *Worker) fetchHeaders(first, end int) {
	if first < end {
		d := w.b.desc[first:end]
		prefetch.WriteAll(&w.mem[0], &d[0].Addr, descBytes, len(d))
		if w.b.long {
			prefetch.WriteAll(&w.mem[lineBytes], &d[0].Addr, descBytes, len(d))
		}
	}
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
		if d.Addr+header.Window6Bytes > uint64(len(w.mem)) {
			plains[i] = 0
			s.SeekNothing()
			continue
		}
		h := (*[header.Window4Bytes]byte)(w.mem[d.Addr:])
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
	h := (*[header.Window6Bytes]byte)(w.mem[d.Addr:])
	size, special := header.Plain6(h, d.Len)
	if size == 0 {
		s.SeekNothing()
		return 0
	}
	var addrs [4]uint64
	ports := header.PlainKey6(h, &addrs)
	w.flows.Seek6(s, &addrs, ports, header.PlainProto6(h))
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
				w.judgeAny(d)
			}
			continue
		}
		if p == 0 || !w.finish4(d, uint32(p), &searches[i]) {
			w.judgeAny(d)
		}
	}
}

// finish4 forwards a plain IPv4 packet that ends at byte end of its frame, or returns false and
// has changed nothing.
func (w *Worker) finish4(d Desc, end uint32, s *flowtable.Search) bool {
	h := (*[header.Window4Bytes]byte)(w.mem[d.Addr:])
	addrs, ports := header.PlainKey4(h)
	proto := header.PlainProto4(h)
	f, side := w.flows.Match4(s, addrs, ports, proto, w.ticks)
	if f == nil {
		return false
	}
	binding, id := f.BoundTo(side)
	hop := w.c.Hops.Hop(nexthop.ID(id)) // there is no hop 0
	if !w.usual(binding, hop) {
		return false
	}
	q, ref := w.toLink[hop.Link], f.BackendRef()
	if !carries(q, hop, end) || !w.serves(ref, proto) {
		return false
	}
	addrs, ports = f.Leaving4(side)
	nat.TranslatePlain4(h, addrs, ports, f.Delta(side))
	*(*[6]byte)(h[0:6]) = hop.DstMAC
	*(*[6]byte)(h[6:12]) = hop.SrcMAC
	f.Seen(w.ticks)
	w.stats.Backends.Count(ref, uint8(side), d.Len)
	if !q.put(Desc{d.Addr, end}) {
		w.queue(q.link, Desc{d.Addr, end})
	}
	return true
}

// finish6 is finish4 for IPv6, line by line: a call for what both do costs each packet a nanosecond.
func (w *Worker) finish6(d Desc, end uint32, s *flowtable.Search) bool {
	h := (*[header.Window6Bytes]byte)(w.mem[d.Addr:])
	var addrs [4]uint64
	ports := header.PlainKey6(h, &addrs)
	proto := header.PlainProto6(h)
	f, side := w.flows.Match6(s, &addrs, ports, proto, w.ticks)
	if f == nil {
		return false
	}
	binding, id := f.BoundTo(side)
	hop := w.c.Hops.Hop(nexthop.ID(id)) // there is no hop 0
	if !w.usual(binding, hop) {
		return false
	}
	q, ref := w.toLink[hop.Link], f.BackendRef()
	if !carries(q, hop, end) || !w.serves(ref, proto) {
		return false
	}
	leaving, ports := f.Leaving6(side)
	nat.TranslatePlain6(h, leaving, ports, f.Delta(side))
	*(*[6]byte)(h[0:6]) = hop.DstMAC
	*(*[6]byte)(h[6:12]) = hop.SrcMAC
	f.Seen(w.ticks)
	w.stats.Backends.Count(ref, uint8(side), d.Len)
	if !q.put(Desc{d.Addr, end}) {
		w.queue(q.link, Desc{d.Addr, end})
	}
	return true
}

// usual says whether a packet of a flow may take the hop as it is: the flow is bound by the current view, and
// the hop is an untagged neighbour that is resolved.
func (w *Worker) usual(binding uint32, hop *nexthop.Hop) bool {
	return binding == w.view.Generation && hop != nil && hop.Kind == nexthop.OnLink && hop.Ready && hop.VLANs == 0
}

// carries says whether a packet that ends at byte end of its frame fits the hop whole.
func carries(q *egressQueue, hop *nexthop.Hop, end uint32) bool {
	return q != nil && (hop.MTU == 0 || end-header.EthernetBytes <= uint32(hop.MTU))
}

// serves says that a flow need not be judged for its backend's sake: it is not of UDP, or the backend serves. In
// this order, because nearly all backends do, and TCP and UDP are mixed.
func (w *Worker) serves(ref uint32, proto uint8) bool {
	return w.snap.Serves(services.BackendRef(ref)) || proto != header.ProtoUDP
}
