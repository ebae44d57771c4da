package fastpath

import (
	"unsafe"

	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/fastpath/stats"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/flowtable/prefetch"
	"sluice.dev/sluice/nat"
	"sluice.dev/sluice/nat/header"
)

// Most packets are plain (nat/header/plain.go) and of a flow that stays as it is. A worker takes them
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

// searches are those of the groups that are under way at once, which are three, and a power of two: all of them stay in the
// first-level cache.
const searches = 4 * groupSize

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
			w.flows.FetchFlows(w.b.group(i).search[:min(groupSize, n-i)])
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

// group is the part of a batch that takes a stage together.
type group struct {
	desc   *[groupSize]Desc
	plain  *[groupSize]plain
	search *[groupSize]flowtable.Search
}

// group returns that which begins with packet first.
func (b *batch) group(first int) group {
	return group{(*[groupSize]Desc)(b.desc[first:]), (*[groupSize]plain)(b.plain[first:]), (*[groupSize]flowtable.Search)(b.search[first%searches:])}
}

// searchOf returns the search of packet i, which has not left finish.
func (b *batch) searchOf(i int) *flowtable.Search { return &b.search[i%searches] }

// inspect is the first stage, of the packets from first to end of a batch of n.
func (w *Worker) inspect(first, end, n int) {
	g, packets := w.b.group(first), min(uint(end-first), groupSize)
	for at := uint(0); at < packets; at += fetchAtOnce {
		next := first + int(at) + groupSize
		w.fetchHeaders(next, min(next+fetchAtOnce, n))
		for i, end := at, min(at+fetchAtOnce, packets); i < end; i++ {
			d, s := g.desc[i], &g.search[i]
			if d.Addr > w.windows || !header.MayBePlain4(w.window4(d)) {
				i = w.inspect6(g, i, end) - 1
				continue
			}
			w.n.rxBytes += uint64(d.Len)
			h := w.window4(d)
			if !header.PlainSum4(h) {
				g.plain[i] = 0
				s.SeekNothing()
				continue
			}
			size, verdict := header.PlainIP4(h, d.Len)
			proto := header.PlainProto4(h)
			transport, more := header.PlainTransport(header.PlainTransport4(h), proto, size-header.Plain4Bytes)
			if int32(verdict|transport) < 0 {
				g.plain[i] = 0
				s.SeekNothing()
				continue
			}
			addrs, ports := header.PlainKey4(h)
			w.flows.Seek4(s, addrs, ports, proto)
			g.plain[i] = plain(size & (more - 1))
		}
	}
	w.flows.FetchBuckets(g.search[:packets])
}

// inspect6 is inspect of packet first of a group, and of those behind it up to end, as long as none of them may be of IPv4. It returns
// the number of the next.
func (w *Worker) inspect6(g group, first, end uint) uint {
	i := first
	for ; i < end && i < groupSize; i++ {
		d, s := g.desc[i], &g.search[i]
		g.plain[i] = 0
		s.SeekNothing()
		if d.Addr > w.windows {
			w.n.rxBytes += uint64(d.Len)
			continue
		}
		h := w.window6(d)
		if i > first && header.MayBePlain4(w.window4(d)) {
			break
		}
		w.n.rxBytes += uint64(d.Len)
		size, verdict := header.PlainIP6(h, d.Len)
		t, proto := header.PlainTransport6(h), header.PlainProto6(h)
		transport, more := header.PlainTransport(t, proto, size-header.Plain6Bytes)
		if int32(verdict|transport) < 0 || header.Unsummed(t, proto) {
			continue
		}
		a, b, c, e, ports := header.PlainKey6(h)
		w.flows.Seek6(s, a, b, c, e, ports, proto)
		w.b.anyLong = true
		if more == 0 {
			g.plain[i] = plain(size) | plainV6
		}
	}
	return i
}

// finish is the last stage. What is matched at once and cannot be forwarded is matched again later, so width, which is how many packets are,
// shrinks where that happens, as with a tagged hop, by which no packet is forwarded here.
func (w *Worker) finish(first, end int) {
	for width := groupSize; first < end; {
		upTo := min(first+width, end)
		n, matched := w.finishPlain(first, upTo)
		if first += n; first == upTo {
			width = min(2*width, groupSize)
			continue
		}
		width = max(n, 1)
		if !matched && w.b.plain[first] != 0 && w.flows.More(w.b.searchOf(first)) {
			continue
		}
		w.judgeLeft(first, end)
		first++
	}
}

