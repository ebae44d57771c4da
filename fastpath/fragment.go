package fastpath

import (
	"time"

	"sluice.dev/sluice/fastpath/decide"
	"sluice.dev/sluice/fastpath/stats"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/fragment"
	"sluice.dev/sluice/nat/header"
)

// fragmentQueue holds later fragments that came before their first one. All workers share the ports
// of datagrams (fragment.Table), so it does not matter which of them receives the first fragment.
//
// They wait for a second by default. Reordering within a datagram takes milliseconds; the full
// reassembly time of RFC 791 would only serve senders that never send a first fragment.
type fragmentQueue struct {
	held    []heldFragment // capacity is fixed
	wait    flowtable.Time
	retryAt flowtable.Time
	id      uint16 // IPv4 identification of the datagram being judged
}

type heldFragment struct {
	desc     Desc
	key      uint64
	deadline flowtable.Time
	link     int
}

func newFragmentQueue(limit int, wait time.Duration) fragmentQueue {
	return fragmentQueue{held: make([]heldFragment, 0, limit), wait: flowtable.Time(wait)}
}

func (q *fragmentQueue) len() int { return len(q.held) }

// firstFragment records the ports of a datagram, for all workers.
func (w *Worker) firstFragment(p *header.Packet) stats.DropReason {
	id, status := w.c.Fragments.Record(uint64(w.planner.Now), w.c.Fragments.Key(p), p.Tuple.SrcPort, p.Tuple.DstPort)
	w.frags.id = id
	switch status {
	case fragment.Overlap:
		return stats.FragmentOverlap
	case fragment.Full:
		return stats.FragmentLimit
	}
	return stats.None
}

// laterFragment finds the ports that the datagram's first fragment carried, or
// holds the fragment until they are known.
func (w *Worker) laterFragment(d Desc, p *header.Packet) decide.Verdict {
	key := w.c.Fragments.Key(p)
	v, known := w.judgeFragment(d, p, key)
	if known {
		return v
	}
	q := &w.frags
	if !w.mayHold(d, len(q.held), cap(q.held)) {
		return drop(stats.FragmentLimit)
	}
	q.held = append(q.held, heldFragment{d, key, w.planner.Now + q.wait, w.b.link})
	w.countHeld(d, 1)
	return queued
}

// judgeFragment judges a later fragment whose first one is known.
func (w *Worker) judgeFragment(d Desc, p *header.Packet, key uint64) (v decide.Verdict, known bool) {
	src, dst, id, status := w.c.Fragments.Lookup(uint64(w.planner.Now), key)
	switch status {
	case fragment.Unknown:
		return decide.Verdict{}, false
	case fragment.Overlap:
		return drop(stats.FragmentOverlap), true
	}
	if isICMP(p) {
		return w.notOurs(d, p), true
	}
	w.frags.id = id
	p.Tuple.SrcPort, p.Tuple.DstPort = src, dst
	return w.judgeFlow(d, p, w.flows.Hash(&p.Tuple), nil), true
}

// releaseFragments looks up again the first fragments of held ones.
func (w *Worker) releaseFragments() (moved int) {
	q := &w.frags
	if len(q.held) == 0 || w.planner.Now < q.retryAt {
		return 0
	}
	q.retryAt = w.planner.Now + retryEvery
	kept := q.held[:0]
	for _, h := range q.held {
		w.b.link, w.b.kernel = h.link, h.link == w.c.Host
		p := &w.b.pkt
		w.parse(h.desc, p)      // cannot fail: it parsed before and has not changed
		w.countHeld(h.desc, -1) // before it is sent, which may cut it
		v, known := w.judgeFragment(h.desc, p, h.key)
		switch {
		case known:
		case w.planner.Now < h.deadline:
			w.countHeld(h.desc, 1)
			kept = append(kept, h)
			continue
		default:
			v = drop(stats.FragmentTimeout)
		}
		moved++
		w.carryOut(h.desc, p, v)
	}
	q.held = kept
	return moved
}

// sctpFragment decides about a fragment of SCTP, which cannot be translated: the CRC is
// the whole packet's. It is dropped if it is for an address that the node does not share, or is a
// first fragment of a flow or for a frontend. Other fragments may be the node's own, and go to the
// kernel. The node reassembles no packet of ours, as it never gets the first fragment.
func (w *Worker) sctpFragment(d Desc, p *header.Packet) decide.Verdict {
	ours := !w.b.kernel && w.planner.Snap.VIPOnly(p.Tuple.Dst)
	if p.Fragment == header.FirstFragment {
		ref, _ := w.flows.Lookup(w.flows.Hash(&p.Tuple), &p.Tuple, w.planner.Now)
		ours = ours || ref != 0 || w.planner.Snap.Frontend(&p.Tuple) != nil
	}
	if ours {
		return drop(stats.SCTPFragment)
	}
	return w.notOurs(d, p)
}
