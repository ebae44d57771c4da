package fastpath

// A packet of a known flow costs about 50 ns. A packet that opens a flow costs about 0.6 us, or 1.4
// us if a previous flow must be found and ended (BenchmarkStep, BenchmarkConnection). So a step may
// open a limited number of flows. Without the limit, a flood of SYNs would make steps so long that
// receive rings overflow and packets of known flows are lost.
//
// A packet that would open a flow is parked if the budget is spent or if other packets are parked.
// Each step handles the received packets first, and then parked packets, oldest first, until the
// budget is spent. So known flows never wait for new flows, and new flows are opened in the order
// of their packets. If there is no room, the oldest packet is dropped: its sender will be the first
// to repeat it.
const (
	// OpensPerStep is the maximum number of flows that a step opens: about 50 us of work.
	OpensPerStep = 32
	// opensPerFullStep is the maximum for a step that received a full batch: more packets wait, and
	// the worker must keep up with packets of known flows. 20,000 such steps a second still open
	// 320,000 flows.
	opensPerFullStep = groupSize
	// probesPerOpen is how many probed source ports, beyond the first freeProbes, count as one
	// opened flow. If all ports towards a backend are taken, 64 are probed without success, which
	// costs about 30 times as much as a flow.
	probesPerOpen = 2
	freeProbes    = 32
	// comparedPerOpen is how many backends compared by a scheduler (lc, wlc, sed, nq) count as one
	// opened flow; each costs 4 to 6 ns.
	comparedPerOpen = 128
	// opensForParked is the part of the budget that received packets of known flows must leave for
	// parked packets: repeated SYNs that move their flows to other backends (retry), and searches
	// for an endpoint that may have come back (classify).
	opensForParked = opensPerFullStep / 2
	// maxParked bounds the parked packets. At most a quarter of the UMEM's frames may be parked,
	// because the rings need the others. With one interface and the host link a quarter is the size
	// of the receive ring, 2,048 by default. A step opens at least opensForParked flows for parked
	// packets, so a packet waits at most 256 steps, unless source ports are scarce.
	maxParked = 4096
)

// parkedQueue is a ring of packets that wait to open their flow. A position is the number of
// packets parked before, plus 1; 0 means none.
//
//	head ─► oldest ... youngest ◄─ tail
//	          └─ next ─► of the same bucket
//
// All packets of one flow leave the queue together, or packets that arrive after the flow was
// opened would overtake them. The chain of a bucket links packets with equal hash bits, so the
// packets of one flow are found without a search of the queue.
type parkedQueue struct {
	slots      []parkedPacket // a power of two
	last       []uint64       // by hash: as many buckets as slots
	head, tail uint64
	count      int // number of packets; slots between head and tail may be empty
}

type parkedPacket struct {
	desc Desc
	hash uint64
	next uint64 // the next position of this bucket
	here bool
}

func newParkedQueue(frames int) parkedQueue {
	limit := 1
	for 2*limit <= min(maxParked, frames/4) {
		limit *= 2
	}
	return parkedQueue{slots: make([]parkedPacket, limit), last: make([]uint64, limit), head: 1, tail: 1}
}

func (q *parkedQueue) len() int { return q.count }

func (q *parkedQueue) slot(at uint64) *parkedPacket { return &q.slots[at&uint64(len(q.slots)-1)] }

// add puts a packet at the end. There must be a free slot.
func (q *parkedQueue) add(d Desc, hash uint64) {
	*q.slot(q.tail) = parkedPacket{desc: d, hash: hash, here: true}
	last := &q.last[hash&uint64(len(q.last)-1)]
	if *last >= q.head {
		q.slot(*last).next = q.tail
	}
	*last = q.tail
	q.tail++
	q.count++
}

// shift takes the oldest packet; there must be one.
func (q *parkedQueue) shift() *parkedPacket {
	for {
		p := q.slot(q.head)
		q.head++
		if p.here {
			p.here = false
			q.count--
			return p
		}
	}
}

// take moves the oldest packets of up to flows flows to a batch, each followed by the other packets
// of its flow. It returns the number of packets.
func (q *parkedQueue) take(batch []Desc, flows int) (n int) {
	for ; flows > 0 && q.count > 0 && n < len(batch); flows-- {
		first := q.shift()
		batch[n] = first.desc
		n++
		for at := first.next; at != 0 && n < len(batch); {
			p := q.slot(at)
			if at = p.next; !p.here || p.hash != first.hash {
				continue
			}
			batch[n], p.here = p.desc, false
			n++
			q.count--
		}
	}
	return n
}
