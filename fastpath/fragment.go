package fastpath

import (
	"sluice.dev/sluice/fastpath/decide"
	"sluice.dev/sluice/nat/fragment"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/reason"
)

// firstFragment records the ports of a datagram for all workers.
func (w *Worker) firstFragment(p *packet) reason.Drop {
	of := w.c.Fragments.Datagram(p.frame, &p.Packet)
	id, status := w.c.Fragments.Record(uint64(w.planner.Now), of, p.Tuple.SrcPort, p.Tuple.DstPort)
	p.id = id
	switch status {
	case fragment.Overlap:
		return reason.FragmentOverlap
	case fragment.Full:
		return reason.FragmentLimit
	}
	return reason.None
}

// laterFragment gets the ports that the datagram's first fragment had, or holds the fragment until
// they are known.
func (w *Worker) laterFragment(p *packet) decide.Verdict {
	of := w.c.Fragments.Datagram(p.frame, &p.Packet)
	first, status := w.c.Fragments.Later(uint64(w.planner.Now), of)
	switch status {
	case fragment.Busy:
		w.frags.again = true
	case fragment.Unknown:
	default:
		return w.handleLater(p, first, status)
	}
	if !w.holdFragment(p, of) {
		return drop(reason.FragmentLimit)
	}
	return queued
}

// handleLater decides about a later fragment whose first one is known.
func (w *Worker) handleLater(p *packet, f fragment.First, s fragment.Status) decide.Verdict {
	if s == fragment.Overlap {
		return drop(reason.FragmentOverlap)
	}
	p.Tuple.Proto = f.Proto // over IPv6, only the first fragment has it
	switch p.Tuple.Proto {
	case header.ProtoTCP, header.ProtoUDP:
	case header.ProtoSCTP:
		return w.sctpFragment(p)
	case header.ProtoICMP, header.ProtoICMPv6:
		return w.laterICMP(p, f)
	default:
		return w.withoutFlow(p)
	}
	p.id = f.ID
	p.Tuple.SrcPort, p.Tuple.DstPort = f.Src, f.Dst
	p.hash = w.flows.Hash(&p.Tuple)
	return w.handleFlow(p, nil)
}

// releaseFragments drops held fragments that have waited too long, and looks up the first fragments
// of the others again if any worker has recorded a first fragment since. If a worker records one
// during the lookups, they may miss it, but the next comparison of the count shows it.
func (w *Worker) releaseFragments() (moved int) {
	q := &w.frags
	if q.count == 0 || w.planner.Now < q.retryAt {
		return 0
	}
	q.retryAt = w.planner.Now + retryEvery
	if recorded := w.c.Fragments.Recorded(); recorded != q.tried || q.again {
		q.tried, q.again = recorded, false
		moved = w.releaseKnown()
	}
	for q.first != 0 && w.planner.Now >= q.slots[q.first].deadline {
		w.dropped(w.unhold(q.first).desc, reason.FragmentTimeout)
		moved++
	}
	return moved
}

// releaseKnown sends the held fragments whose first one is known, oldest first.
func (w *Worker) releaseKnown() (moved int) {
	q := &w.frags
	for i := q.first; i != 0; {
		at := i
		i = q.slots[i].next
		f, status := w.c.Fragments.Later(uint64(w.planner.Now), q.slots[at].of)
		if status == fragment.Unknown || status == fragment.Busy {
			q.again = q.again || status == fragment.Busy
			continue
		}
		h, p := w.unhold(at), &w.b.pkt
		w.parse(p, h.desc, w.originOf(h.link)) // cannot fail: it parsed before and has not changed
		if w.tap != nil {
			w.tapBegin(p)
		}
		w.carryOut(p, w.handleLater(p, f, status))
		moved++
	}
	return moved
}

// sctpFragment decides about a fragment of SCTP, which cannot be translated because the CRC covers
// the whole packet. It is dropped if it is for an address that the node does not share, or if it is
// a first fragment of a known flow or for a frontend. Other fragments may belong to the node's own
// traffic, and go to the kernel. The kernel cannot reassemble a dropped packet from them, because
// it never gets the first fragment.
func (w *Worker) sctpFragment(p *packet) decide.Verdict {
	dropped := !p.kernel && w.planner.Snap.Routed(p.Tuple.Dst)
	if p.Fragment == header.FirstFragment {
		ref, _ := w.flows.Lookup(w.flows.Hash(&p.Tuple), &p.Tuple, w.planner.Now)
		dropped = dropped || ref != 0 || w.planner.Snap.Frontend(&p.Tuple) != nil
	}
	if dropped {
		return drop(reason.SCTPFragment)
	}
	return w.withoutFlow(p)
}

// holdFragment keeps a later fragment until its first one is known. It evicts others if there is no
// room. It returns false if the frames held by other queues leave no room.
func (w *Worker) holdFragment(p *packet, of fragment.Datagram) bool {
	q := &w.frags
	if w.n.heldMore-q.more+w.chains.Buffers(p.desc) > q.limit() {
		return false
	}
	for !w.mayHold(p.desc, q.count, q.limit()) {
		w.dropped(w.unhold(q.victim()).desc, reason.FragmentLimit)
	}
	q.add(heldFragment{desc: p.desc, of: of, deadline: w.planner.Now + q.wait, link: p.link})
	q.more += w.chains.Buffers(p.desc) - 1
	w.countHeld(p.desc, 1)
	if w.tap != nil {
		w.tapWait(p)
	}
	return true
}

// unhold takes a fragment out of the queue. It must be called before the fragment is sent, which
// may shorten its chain.
func (w *Worker) unhold(i uint32) heldFragment {
	h := w.frags.take(i)
	w.frags.more -= w.chains.Buffers(h.desc) - 1
	w.countHeld(h.desc, -1)
	return h
}
