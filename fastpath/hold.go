package fastpath

import (
	"encoding/binary"
	"math/bits"
	"slices"
	"time"

	"sluice.dev/sluice/fastpath/decide"
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/reason"
)

// holdFor is how long a packet waits for the resolution of its next hop: one second, the time
// between two requests of Linux (net.ipv4.neigh.default.retrans_time_ms).
const holdFor = flowtable.Time(time.Second)

// retryEvery is the minimum time between two lookups for held packets.
const retryEvery = flowtable.Time(time.Millisecond)

// requestEvery is the time between repeated requests: a request is lost if there are too many.
const requestEvery = flowtable.Time(100 * time.Millisecond)

// precedence orders packets that wait for next hops. Packets of a lower precedence are evicted
// first.
type precedence uint8

const (
	// unproven: to an address that a sender may have invented: a client whose flow is not
	// established, or the sender of a ping. A flood from invented addresses makes as many
	// destinations.
	unproven precedence = iota
	// known: to a backend, or to a next hop that was resolved before.
	known
	// established: of a connection past its handshake.
	established
)

// precedenceOf returns the precedence of a flow's packet that came from side.
func precedenceOf(s flowtable.State, side flowtable.Side) precedence {
	switch {
	case s >= flowtable.Established && s <= flowtable.TimeWaitBackend:
		return established
	case side == flowtable.ClientSide:
		return known
	}
	return unproven
}

// displacedPerStep is how many unproven packets a step holds in place of others. Each needs a
// search of the queue: about 60 us in total with a full queue of 512. More are dropped: they may be
// a flood, and the searches delay packets of known flows.
const displacedPerStep = 16

// hopQueue holds translated packets whose next hop is not known yet, oldest first. Unproven packets
// get at most half of it.
type hopQueue struct {
	held      []heldPacket // capacity is fixed
	index     hopIndex     // counts held by destination and precedence
	all       waiting      // counts held by precedence
	perHop    int
	retryAt   flowtable.Time
	requestAt flowtable.Time
	key       [2]uint64 // of prefixHash
	// mayDisplace is how many unproven packets this step may still hold in place of others.
	mayDisplace int
}

type heldPacket struct {
	o        outgoing
	deadline flowtable.Time
}

// newHopQueue returns an empty queue. key is the key of its hashes, and must not be guessable.
func newHopQueue(limit, perHop int, key [2]uint64) hopQueue {
	return hopQueue{held: make([]heldPacket, 0, limit), index: newHopIndex(limit, key), perHop: perHop, key: key}
}

func (q *hopQueue) len() int { return len(q.held) }

// unprovenFull reports whether unproven packets use all their room, half of the queue.
func (q *hopQueue) unprovenFull() bool { return int(q.all[unproven]) >= cap(q.held)/2 }

// add appends a packet. There must be room.
func (q *hopQueue) add(o outgoing, deadline flowtable.Time) {
	if q.index.crowded() {
		q.index.rebuild(q.held)
	}
	q.held = append(q.held, heldPacket{o, deadline})
	q.index.add(&o)
	q.all[o.precedence]++
}

// remove removes the packet at index i, and returns it.
func (q *hopQueue) remove(i int) outgoing {
	o := q.held[i].o
	q.held = append(q.held[:i], q.held[i+1:]...)
	q.index.remove(&o)
	q.all[o.precedence]--
	return o
}

// keep replaces the packets by held, a subset.
func (q *hopQueue) keep(held []heldPacket) {
	q.held, q.all = held, waiting{}
	for i := range held {
		q.all[held[i].o.precedence]++
	}
	q.index.rebuild(held)
}

// oldest returns the index of the oldest packet to a destination with a precedence. There must be
// one.
func (q *hopQueue) oldest(dst *header.Addr, p precedence) int {
	return slices.IndexFunc(q.held, func(h heldPacket) bool { return h.o.precedence == p && h.o.dst == *dst })
}

// evictable returns the index of the packet to evict for a packet of a precedence, or -1 if there
// is none. Candidates are the packets of the lowest precedence in the queue, if that is lower than
// to or both are unproven. It chooses the oldest candidate to the prefix that has the most
// candidates (prefixes share 256 counters). It searches the queue only if there are candidates.
func (q *hopQueue) evictable(to precedence) int {
	if len(q.held) == 0 {
		return -1
	}
	lowest := min(to, q.all.lowest())
	if lowest == to && (to != unproven || q.all[unproven] == 0) {
		return -1
	}
	var waiting [256]uint16
	most := uint16(0)
	for i := range q.held {
		if o := &q.held[i].o; o.precedence == lowest {
			waiting[q.prefixHash(&o.dst)]++
			most = max(most, waiting[q.prefixHash(&o.dst)])
		}
	}
	for i := range q.held {
		if o := &q.held[i].o; o.precedence == lowest && waiting[q.prefixHash(&o.dst)] == most {
			return i
		}
	}
	return -1
}

