package stats

import (
	"math/bits"
	"sync/atomic"
)

// Counter has the published counters of one backend at one worker. Any goroutine may read them.
type Counter struct {
	Flows          atomic.Uint64 // flows created towards it
	ToBackend      atomic.Uint64 // packets
	ToBackendBytes atomic.Uint64
	ToClient       atomic.Uint64
	ToClientBytes  atomic.Uint64
	// Answered counts TCP flows whose first answer was a SYN-ACK (or another segment that shows
	// that the backend is there), Refused counts TCP flows whose first answer was an RST.
	Answered, Refused atomic.Uint64
}

const (
	counterPageBits = 10
	counterPageSize = 1 << counterPageBits
	counterPages    = 1024
	// MaxBackends bounds backend indexes (services.BackendRef has 20 index bits).
	MaxBackends = counterPages << counterPageBits
)

// Counters is a table of Counter by backend index that grows by pages, so that a
// worker never allocates: the control loop calls Ensure before it publishes a
// snapshot with a new index.
//
// If there are many backends (Expect), a packet is counted by an entry in a log:
//
//	packet ─▶ log ─full─▶ lists of the pages ─full─▶ sums of the page ─Publish─▶ Counters
//	        8 bytes a packet    4 bytes a packet      16 bytes a backend
//
// With a hundred thousand backends the sums do not fit in a core's cache, and fetching and writing
// back a line of sums for each packet would cost as much as the lookup of its flow. A list is
// written and read in order, and a full list is added to 16 KiB of sums. The ends of all lists stay
// in the first-level cache while a log is distributed to them, but not between two packets: hence
// the log, which is also written and read in order. The worker decides how old a Counter may
// become.
type Counters struct {
	pages [counterPages]atomic.Pointer[counterPage]

	// Only the worker uses the fields below.
	marked [counterPages / 64]uint64 // pages with notes or marks
	noted  [counterPages]uint16      // number of notes in each page's list
	round  int                       // the page where Publish continues
	many   bool
	logged int
	log    [logSize]Entry
	seen   traffic // a use of the values that sumAll loads, so that the compiler keeps the loads
}

// Only the worker uses fields other than shared.
type counterPage struct {
	list   [listSize]note
	own    [2 * counterPageSize]traffic // by index and way
	marked [counterPageSize / 64]uint64 // indexes with sums that are not in shared yet
	shared [counterPageSize]Counter
}

// Distributing a full log takes a few microseconds, and adding up a full list about ten. The log is
// short because it shares the first-level cache with the packets.
const (
	logSize  = 512
	listSize = 4096
)

// Entry is a forwarded packet: backend index << 17 | way << 16 | bytes.
type Entry uint64

// page returns the number of the page, way the index of the sum in it.
func (e Entry) page() uint32 { return uint32(e>>(17+counterPageBits)) & (counterPages - 1) }
func (e Entry) way() uint32  { return uint32(e>>16) & (2*counterPageSize - 1) }

// MakeEntry returns the entry of a packet of at most MaxBytes, towards the backend (way 0) or
// towards a client (way 1). ref is a services.BackendRef: not 0, with the index in its low bits.
// The compiler inlines it.
func MakeEntry(ref uint32, way uint8, bytes uint32) Entry {
	return Entry(ref&(MaxBackends-1))<<17 | Entry(way)&1<<16 | Entry(bytes&MaxBytes)
}

// note is an entry of a list: index in the page << 17 | way << 16 | bytes.
type note uint32

// noteBits is the mask of the note in an Entry.
const noteBits = 1<<(17+counterPageBits) - 1

// MaxBytes is the largest packet that can be counted.
const MaxBytes = 1<<16 - 1

// traffic counts packets in one direction since the last Publish: packets << 40 | bytes. One
// addition counts both. It is published as soon as the packets set the highest bit; the bytes are
// then less than 1<<39.
type traffic uint64

const trafficBytes = 40 // bits

func (t traffic) full() bool      { return int64(t) < 0 }
func (t traffic) packets() uint64 { return uint64(t >> trafficBytes) }
func (t traffic) bytes() uint64   { return uint64(t & (1<<trafficBytes - 1)) }

// Ensure makes indexes below n usable. Only the control loop calls it.
func (c *Counters) Ensure(n int) {
	for p := 0; p<<counterPageBits < n && p < counterPages; p++ {
		if c.pages[p].Load() == nil {
			c.pages[p].Store(new(counterPage))
		}
	}
}

// At returns the counter of a backend index, or nil if Ensure has not made it usable.
func (c *Counters) At(index uint32) *Counter {
	page := c.pages[(index>>counterPageBits)&(counterPages-1)].Load()
	if page == nil {
		return nil
	}
	return &page.shared[index&(counterPageSize-1)]
}

// fewBackends is the number of backends whose sums stay in a core's second-level cache without a
// log.
const fewBackends = 4096

// Expect sets the number of backends. Only the worker calls it.
func (c *Counters) Expect(backends int) { c.many = backends > fewBackends }

// Add counts packets, except for indexes without an Ensure. Only the worker calls it.
func (c *Counters) Add(packets []Entry) {
	if c.many {
		for len(packets) > 0 {
			n := copy(c.log[c.logged:], packets)
			packets = packets[n:]
			if c.logged += n; c.logged == logSize {
				c.distribute()
			}
		}
		return
	}
	for _, e := range packets {
		n := e.page()
		page := c.pages[n].Load()
		if page == nil {
			continue
		}
		if way := e.way(); page.count(way, e) {
			c.marked[n/64] |= 1 << (n % 64)
			page.mark(way)
		}
	}
}

