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
// The worker counts packets in sums of its own, a quarter of a cache line a backend, and marks what
// it touched; Publish adds what is marked to the Counters. A packet then costs no atomic
// store, and how old a Counter may be is the worker's choice.
type Counters struct {
	pages  [counterPages]atomic.Pointer[counterPage]
	marked [counterPages / 64]uint64 // pages with marks; the worker's own

	later [LaterSize]uint64 // ref, way, bytes; the worker's own
	noted int
}

type counterPage struct {
	own    [counterPageSize]traffic     // the worker's
	marked [counterPageSize / 64]uint64 // indexes that differ from shared; the worker's
	shared [counterPageSize]Counter
}

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

// Count adds a packet of a BackendRef, whose low bits are the index, towards the backend (way 0) or
// towards a client (1). Only the worker calls it. Nothing is counted for ref 0, or where
// Ensure was not called.
func (c *Counters) Count(ref uint32, way uint8, bytes uint32) {
	if ref == 0 {
		return
	}
	index := ref & (MaxBackends - 1)
	n := index >> counterPageBits
	page := c.pages[n].Load()
	if page == nil {
		return
	}
	i := index & (counterPageSize - 1)
	t := &page.own[i]
	t.packets[way&1]++
	t.bytes[way&1] += bytes
	c.mark(page, n, i)
}

// mark says that sums are to be published, or publishes them where they are about to overflow.
func (c *Counters) mark(page *counterPage, n, i uint32) {
	if max(page.own[i].bytes[0], page.own[i].bytes[1]) >= fullBytes {
		page.add(int(i))
	}
	page.marked[i/64] |= 1 << (i % 64)
	c.marked[n/64] |= 1 << (n % 64)
}

// Later is Count, when CountLater is called, which must be before there are more than LaterSize. In a
// loop of nothing but counting, many cache misses are under way at once; and a
// call for each packet is saved.
func (c *Counters) Later(ref uint32, way uint8, bytes uint32) {
	c.later[c.noted&(LaterSize-1)] = uint64(ref)<<32 | uint64(way)<<31 | uint64(bytes)
	c.noted++
}

// LaterSize is half of a first-level cache: the packets of a few dozen microseconds.
const LaterSize = 2048

// Noted is how many packets wait for CountLater.
func (c *Counters) Noted() int { return c.noted }

// CountLater counts what Later noted.
func (c *Counters) CountLater() {
	for _, e := range c.later[:min(uint(c.noted), LaterSize)] {
		ref := uint32(e >> 32)
		i, way, n := ref&(counterPageSize-1), uint32(e)>>31, ref&(MaxBackends-1)>>counterPageBits
		page := c.pages[n].Load()
		if ref == 0 || page == nil {
			continue
		}
		t := &page.own[i]
		t.packets[way]++
		t.bytes[way] += uint32(e) &^ (1 << 31)
		if mark := uint64(1) << (i % 64); page.marked[i/64]&mark == 0 || t.bytes[way] >= fullBytes {
			c.mark(page, n, i)
		}
	}
	c.noted = 0
}

// Publish adds marked sums to the Counters, at most limit of them, and says how many. Only the worker calls it.
func (c *Counters) Publish(limit int) (n int) {
	c.CountLater()
	for w := range c.marked {
		for c.marked[w] != 0 {
			at := bits.TrailingZeros64(c.marked[w])
			page := c.pages[w*64+at].Load()
			n += page.publish(limit - n)
			if n == limit {
				return n // the page may have more
			}
			c.marked[w] &^= 1 << at
		}
	}
	return n
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
