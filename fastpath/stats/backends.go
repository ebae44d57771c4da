package stats

import (
	"math/bits"
	"sync/atomic"
)

// Counter is one backend's traffic at one worker, as anybody may read it.
type Counter struct {
	Flows          atomic.Uint64 // flows created towards it
	ToBackend      atomic.Uint64 // packets
	ToBackendBytes atomic.Uint64
	ToClient       atomic.Uint64
	ToClientBytes  atomic.Uint64
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
// Where backends are many (Expect), what a packet costs is an entry in a log:
//
//	packet ─▶ log ─full─▶ lists of the pages ─full─▶ sums of the page ─Publish─▶ Counters
//	        8 bytes a packet    4 bytes a packet      16 bytes a backend
//
// With a hundred thousand backends the sums do not stay in a core's cache, and to fetch and write back
// a line of them for each packet would cost as much as the lookup of its flow. A list is
// written and read in order, and the sums that a full one is added to are 16 KiB. The ends of all lists are
// in the first-level cache while a log is dealt out to them, and would not be between two packets: the
// log is written and read in order as well. How old a Counter may be is up to the worker.
type Counters struct {
	pages [counterPages]atomic.Pointer[counterPage]

	// All that follows is the worker's own.
	marked [counterPages / 64]uint64 // pages with notes or marks
	noted  [counterPages]uint16      // notes in the pages' lists
	round  int                       // the page where Publish goes on
	many   bool
	logged int
	log    [logSize]entry
	seen   uint32 // keeps the compiler from leaving out what sumAll loads
}

// All but shared is the worker's own.
type counterPage struct {
	list   [listSize]note
	own    [counterPageSize]traffic
	marked [counterPageSize / 64]uint64 // indexes with sums that are not in shared yet
	shared [counterPageSize]Counter
}

// A full log is dealt out in some ten microseconds, and so is a full list added up.
const (
	logSize  = 4096
	listSize = 4096
)

// entry is a packet in the log: index << 17 | way << 16 | bytes.
type entry uint64

// note is one in a list: index in the page << 17 | way << 16 | bytes.
type note uint32

// noteBits are what of an entry is its note.
const noteBits = 1<<(17+counterPageBits) - 1

// MaxBytes is the largest packet that can be counted.
const MaxBytes = 1<<16 - 1

// traffic is packets and bytes since the last Publish: to the backend, and to clients.
type traffic struct {
	packets, bytes [2]uint32
}

// fullBytes is where a sum of bytes is published at once: one more packet still fits.
const fullBytes = 1<<32 - 1<<20

// Ensure makes indexes below n usable. Only the control loop calls it.
func (c *Counters) Ensure(n int) {
	for p := 0; p<<counterPageBits < n && p < counterPages; p++ {
		if c.pages[p].Load() == nil {
			c.pages[p].Store(new(counterPage))
		}
	}
}

// At returns the counter of a backend index, or nil where Ensure was not called.
func (c *Counters) At(index uint32) *Counter {
	page := c.pages[(index>>counterPageBits)&(counterPages-1)].Load()
	if page == nil {
		return nil
	}
	return &page.shared[index&(counterPageSize-1)]
}

// fewBackends is how many backends' sums stay in a core's second-level cache anyway.
const fewBackends = 4096

// Expect says how many backends there are. Only the worker calls it.
func (c *Counters) Expect(backends int) { c.many = backends > fewBackends }

// Count adds a packet of a BackendRef, whose low bits are the index, towards the backend (way 0) or
// towards a client (1), of at most MaxBytes. Only the worker calls it. Nothing is counted
// for ref 0, or where Ensure was not called.
func (c *Counters) Count(ref uint32, way uint8, bytes uint32) {
	if c.many {
		if ref == 0 {
			return
		}
		at := c.logged
		c.log[at&(logSize-1)] = entry(ref&(MaxBackends-1))<<17 | entry(way&1)<<16 | entry(bytes&MaxBytes)
		if c.logged = at + 1; c.logged == logSize {
			c.deal()
		}
		return
	}
	n := ref & (MaxBackends - 1) >> counterPageBits
	page := c.pages[n].Load()
	if page == nil || ref == 0 {
		return
	}
	// As in counterPage.count; a call costs a nanosecond.
	i := ref & (counterPageSize - 1)
	t := &page.own[i]
	t.packets[way&1]++
	t.bytes[way&1] += bytes
	if mark := uint64(1) << (i % 64); page.marked[i/64]&mark == 0 || t.bytes[way&1] >= fullBytes {
		c.marked[n/64] |= 1 << (n % 64)
		page.mark(i, mark)
	}
}

// deal empties the log into the lists.
func (c *Counters) deal() {
	log := c.log[:c.logged]
	c.logged = 0
	for _, e := range log {
		n := uint32(e>>(17+counterPageBits)) & (counterPages - 1)
		page := c.pages[n].Load()
		if page == nil {
			continue
		}
		at := c.noted[n]
		page.list[at&(listSize-1)] = note(e & noteBits)
		if c.noted[n] = at + 1; at == 0 {
			c.marked[n/64] |= 1 << (n % 64)
		} else if at == listSize-1 {
			c.sumAll(n, page)
		}
	}
}

// sumAll is sum of a full list. It loads the page's sums beforehand, all at once: one after the other, as
// notes ask for them, each would be waited for.
func (c *Counters) sumAll(n uint32, page *counterPage) {
	const perLine = 4 // sums
	for i := 0; i < counterPageSize; i += perLine {
		c.seen += page.own[i].packets[0]
	}
	c.sum(n, page)
}

// sum adds what a page's list says to its sums.
func (c *Counters) sum(n uint32, page *counterPage) {
	for _, e := range page.list[:c.noted[n]] {
		page.count(uint32(e>>17), uint32(e>>16&1), uint32(e&MaxBytes))
	}
	c.noted[n] = 0
}

// count adds a packet to the sums.
func (p *counterPage) count(i, way, bytes uint32) {
	i &= counterPageSize - 1
	t := &p.own[i]
	t.packets[way]++
	t.bytes[way] += bytes
	if mark := uint64(1) << (i % 64); p.marked[i/64]&mark == 0 || t.bytes[way] >= fullBytes {
		p.mark(i, mark)
	}
}

// mark says that there is something to publish, or publishes it where a sum would overflow.
func (p *counterPage) mark(i uint32, mark uint64) {
	if p.marked[i/64] |= mark; max(p.own[i].bytes[0], p.own[i].bytes[1]) >= fullBytes {
		p.add(int(i))
	}
}

// Publish goes on with a round over all pages, and adds at most limit backends' sums to the Counters. It
// says whether the round is at its end: what was counted before the round began is then published. Only
// the worker calls it.
func (c *Counters) Publish(limit int) (done bool) {
	c.deal()
	for ; c.round < counterPages; c.round++ {
		word, mark := &c.marked[c.round/64], uint64(1)<<(c.round%64)
		if *word == 0 {
			c.round |= 63 // none of the next either
			continue
		}
		if *word&mark == 0 {
			continue
		}
		page := c.pages[c.round].Load()
		c.sum(uint32(c.round), page)
		if limit -= page.publish(limit); limit <= 0 {
			return false // the page may have more
		}
		*word &^= mark
	}
	c.round = 0
	return true
}

func (p *counterPage) publish(limit int) (n int) {
	for w := range p.marked {
		for ; p.marked[w] != 0 && n < limit; n++ {
			i := w*64 + bits.TrailingZeros64(p.marked[w])
			p.marked[w] &= p.marked[w] - 1
			p.add(i)
		}
	}
	return n
}

// add publishes one backend's sums.
func (p *counterPage) add(i int) {
	own, shared := &p.own[i], &p.shared[i]
	for way, to := range [2][2]*atomic.Uint64{{&shared.ToBackend, &shared.ToBackendBytes}, {&shared.ToClient, &shared.ToClientBytes}} {
		if own.packets[way] != 0 {
			to[0].Store(to[0].Load() + uint64(own.packets[way])) // we alone write
			to[1].Store(to[1].Load() + uint64(own.bytes[way]))
		}
	}
	*own = traffic{}
}
