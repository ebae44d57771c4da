package fastpath

import (
	"encoding/binary"
	"math/bits"
	"slices"

	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
)

// hopQueue holds translated packets whose next hop is not known yet, oldest first. Unproven packets
// get at most half of it.
type hopQueue struct {
	held      []heldPacket      // capacity is fixed
	index     hopIndex          // counts held by destination and precedence
	all       countByPrecedence // counts held by precedence
	perHop    int
	retryAt   flowtable.Time
	requestAt flowtable.Time
	key       [2]uint64 // of prefixHash
	// mayDisplace is how many unproven packets this step may still hold in place of others.
	mayDisplace int
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
	q.held, q.all = held, countByPrecedence{}
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

// evictable returns the index of the packet to evict so that a packet of precedence to can be
// added, or -1. Candidates have the lowest precedence in the queue, which must be lower than to,
// unless both are unproven. It chooses the oldest candidate to the prefix that has the most
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
