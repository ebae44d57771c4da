package fastpath

import (
	"unsafe"

	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/fastpath/stats"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat"
	"sluice.dev/sluice/nat/header"
)

// Most packets are plain (nat/header/plain.go) and do not change the state of their flow. A worker
// takes them through three stages, in groups, so that the cache misses of one group overlap with
// the work on others:
//
//	round     time ────────────────────▶
//	  0       inspect 0
//	  1       inspect 1            find 0
//	  2       inspect 2  finish 0  find 1
//	  3       inspect 3  finish 1  find 2
//
//	inspect   check the headers, hash, prefetch the bucket of the index
//	find      match tags, prefetch the flow
//	finish    compare, rewrite, queue; or handleSlow
//
// prefetch.go has the order of all prefetches. finish calls the slow path (handleSlow and
// handleAny) for each packet that is not plain, and for each plain packet that needs a decision (a
// flow that must be made or ended, an unresolved neighbour, a backend that is gone). So packets
// leave in the order of their arrival. handleAny can handle any packet, including plain ones: the
// tests use it as the oracle.

// count counts a batch of n packets and records the link that delivered it.
func (w *Worker) count(link, n int) {
	w.b.origin = w.originOf(link)
	w.n.rx += uint64(n)
	if w.b.kernel {
		w.n.kernelRx += uint64(n)
	}
}

// handleBatch decides about the n packets of the batch, and carries out the verdicts.
func (w *Worker) handleBatch(n int) {
	w.b.fetch.begin(w.b.desc[:min(groupSize, n)])
	w.ahead.end = 0
	w.b.fetch.fetchHeaders(&w.memory)
	for at := 0; at < n+2*groupSize; at += groupSize {
		if at < n {
			w.b.fetch.headers = w.b.desc[min(at+groupSize, n):min(at+2*groupSize, n)]
			w.inspect(at, min(at+groupSize, n))
		}
		if i := at - groupSize; i >= 0 && i < n {
			w.b.fetch.flows = w.b.group(i).search[:min(groupSize, n-i)]
		}
		if i := at - 2*groupSize; i >= 0 {
			w.finish(i, min(i+groupSize, n))
		}
		w.b.fetch.fetchHeaders(&w.memory)
		w.b.fetch.fetchFlows(w.flows, groupSize) // find
	}
}

// inspect is the first stage, for the packets from first to end of a batch.
func (w *Worker) inspect(first, end int) {
	group := w.b.group(first).search[:end-first]
	fetch, out := &w.b.fetch, &group[0]
	bytes, v6 := w.memory.Inspect(w.b.desc[first:end], fetch.headers, fetch.v6, &out.Plain, unsafe.Sizeof(*out))
	fetch.fetched(end - first)
	w.n.rxBytes += bytes
	fetch.seenV6 = fetch.seenV6 || v6
	w.flows.FetchBuckets(group)
}

// finish is the last stage. finishPlain matches width packets at a time and stops at the first
// packet that it cannot forward (for example to a tagged hop); the packets behind that one are
// matched again. So width shrinks when finishPlain stops early, and grows again later.
func (w *Worker) finish(first, end int) {
	for width := groupSize; first < end; {
		upTo := min(first+width, end)
		if w.c.StrictReversePath {
			if upTo = w.onPath(first, upTo); upTo == first {
				w.handleSlow(first, end) // looks up the flow itself, and may drop the packet
				first++
				continue
			}
		}
		if w.tunnels.first {
			n := w.finishDirect(first, upTo)
			w.tunnels.first = first+n == upTo
			if n > 0 {
				first += n
				continue
			}
		}
		n, matched := w.finishPlain(first, upTo)
		if first += n; first == upTo {
			width = min(2*width, groupSize)
			continue
		}
		width = max(n, 1)
		if matched && w.tunnels.VNI != 0 && w.tunneled(first) {
			if n := w.finishDirect(first, upTo); n > 0 {
				if first += n; first == upTo {
					width, w.tunnels.first = min(2*width, groupSize), true
				}
				continue
			}
		}
		if matched && w.rebind(first, upTo) {
			width = groupSize
			continue
		}
		if !matched && w.b.searchOf(first).End != 0 && w.flows.More(w.b.searchOf(first)) {
			continue
		}
		w.handleSlow(first, end)
		first++
	}
}

