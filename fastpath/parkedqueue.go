package fastpath

// maxParked bounds the parked packets. At most a quarter of the UMEM's frames may be parked,
// because the rings need the others. With one interface and the host link a quarter is the size
// of the receive ring, 2,048 by default. A step opens at least opensForParked flows for parked
// packets, so a packet waits at most 256 steps, unless source ports are scarce.
const maxParked = 4096

// parkedQueue is a ring of packets that wait to open their flow. A position is the number of
// packets parked before, plus 1; 0 means none.
//
//	head ─► oldest ... youngest ◄─ tail
//	          └─ next ─► of the same bucket
//
// All packets of one flow and link leave the queue together, or packets that arrive after the flow
// was opened would overtake them. The chain of a bucket links packets with equal hash bits, so the
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
	link uint16 // that the packet came from
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
func (q *parkedQueue) add(d Desc, hash uint64, link int) {
	*q.slot(q.tail) = parkedPacket{desc: d, hash: hash, link: uint16(link), here: true}
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
// of its flow. All came from one link. It returns that and the number of packets.
func (q *parkedQueue) take(batch []Desc, flows int) (n, link int) {
	for ; flows > 0 && q.count > 0 && n < len(batch); flows-- {
		for !q.slot(q.head).here {
			q.head++
		}
		if from := int(q.slot(q.head).link); n > 0 && from != link {
			break
		}
		first := q.shift()
		link = int(first.link)
		batch[n] = first.desc
		n++
		for at := first.next; at != 0 && n < len(batch); {
			p := q.slot(at)
			if at = p.next; !p.here || p.hash != first.hash || p.link != first.link {
				continue
			}
			batch[n], p.here = p.desc, false
			n++
			q.count--
		}
	}
	return n, link
}