// prefixHash hashes an address's /24 or /64. It is keyed: senders choose destinations by inventing
// sources, and must not find prefixes that share a counter with another prefix.
func (q *hopQueue) prefixHash(a *header.Addr) uint8 {
	prefix := binary.BigEndian.Uint64(a[:8])
	if a.Is4() {
		prefix = uint64(binary.BigEndian.Uint32(a[12:]) >> 8)
	}
	hi, lo := bits.Mul64(prefix^q.key[0], q.key[1]|1)
	return uint8((hi ^ lo) >> 56)
}

// mayHold reports whether a queue that holds held packets may take another. limit is in frames: the
// frames beyond the first of each packet, in all queues, reduce it.
func (w *Worker) mayHold(d Desc, held, limit int) bool {
	return held+w.n.heldMore+w.chains.Buffers(d) <= limit
}

// hold keeps a packet until its next hop is known. It requests the hop if the packet is the first
// that waits for it, or has a higher precedence than all that wait. If there are too many packets,
// it evicts one of the lowest precedence. It searches the queue only to evict a packet of a lower
// precedence, or if mayDisplace allows it.
func (w *Worker) hold(o outgoing) decide.Verdict {
	q := &w.hops
	if o.precedence == unproven && q.unprovenFull() {
		if q.mayDisplace == 0 {
			return drop(reason.NeighbourQueueFull)
		}
		q.mayDisplace--
	}
	waiting := q.index.of(&o.dst).waiting
	n := waiting.total()
	if n == 0 || o.precedence > waiting.highest() {
		w.request(&o)
	}
	if n >= q.perHop {
		lowest := waiting.lowest()
		if lowest >= o.precedence {
			return drop(reason.NeighbourQueueFull)
		}
		w.displace(q.oldest(&o.dst, lowest))
	}
	for !w.mayHold(o.desc, len(q.held), cap(q.held)) || o.precedence == unproven && q.unprovenFull() {
		i := q.evictable(o.precedence)
		if i < 0 {
			return drop(reason.NeighbourQueueFull)
		}
		w.displace(i)
	}
	q.add(o, w.planner.Now+holdFor)
	w.countHeld(o.desc, 1)
	return queued
}

// request requests the hop of a packet that is held.
func (w *Worker) request(o *outgoing) {
	if o.precedence == unproven {
		w.c.Hops.Resolve(o.dst)
		return
	}
	w.c.Hops.ResolveFirst(o.dst)
}

// displace drops the held packet at index i.
func (w *Worker) displace(i int) {
	o := w.hops.remove(i)
	w.countHeld(o.desc, -1)
	w.dropped(o.desc, reason.NeighbourDisplaced)
}

// release looks up the next hops of held packets and the first fragments of held fragments again.
// It returns how many packets left the queues.
func (w *Worker) release() int {
	return w.releaseHops() + w.releaseFragments()
}

func (w *Worker) releaseHops() (moved int) {
	q := &w.hops
	if len(q.held) == 0 || w.planner.Now < q.retryAt {
		return 0
	}
	q.retryAt = w.planner.Now + retryEvery
	ask := w.planner.Now >= q.requestAt
	if ask {
		q.requestAt = w.planner.Now + requestEvery
	}
	kept, all := q.held[:0], q.held
	for i := range all {
		h := &all[i]
		id := w.planner.View.Lookup(&h.o.dst).Hop
		hop := w.c.Hops.Hop(id)
		if id == 0 || hop == nil || (hop.Kind == nexthop.OnLink && !hop.Ready) {
			if w.planner.Now < h.deadline {
				if ask && (i == 0 || all[i-1].o.dst != h.o.dst || all[i-1].o.precedence < h.o.precedence) {
					w.request(&h.o)
				}
				kept = append(kept, *h)
				continue
			}
			w.countHeld(h.o.desc, -1)
			w.dropped(h.o.desc, reason.NeighbourPending)
			moved++
			continue
		}
		w.countHeld(h.o.desc, -1)
		moved++
		if v := w.sendTo(h.o, id, hop); v.Action == decide.Drop {
			w.dropped(h.o.desc, v.Reason)
		}
	}
	if moved > 0 {
		q.keep(kept)
	}
	return moved
}