// finishPlain forwards plain packets of a group, and stops before the first packet that it cannot
// forward. It returns the number of forwarded packets, and whether the packet at which it stopped
// has matched a flow. Each step is a loop over all packets: short loops without calls keep their
// variables in registers. The loop below does not read headers: frames are a power of two apart, so
// their headers share few sets of the first-level cache, which may evict them between two loops.
func (w *Worker) finishPlain(first, end int) (n int, matched bool) {
	var flows [groupSize]*flowtable.Flow
	var rewrites [groupSize]header.Rewrite
	var counted [groupSize]stats.Entry
	g, from, to := w.b.group(first&^(groupSize-1)), uint(first)%groupSize, uint(end-1)%groupSize+1
	to = from + uint(w.flows.Match(g.search[from:to], flows[from:to], rewrites[from:to], w.ticks))
	if w.b.fetch.v6 {
		w.b.fetch.fetchFlows(w.flows, groupSize/2)
	}
	i := from
	for ; i < to && i < groupSize; i++ {
		d, end, f, side := g.desc[i], g.search[i].End, flows[i], g.search[i].Side()
		binding, id := f.BoundTo(side)
		if binding != w.planner.Binding { // as in boundHop; rebind binds the flow
			break
		}
		hop := w.c.Hops.Hop(nexthop.ID(id))
		if hop == nil || end > hop.PlainEnd() || end == 0 {
			break
		}
		// Only a UDP flow ends when its backend no longer serves. The backend is checked before the
		// protocol, because nearly all backends serve, while TCP and UDP are mixed. Ref 0 is left
		// to handleAny, because it is not counted.
		ref := f.BackendRef()
		if !w.planner.Snap.Serves(services.BackendRef(ref)) {
			if ref == 0 || f.Proto() == header.ProtoUDP {
				break
			}
		}
		q := w.egress.to[hop.Link]
		if q == nil || uint(q.n) >= uint(len(q.desc)) {
			break
		}
		// The frame is rewritten below, before the link reads it: the queue is transmitted only at
		// the end of the step, or when handleAny finds it full.
		q.desc[q.n] = Desc{Addr: d.Addr, Len: end}
		q.n++
		hop.Use()
		rewrites[i].MACs, counted[i] = hop.MACs(), stats.MakeEntry(ref, uint8(side), d.Len)
		f.Seen(w.ticks)
	}
	if i == from {
		return 0, i < to
	}
	if w.tap != nil {
		w.tapGroup(first, i, &flows) // with few arguments: others would take registers from the loop
	}
	if w.flows.Counts() {
		w.countGroup(first, i)
	}
	nat.TranslatePlain(&w.memory, g.desc[from:i], rewrites[from:i], w.b.fetch.headers, w.b.fetch.v6)
	w.b.fetch.fetched(int(i - from))
	w.stats.Backends.Add(counted[from:i])
	return int(i - from), i < to
}

// countGroup counts the packets of a group that finishPlain forwards, from packet first of the
// batch to position end of the group, for their flows.
func (w *Worker) countGroup(first int, end uint) {
	g, from := w.b.group(first&^(groupSize-1)), uint(first)%groupSize
	w.flows.FetchAccounts(g.search[from:end])
	for i := from; i < end; i++ {
		w.flows.CountMatched(&g.search[i], g.desc[i].Len)
	}
}

// match returns the searches of the packets from first to end, which are of one group, up to the
// first packet that matches no flow. It writes their flows to flows.
func (w *Worker) match(first, end int, flows *[groupSize]*flowtable.Flow) []flowtable.Search {
	var rewrites [groupSize]header.Rewrite
	group := w.b.group(first &^ (groupSize - 1)).search[first%groupSize : (end-1)%groupSize+1]
	return group[:w.flows.Match(group, flows[:len(group)], rewrites[:len(group)], w.ticks)]
}

// rebind binds the flows of the packets from first to end to the current view, if the flow of the
// first packet, which has matched, is bound to another one. So a route change costs two lookups for
// each flow, and no flow leaves the plain path. rebind returns whether it has bound the first
// packet's flow to the current view. It returns false if the flow was already bound to it
// (finishPlain stopped for another reason), if another worker's view is newer, or if the flow's
// frontend went to another service port (Planner.Bind). rebind is not part of finishPlain's loop: a
// call there makes every packet slower by 3 to 8 %.
func (w *Worker) rebind(first, end int) bool {
	s := w.b.searchOf(first)
	if w.bound(s, w.flows.Flow(w.flows.Ref(s))) {
		return false
	}
	var flows [groupSize]*flowtable.Flow
	group := w.match(first, end, &flows)
	for i := range group {
		if !w.bound(&group[i], flows[i]) {
			w.planner.Bind(w.flows.Ref(&group[i]))
		}
	}
	return len(group) > 0 && w.bound(s, flows[0])
}

// bound reports whether a packet's flow is bound to the current view.
func (w *Worker) bound(s *flowtable.Search, f *flowtable.Flow) bool {
	binding, _ := f.BoundTo(s.Side())
	return binding == w.planner.Binding
}

// tunneled reports whether the flow of a packet, which has matched, goes through a tunnel. It saves
// most packets of the slow path finishDirect, which matches them again.
func (w *Worker) tunneled(first int) bool {
	s := w.b.searchOf(first)
	_, id := w.flows.Flow(w.flows.Ref(s)).BoundTo(s.Side())
	return nexthop.ID(id) == nexthop.Tunnel
}

// onPath returns the end of the packets of a group, starting at first, that finishPlain may
// forward: the first packet that is offPath or matches no flow. It returns first only if that
// packet is offPath. It is not part of finishPlain's loop, which it would slow by half a percent if
// the reverse path is not strict.
func (w *Worker) onPath(first, end int) int {
	var flows [groupSize]*flowtable.Flow
	group := w.match(first, end, &flows)
	for i := range group {
		if group[i].Side() != flowtable.ReplySide {
			continue
		}
		_, id := flows[i].BoundTo(flowtable.ClientSide)
		hop := w.c.Hops.Hop(nexthop.ID(id))
		if hop == nil || !w.cameFrom(w.b.origin, hop, nil) { // plain packets have no tags
			return first + i
		}
	}
	return first + max(1, len(group))
}
