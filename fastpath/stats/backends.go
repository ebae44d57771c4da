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
// Where backends are many (Expect), what a packet costs is a note in its page's list:
//
//	packet ─▶ list of the page ─full─▶ sums of the page ─Publish─▶ Counters
//	          4 bytes a packet          16 bytes a backend
//
// With a hundred thousand backends the sums do not stay in a core's cache, and to fetch and write back
// a line of them for each packet would cost as much as the lookup of its flow. The list is
// written and read in order, and the sums that a full one is added to are 16 KiB. How
// old a Counter may be is up to the worker.
type Counters struct {
	pages  [counterPages]atomic.Pointer[counterPage]
	marked [counterPages / 64]uint64 // pages with notes or marks; the worker's own
	round  int                       // the page where Publish goes on
	many   bool                      // the worker's own
}

// All but shared is the worker's own.
type counterPage struct {
	noted  int // notes in list
	list   [listSize]note
	own    [counterPageSize]traffic
	marked [counterPageSize / 64]uint64 // indexes with sums that are not in shared yet
	shared [counterPageSize]Counter
}

const listSize = 4096

// note is a packet: index in the page << 17 | way << 16 | bytes.
type note uint32

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
	n := ref & (MaxBackends - 1) >> counterPageBits
	page := c.pages[n].Load()
	if page == nil || ref == 0 {
		return
	}
	if !c.many {
		// As in counterPage.count; a call costs a nanosecond.
		i := ref & (counterPageSize - 1)
		t := &page.own[i]
		t.packets[way&1]++
		t.bytes[way&1] += bytes
		if mark := uint64(1) << (i % 64); page.marked[i/64]&mark == 0 || t.bytes[way&1] >= fullBytes {
			c.marked[n/64] |= 1 << (n % 64)
			page.mark(i, mark)
		}
		return
	}
	at := page.noted
	page.list[at&(listSize-1)] = note(ref&(counterPageSize-1)<<17 | uint32(way&1)<<16 | bytes&MaxBytes)
	if page.noted = at + 1; at == 0 || at == listSize-1 {
		c.marked[n/64] |= 1 << (n % 64)
		if at != 0 {
			page.sum()
		}
	}
}

// sum adds what the list says to the sums.
func (p *counterPage) sum() {
	for _, e := range p.list[:p.noted] {
		p.count(uint32(e>>17), uint32(e>>16&1), uint32(e&MaxBytes))
	}
	p.noted = 0
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
		page.sum()
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