// Count is Add for one packet, with the arguments of MakeEntry. It counts nothing for ref 0.
func (c *Counters) Count(ref uint32, way uint8, bytes uint32) {
	if ref != 0 {
		c.Add([]Entry{MakeEntry(ref, way, bytes)})
	}
}

// sumsPerDistribution bounds the lists that one distribution adds up. Packets in a repeating order
// fill many lists at the same time, and adding up a hundred takes a millisecond.
const sumsPerDistribution = 2

// distribute distributes the log to the lists. If a packet's list is full and distribute may add up
// no more lists, it adds the packet to its sum directly.
func (c *Counters) distribute() {
	log, sums := c.log[:c.logged], sumsPerDistribution
	c.logged = 0
	for _, e := range log {
		n := e.page()
		page := c.pages[n].Load()
		if page == nil {
			continue
		}
		at := c.noted[n]
		if at == listSize {
			if sums == 0 {
				if way := e.way(); page.count(way, e) {
					page.mark(way)
				}
				continue
			}
			sums--
			c.sumAll(n, page)
			at = 0
		}
		page.list[at&(listSize-1)] = note(e & noteBits)
		if c.noted[n] = at + 1; at == 0 {
			c.marked[n/64] |= 1 << (n % 64)
		} else if at == listSize-1 && sums > 0 {
			sums--
			c.sumAll(n, page)
		}
	}
}

// sumAll is sum for a full list. It first loads all sums of the page in order, so that the cache
// misses overlap; in the order of the notes each would wait for the one before.
func (c *Counters) sumAll(n uint32, page *counterPage) {
	const perLine = 8 // sums
	for i := 0; i < len(page.own); i += perLine {
		c.seen += page.own[i]
	}
	c.sum(n, page)
}

// sum adds the notes of a page's list to its sums.
func (c *Counters) sum(n uint32, page *counterPage) {
	for _, e := range page.list[:c.noted[n]] {
		if way := Entry(e).way(); page.count(way, Entry(e)) {
			page.mark(way)
		}
	}
	c.noted[n] = 0
}

// count adds a packet to the sums. It reports whether mark must be called.
func (p *counterPage) count(way uint32, e Entry) bool {
	old := p.own[way&(2*counterPageSize-1)]
	sum := old + 1<<trafficBytes + traffic(e&MaxBytes)
	p.own[way&(2*counterPageSize-1)] = sum
	return old == 0 || sum.full()
}

// mark marks a backend's sums for Publish, or publishes them at once if one is full.
func (p *counterPage) mark(way uint32) {
	i := way / 2
	p.marked[i/64] |= 1 << (i % 64)
	if p.own[2*i].full() || p.own[2*i+1].full() {
		p.add(int(i))
	}
}

// notesPerSum is the number of notes that take as long to add up as publishing one backend's sums.
const notesPerSum = 256

// Pending reports whether there are unpublished counts. Only the worker calls it.
func (c *Counters) Pending() bool {
	pages := uint64(c.logged)
	for _, marked := range c.marked {
		pages |= marked
	}
	return pages != 0
}

// Publish continues a round over all pages, and adds at most limit backends' sums to the Counters,
// fewer if it must add up lists first. It reports whether the round is complete: all counts from
// before the round are then published. Only the worker calls it.
func (c *Counters) Publish(limit int) (done bool) {
	c.distribute()
	for ; c.round < counterPages; c.round++ {
		word, mark := &c.marked[c.round/64], uint64(1)<<(c.round%64)
		if *word == 0 {
			c.round |= 63 // skip the word's other pages
			continue
		}
		if *word&mark == 0 {
			continue
		}
		page := c.pages[c.round].Load()
		limit -= int(c.noted[c.round]) / notesPerSum
		c.sum(uint32(c.round), page)
		published, seen := page.publish(max(limit, 1))
		c.seen += seen
		if limit -= published; limit <= 0 {
			return false // the page may have more
		}
		*word &^= mark
	}
	c.round = 0
	return true
}

// together is the number of backends whose lines publish loads at once.
const together = 64

// publish publishes at most limit backends of the page and returns how many. It first loads the
// sums and counters of many of them, as sumAll does: add has locked instructions, which no later
// load overtakes. seen is a use of the loads.
func (p *counterPage) publish(limit int) (n int, seen traffic) {
	var next [together]uint16
	for n < limit {
		found := next[:p.unmark(next[:min(limit-n, together)])]
		for _, i := range found {
			// The fields are on the two lines that a Counter may be on.
			shared := &p.shared[i]
			seen += p.own[2*i] + traffic(shared.ToBackend.Load()+shared.ToClientBytes.Load())
		}
		for _, i := range found {
			p.add(int(i))
		}
		n += len(found)
		if len(found) < together {
			break
		}
	}
	return n, seen
}

// unmark moves marked indexes to list and returns how many.
func (p *counterPage) unmark(list []uint16) (n int) {
	for w := range p.marked {
		for ; p.marked[w] != 0 && n < len(list); n++ {
			list[n] = uint16(w*64 + bits.TrailingZeros64(p.marked[w]))
			p.marked[w] &= p.marked[w] - 1
		}
	}
	return n
}

// add publishes one backend's sums.
func (p *counterPage) add(i int) {
	own, shared := p.own[2*i:2*i+2], &p.shared[i]
	for way, to := range [2][2]*atomic.Uint64{
		{&shared.ToBackend, &shared.ToBackendBytes}, {&shared.ToClient, &shared.ToClientBytes},
	} {
		if t := own[way]; t != 0 {
			to[0].Store(to[0].Load() + t.packets()) // one writer
			to[1].Store(to[1].Load() + t.bytes())
			own[way] = 0
		}
	}
}
