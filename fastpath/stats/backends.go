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
// The worker counts packets in sums of its own, half a cache line a backend, and marks what it
// touched; Publish copies what is marked to the Counters. A packet then costs no atomic
// store, and how old a Counter may be is the worker's choice.
type Counters struct {
	pages  [counterPages]atomic.Pointer[counterPage]
	marked [counterPages / 64]uint64 // pages with marks; the worker's own
}

type counterPage struct {
	own    [counterPageSize]traffic     // the worker's
	marked [counterPageSize / 64]uint64 // indexes that differ from shared; the worker's
	shared [counterPageSize]Counter
}

// traffic is packets and bytes: to the backend, and to clients.
type traffic struct {
	packets, bytes [2]uint64
}

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
	t.bytes[way&1] += uint64(bytes)
	if mark := uint64(1) << (i % 64); page.marked[i/64]&mark == 0 {
		page.marked[i/64] |= mark
		c.marked[n/64] |= 1 << (n % 64)
	}
}

// Publish copies marked sums to the Counters, at most limit of them, and says how many it
// copied. Only the worker calls it.
func (c *Counters) Publish(limit int) (n int) {
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
			own, shared := &p.own[i], &p.shared[i]
			shared.ToBackend.Store(own.packets[0])
			shared.ToBackendBytes.Store(own.bytes[0])
			shared.ToClient.Store(own.packets[1])
			shared.ToClientBytes.Store(own.bytes[1])
		}
	}
	return n
}
