package fastpath

import (
	"encoding/binary"
	"math/bits"
	"time"

	"sluice.dev/sluice/fastpath/decide"
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/stats"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
)

// holdFor is how long a packet waits for its next hop to be resolved: one second,
// in which Linux sends one request (net.ipv4.neigh.default.retrans_time_ms).
const holdFor = flowtable.Time(time.Second)

// retryEvery paces the retries for held packets.
const retryEvery = flowtable.Time(time.Millisecond)

// requestEvery paces repeated requests: one may have been lost if there were too many.
const requestEvery = flowtable.Time(100 * time.Millisecond)

// precedence is the order in which packets that wait for next hops have room.
type precedence uint8

const (
	// anybodys: whoever sends packets from invented addresses makes as many destinations: clients
	// of flows that nothing is proven of, senders of pings.
	anybodys precedence = iota
	// known: to a backend, or to a next hop that was resolved before.
	known
	// established: of a connection past its handshake.
	established
)

// precedenceOf is that of a flow's packet from a side.
func precedenceOf(s flowtable.State, side flowtable.Side) precedence {
	switch {
	case s >= flowtable.Established && s <= flowtable.TimeWaitBackend:
		return established
	case side == flowtable.ClientSide:
		return known
	}
	return anybodys
}

// displacedPerStep is how many packets that are anybody's a step holds in place of others, which
// have to be searched for: about 60 us with a full queue of 512. Those beyond are dropped: they may
// be a flood, and packets of known flows wait meanwhile.
const displacedPerStep = 16

// hopQueue holds translated packets whose next hop is not known yet, oldest first. Packets that are
// anybody's have half of it.
type hopQueue struct {
	held      []heldPacket // capacity is fixed
	anybodys  int          // of these
	perHop    int
	retryAt   flowtable.Time
	requestAt flowtable.Time
	key       [2]uint64 // of prefixHash
	// mayDisplace is how many packets that are anybody's this step may hold in place of others yet.
	mayDisplace int
}

type heldPacket struct {
	o        outgoing
	deadline flowtable.Time
}

// newHopQueue returns an empty queue. key is of prefixHash, and must not be guessable.
func newHopQueue(limit, perHop int, key [2]uint64) hopQueue {
	return hopQueue{held: make([]heldPacket, 0, limit), perHop: perHop, key: key}
}

func (q *hopQueue) len() int { return len(q.held) }

// waitingFor returns how many packets wait for the next hop of a destination, and where the oldest
// of their lowest and their highest precedence are.
func (q *hopQueue) waitingFor(dst *header.Addr) (n, lowest, highest int) {
	for i := range q.held {
		o := &q.held[i].o
		if o.dst != *dst {
			continue
		}
		if n == 0 || o.precedence < q.held[lowest].o.precedence {
			lowest = i
		}
		if n == 0 || o.precedence > q.held[highest].o.precedence {
			highest = i
		}
		n++
	}
	return n, lowest, highest
}

// givesWay returns the packet that makes room for one of a precedence, or -1: of the lowest
// precedence that is below it, or anybody's, the oldest one to the prefix that most such packets
// wait for (prefixes share 256 counters).
func (q *hopQueue) givesWay(to precedence) int {
	lowest := to
	for i := range q.held {
		lowest = min(lowest, q.held[i].o.precedence)
	}
	if lowest == to && to != anybodys {
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

// prefixHash is of an address's /24 or /64. It is keyed: senders choose destinations by inventing
// sources, and must not find prefixes that share the counter of another one.
func (q *hopQueue) prefixHash(a *header.Addr) uint8 {
	prefix := binary.BigEndian.Uint64(a[:8])
	if a.Is4() {
		prefix = uint64(binary.BigEndian.Uint32(a[12:]) >> 8)
	}
	hi, lo := bits.Mul64(prefix^q.key[0], q.key[1]|1)
	return uint8((hi ^ lo) >> 56)
}

// mayHold reports whether a queue with a limit takes a packet. The limit is one of frames: frames
// beyond the first of each packet, in all queues, reduce it.
func (w *Worker) mayHold(d Desc, held, limit int) bool {
	return held+w.n.heldMore+w.chains.Buffers(d) <= limit
}

// hold keeps a packet until its next hop is known, and requests the hop: again if the packet
// precedes those that wait for it. Where they are too many, one of the lowest precedence gives way.
func (w *Worker) hold(o outgoing) decide.Verdict {
	q := &w.hops
	if o.precedence == anybodys && q.anybodys >= cap(q.held)/2 {
		if q.mayDisplace == 0 {
			return drop(stats.NeighbourQueueFull)
		}
		q.mayDisplace--
	}
	waiting, lowest, highest := q.waitingFor(&o.dst)
	if waiting == 0 || o.precedence > q.held[highest].o.precedence {
		w.request(&o)
	}
	if waiting >= q.perHop {
		if q.held[lowest].o.precedence >= o.precedence {
			return drop(stats.NeighbourQueueFull)
		}
		w.displace(lowest)
	}
	for !w.mayHold(o.desc, len(q.held), cap(q.held)) || o.precedence == anybodys && q.anybodys >= cap(q.held)/2 {
		i := q.givesWay(o.precedence)
		if i < 0 {
			return drop(stats.NeighbourQueueFull)
		}
		w.displace(i)
	}
	q.held = append(q.held, heldPacket{o, w.planner.Now + holdFor})
	if o.precedence == anybodys {
		q.anybodys++
	}
	w.countHeld(o.desc, 1)
	return queued
}

// request requests the hop of a packet that is held.
func (w *Worker) request(o *outgoing) {
	if o.precedence == anybodys {
		w.c.Hops.Resolve(o.dst)
		return
	}
	w.c.Hops.ResolveFirst(o.dst)
}

// displace drops the held packet at a place.
func (w *Worker) displace(i int) {
	q := &w.hops
	o := q.held[i].o
	if o.precedence == anybodys {
		q.anybodys--
	}
	q.held = append(q.held[:i], q.held[i+1:]...)
	w.countHeld(o.desc, -1)
	w.dropped(o.desc, stats.NeighbourDisplaced)
}

// release looks up again the next hops of held packets and the first
// fragments of held later ones. It returns how many packets moved.
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
	kept, anybody := q.held[:0], 0
	all := q.held
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
				if h.o.precedence == anybodys {
					anybody++
				}
				continue
			}
			w.countHeld(h.o.desc, -1)
			w.dropped(h.o.desc, stats.NeighbourPending)
			moved++
			continue
		}
		w.countHeld(h.o.desc, -1)
		moved++
		if v := w.sendTo(h.o, id, hop); v.Action == decide.Drop {
			w.dropped(h.o.desc, v.Reason)
		}
	}
	q.held, q.anybodys = kept, anybody
	return moved
}
