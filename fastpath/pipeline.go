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
//	          time ───────────────────────────────────▶
//	group 0   inspect │ fetch   │ finish  │
//	group 1           │ inspect │ fetch   │ finish  │
//	group 2           │         │ inspect │ fetch   │ finish
//
//	inspect   judge the headers, hash, ask for the bucket of the index
//	fetch     match tags, ask for the flow
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

// plain is what inspect found out about a packet.
type plain struct {
	end    uint16 // of the IP packet, bytes from the frame's start; 0: not plain
	v6     bool
	settle bool // a TCP segment that opens or closes: searched for, and then judged by judgeAny
}

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
	for i := range min(groupSize, n) {
		prefetch.Write(&w.mem[w.b.desc[i].Addr])
	}
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

// inspect is the first stage, of the packets from first to end of a batch of n.
func (w *Worker) inspect(first, end, n int) {
	b := &w.b
	for i := first; i < end; i++ {
		if next := i + groupSize; next < n {
			prefetch.Write(&w.mem[b.desc[next].Addr])
		}
		d := b.desc[i]
		w.n.rxBytes += uint64(d.Len)
		p, s := &b.plain[i], &b.search[i]
		s.SeekNothing()
		p.end = 0
		if d.Addr+header.Window4Bytes > uint64(len(w.mem)) {
			continue
		}
		h := (*[header.Window4Bytes]byte)(w.mem[d.Addr:])
		if size, special := header.Plain4(h, d.Len); size != 0 {
			*p = plain{uint16(size), false, special}
			addrs, ports := header.PlainKey4(h)
			w.flows.Seek4(s, addrs, ports, header.PlainProto4(h))
			continue
		}
		if d.Addr+header.Window6Bytes > uint64(len(w.mem)) {
			continue
		}
		h6 := (*[header.Window6Bytes]byte)(w.mem[d.Addr:])
		if size, special := header.Plain6(h6, d.Len); size != 0 {
			*p = plain{uint16(size), true, special}
			addrs, ports := header.PlainKey6(h6)
			w.flows.Seek6(s, &addrs, ports, header.PlainProto6(h6))
		}
	}
	w.flows.FetchBuckets(b.search[first:end])
}

// finish is the last stage.
func (w *Worker) finish(first, end int) {
	b := &w.b
	for i := first; i < end; i++ {
		p := b.plain[i]
		switch {
		case p.end == 0 || p.settle:
		case p.v6:
			if w.finish6(b.desc[i], uint32(p.end), &b.search[i]) {
				continue
			}
		default:
			if w.finish4(b.desc[i], uint32(p.end), &b.search[i]) {
				continue
			}
		}
		w.judgeAny(b.desc[i])
	}
}

// finish4 forwards a plain IPv4 packet, or returns false and has changed nothing.
func (w *Worker) finish4(d Desc, end uint32, s *flowtable.Search) bool {
	h := (*[header.Window4Bytes]byte)(w.mem[d.Addr:])
	addrs, ports := header.PlainKey4(h)
	proto := header.PlainProto4(h)
	f, side := w.flows.Match4(s, addrs, ports, proto, w.ticks)
	if f == nil {
		return false
	}
	hop := w.express(f, side, proto, end)
	if hop == nil {
		return false
	}
	addrs, ports = f.Leaving4(side)
	nat.TranslatePlain4(h, addrs, ports, f.Delta(side))
	*(*[6]byte)(h[0:6]) = hop.DstMAC
	*(*[6]byte)(h[6:12]) = hop.SrcMAC
	w.leave(f, side, d, end, hop)
	return true
}

// finish6 is finish4 for IPv6.
func (w *Worker) finish6(d Desc, end uint32, s *flowtable.Search) bool {
	h := (*[header.Window6Bytes]byte)(w.mem[d.Addr:])
	addrs, ports := header.PlainKey6(h)
	proto := header.PlainProto6(h)
	f, side := w.flows.Match6(s, &addrs, ports, proto, w.ticks)
	if f == nil {
		return false
	}
	hop := w.express(f, side, proto, end)
	if hop == nil {
		return false
	}
	leaving, ports := f.Leaving6(side)
	nat.TranslatePlain6(h, leaving, ports, f.Delta(side))
	*(*[6]byte)(h[0:6]) = hop.DstMAC
	*(*[6]byte)(h[6:12]) = hop.SrcMAC
	w.leave(f, side, d, end, hop)
	return true
}

// express returns the next hop of a packet of a flow if all about it is as it was: the
// flow is bound by the current view, its hop is an untagged neighbour on a link that is resolved and
// takes the packet whole, and, of UDP, its backend still serves. Nil if not.
func (w *Worker) express(f *flowtable.Flow, side flowtable.Side, proto uint8, end uint32) *nexthop.Hop {
	binding, toBackend, toClient := f.Bound()
	id := toBackend
	if side == flowtable.ReplySide {
		id = toClient
	}
	if binding != w.view.Generation || id == 0 {
		return nil
	}
	hop := w.c.Hops.Hop(nexthop.ID(id))
	if hop == nil || hop.Kind != nexthop.OnLink || !hop.Ready || hop.VLANs != 0 || int(hop.Link) >= len(w.c.Egress) || hop.MTU != 0 && end-header.EthernetBytes > uint32(hop.MTU) {
		return nil
	}
	if proto == header.ProtoUDP && w.datagram(services.BackendRef(f.BackendRef()), side) != Stands {
		return nil
	}
	return hop
}

// leave counts a packet that finish rewrote, and queues it without what follows its end.
func (w *Worker) leave(f *flowtable.Flow, side flowtable.Side, d Desc, end uint32, hop *nexthop.Hop) {
	f.Seen(w.ticks)
	w.countBackend(f, side, d.Len)
	w.queue(w.c.Egress[hop.Link], Desc{d.Addr, end})
}
