package stats

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// Times has, by backend index, how long backends took to answer, and how often they and their
// clients tried again or gave up. The workers share it: they count in it once or twice for a
// connection. Only a backend with something to count has BackendTimes: a worker takes them from a
// stock when it counts the first time, because workers never allocate. At most maxTimes backends
// have them, because a tenant can have something counted for each of its endpoints.
type Times struct {
	pages [timesPages]atomic.Pointer[timesPage]
	stock [timesStock]atomic.Pointer[BackendTimes]
	taken atomic.Uint32 // attempts to take from the stock
	fill  atomic.Uint32 // the stock is filled up to here
	made  atomic.Int32  // BackendTimes of backends and of the stock
}

type timesPage [timesPageSize]atomic.Pointer[BackendTimes]

const (
	timesPageBits = 7
	timesPageSize = 1 << timesPageBits
	timesPages    = MaxBackends >> timesPageBits

	// timesStock bounds the stock, in BackendTimes of 1.4 KB.
	timesStock = 4096
	// maxTimes are 190 MB.
	maxTimes = 1 << 17
)

// BackendTimes are the times of one backend. Any goroutine may add to them and read them.
type BackendTimes struct {
	// Handshake has the times from a client's first SYN to the backend's SYN-ACK, or from INIT to
	// INIT ACK.
	Handshake Histogram
	// Answer has the times to the backend's first datagram from the client's first one, or to the
	// backend's first payload of TCP from the client's first one.
	Answer Histogram
	// RepeatedSYNs counts SYNs and INITs that clients repeated before the backend had answered,
	// RepeatedAfter SYNs and INITs that they repeated after the answer had been sent to them.
	RepeatedSYNs, RepeatedAfter atomic.Uint64
	Refused                     atomic.Uint64 // connections whose first answer was an RST
	// ResetByBackend and ResetByClient count connections that one end ended by an RST after the
	// backend had agreed to them.
	ResetByBackend, ResetByClient atomic.Uint64
}

// Ensure makes indexes below n usable, and fills the stock. Only the control loop calls it.
func (t *Times) Ensure(n int) {
	for p := 0; t != nil && p<<timesPageBits < n && p < timesPages; p++ {
		if t.pages[p].Load() == nil {
			t.pages[p].Store(new(timesPage))
		}
	}
	if t != nil {
		t.fill.Store(max(t.fill.Load(), uint32(min(n, timesStock))))
		t.Refill()
	}
}

// Refill replaces what workers have taken from the stock. Any goroutine but a worker may call it.
func (t *Times) Refill() {
	for i := range t.stock[:t.fill.Load()] {
		if t.stock[i].Load() != nil {
			continue
		}
		if t.made.Add(1) > maxTimes {
			t.made.Add(-1)
			return
		}
		if !t.stock[i].CompareAndSwap(nil, new(BackendTimes)) {
			t.made.Add(-1)
		}
	}
}

func (t *Times) at(index uint32) *atomic.Pointer[BackendTimes] {
	if t == nil {
		return nil
	}
	page := t.pages[index>>timesPageBits&(timesPages-1)].Load()
	if page == nil {
		return nil
	}
	return &page[index&(timesPageSize-1)]
}

// At returns the times of a backend index, or nil if nothing was counted for it.
func (t *Times) At(index uint32) *BackendTimes {
	if p := t.at(index); p != nil {
		return p.Load()
	}
	return nil
}

// Count returns the times of a backend index to count in, or nil if Ensure has not made it usable,
// or if the index has none and the stock is empty, as it stays while maxTimes backends have times.
func (t *Times) Count(index uint32) *BackendTimes {
	p := t.at(index)
	if p == nil {
		return nil
	}
	if b := p.Load(); b != nil {
		return b
	}
	fill := t.fill.Load()
	if fill == 0 {
		return nil
	}
	if b := t.stock[(t.taken.Add(1)-1)%fill].Swap(nil); b != nil {
		if !p.CompareAndSwap(nil, b) { // another worker was first
			t.made.Add(-1)
		}
	}
	return p.Load()
}

// Remove removes and returns the times of a backend index, which may be nil. No worker counts in
// them any more.
func (t *Times) Remove(index uint32) *BackendTimes {
	p := t.at(index)
	if p == nil {
		return nil
	}
	b := p.Swap(nil)
	if b != nil {
		t.made.Add(-1)
	}
	return b
}

// Histogram counts durations in four buckets for each power of two of microseconds: a bucket is at
// most a quarter wider than its lower bound, and the first one has all durations below 64 µs.
type Histogram struct {
	Buckets [HistogramBuckets]atomic.Uint64
	Micros  atomic.Uint64 // sum of all durations
}

const (
	firstBits = 6  // the first bucket ends at 64 µs
	lastBits  = 26 // the last one begins at 67 s
	subBits   = 2

	// HistogramBuckets is the number of buckets of a Histogram.
	HistogramBuckets = (lastBits-firstBits)<<subBits + 2
)

// bucketOf returns the bucket of a duration.
func bucketOf(d time.Duration) int {
	micros := uint64(max(0, d) / time.Microsecond)
	n := bits.Len64(micros)
	switch {
	case n <= firstBits:
		return 0
	case n > lastBits:
		return HistogramBuckets - 1
	}
	sub := int(micros>>(n-1-subBits)) & (1<<subBits - 1)
	return 1 + (n-1-firstBits)<<subBits + sub
}

// BucketStart returns the least duration of a bucket. The end of a bucket is the start of the next.
func BucketStart(bucket int) time.Duration {
	if bucket == 0 {
		return 0
	}
	n, sub := (bucket-1)>>subBits, (bucket-1)&(1<<subBits-1)
	return time.Duration(1<<subBits+sub) << (firstBits + n - subBits) * time.Microsecond
}

// Add counts a duration.
func (h *Histogram) Add(d time.Duration) {
	h.Buckets[bucketOf(d)].Add(1)
	h.Micros.Add(uint64(max(0, d) / time.Microsecond))
}