// finishPlain forwards plain packets of a group from the first on, up to one that it has changed nothing of. It returns
// their number, and whether that one has matched a flow. All packets take a step before the first takes the next: short loops
// that call nothing keep what they need in registers.
func (w *Worker) finishPlain(first, end int) (n int, matched bool) {
	var flows [groupSize]*flowtable.Flow
	var hops [groupSize]*nexthop.Hop
	var counted [groupSize]stats.Entry
	g, from, to := w.b.group(first&^(groupSize-1)), uint(first)%groupSize, uint(end-1)%groupSize+1
	to = from + uint(w.flows.Match(g.search[from:to], flows[from:to], w.ticks))
	i := from
	for ; i < to && i < groupSize; i++ {
		d, p, f, side := g.desc[i], g.plain[i], flows[i], g.search[i].Side()
		binding, id := f.BoundTo(side)
		if binding != w.view.Generation { // as in boundHop
			break
		}
		hop := w.c.Hops.Hop(nexthop.ID(id))
		end := uint32(p &^ plainV6)
		if hop == nil || end > hop.PlainEnd() || p == 0 {
			break
		}
		// A flow need not be judged for its backend's sake if it is not of UDP, or the backend serves. In this order, because
		// nearly all backends do, and TCP and UDP are mixed. Ref 0 is judgeAny's, because it is not counted.
		ref := f.BackendRef()
		if !w.snap.Serves(services.BackendRef(ref)) {
			if ref == 0 || f.Proto() == header.ProtoUDP {
				break
			}
		}
		q := w.toLink[hop.Link]
		if q == nil || uint(q.n) >= uint(len(q.desc)) {
			break
		}
		q.desc[q.n] = Desc{d.Addr, end} // nobody looks at it before the step ends, or judgeAny fills the queue
		q.n++
		hops[i], counted[i] = hop, stats.MakeEntry(ref, uint8(side), d.Len)
	}
	if i == from {
		return 0, i < to
	}
	w.translatePlain(first, i, &flows, &hops)
	w.stats.Backends.Add(counted[from:i])
	return int(i - from), i < to
}

// translatePlain gives packets from the first up to number end of its group the other side's tuples and the MAC addresses of
// their hops, and tells their flows. It alone writes to headers, and the loop before it does not look at them: where frames are a power of two apart,
// their headers share so few sets of the first-level cache that those of a group may not stay there from one loop to the next.
func (w *Worker) translatePlain(first int, end uint, flows *[groupSize]*flowtable.Flow, hops *[groupSize]*nexthop.Hop) {
	g := w.b.group(first &^ (groupSize - 1))
	for i := uint(first) % groupSize; i < end && i < groupSize; i++ {
		d, f, side := g.desc[i], flows[i], g.search[i].Side()
		delta := f.Delta(side)
		f.Seen(w.ticks)
		*(*[12]byte)(w.window4(d)[0:12]) = *hops[i].MACs()
		if g.plain[i]&plainV6 == 0 {
			h := w.window4(d)
			addrs, ports := f.Leaving4(side)
			nat.RewritePlain4(h, addrs, delta.IP)
			t, proto := header.PlainTransport4(h), header.PlainProto4(h)
			nat.RewritePorts(t, ports)
			nat.UpdateField(nat.ChecksumField(t, proto), delta.L4, proto)
			continue
		}
		h := w.window6(d)
		addrs, ports := f.Leaving6(side)
		nat.RewritePlain6(h, addrs)
		t, proto := header.PlainTransport6(h), header.PlainProto6(h)
		nat.RewritePorts(t, ports)
		nat.UpdateField(nat.ChecksumField(t, proto), delta.L4, proto)
	}
}

// boundHop returns the hop of that ID, or nil if the flow was not bound by the view. The compiler inlines it.
func (w *Worker) boundHop(binding uint32, id uint16) *nexthop.Hop {
	if binding != w.view.Generation {
		return nil
	}
	return w.c.Hops.Hop(nexthop.ID(id)) // there is no hop 0
}
