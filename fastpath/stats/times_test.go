package stats

import (
	"runtime"
	"sync"
	"testing"
	"time"
)

// TestHistogramBuckets: each duration is in the bucket that begins at or before it, and a bucket is
// at most a quarter wider than its start.
func TestHistogramBuckets(t *testing.T) {
	if first := BucketStart(1); first != 64*time.Microsecond {
		t.Errorf("the first bucket ends at %v", first)
	}
	if last := BucketStart(HistogramBuckets - 1); last < time.Minute || last > 2*time.Minute {
		t.Errorf("the last bucket begins at %v", last)
	}
	for b := range HistogramBuckets {
		start, end := BucketStart(b), BucketStart(b+1)
		if b == HistogramBuckets-1 {
			end = time.Hour
		} else if b > 0 && end-start > start/4 {
			t.Errorf("bucket %d is from %v to %v", b, start, end)
		}
		for _, d := range []time.Duration{start, (start + end) / 2, end - 1} {
			if got := bucketOf(d); got != b {
				t.Errorf("%v is in bucket %d, want %d: %v to %v", d, got, b, start, end)
			}
		}
	}
	if b := bucketOf(-time.Second); b != 0 {
		t.Errorf("a negative duration is in bucket %d", b)
	}
}

// TestTimes: an index is usable after Ensure, and counting allocates nothing.
func TestTimes(t *testing.T) {
	var none *Times
	none.Ensure(1)
	var times Times
	times.Ensure(timesPageSize + 1)
	if none.Count(0) != nil || times.Count(2*timesPageSize) != nil || times.Count(MaxBackends-1) != nil {
		t.Error("an index without Ensure is usable")
	}
	if times.At(timesPageSize) != nil || none.At(0) != nil || none.Remove(0) != nil {
		t.Error("an index has times before one is counted")
	}
	index := uint32(0)
	if allocs := testing.AllocsPerRun(50, func() { times.Count(index).Refused.Add(1); index++ }); allocs != 0 {
		t.Errorf("%v allocations for the times of a backend", allocs)
	}
	b := times.Count(timesPageSize)
	if allocs := testing.AllocsPerRun(100, func() { b.Answer.Add(150 * time.Millisecond) }); allocs != 0 {
		t.Errorf("%v allocations for a duration", allocs)
	}
	if n := b.Answer.Buckets[bucketOf(150*time.Millisecond)].Load(); n != 101 || b.Answer.Micros.Load() != 101*150_000 {
		t.Errorf("%d durations of %d µs, want 101 of 150 ms", n, b.Answer.Micros.Load())
	}
	if times.Remove(timesPageSize) != b || times.At(timesPageSize) != nil {
		t.Error("the index has times after they were removed")
	}
}

// TestTimesOfManyBackends: memory is taken by backends that something is counted for, and by a
// bounded stock; what a worker finds no room for is counted after the next Refill. Two workers
// count in the same times.
func TestTimesOfManyBackends(t *testing.T) {
	const backends = 200_000
	var times Times
	held := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := held()
	times.Ensure(backends)
	if n := held() - before; n > 12<<20 {
		t.Errorf("%d MiB for %d backends without times, want 12 at most", n>>20, backends)
	}
	for i := range uint32(timesStock) {
		if times.Count(i) == nil {
			t.Fatalf("no times for backend %d: the stock has %d", i, timesStock)
		}
	}
	if times.Count(backends-1) != nil {
		t.Error("times from an empty stock")
	}
	times.Refill()
	var workers sync.WaitGroup
	for range 2 {
		workers.Go(func() {
			for i := range uint32(1000) {
				times.Count(backends - 1 - i).Refused.Add(1)
			}
		})
	}
	workers.Wait()
	for i := range uint32(1000) {
		if n := times.At(backends - 1 - i).Refused.Load(); n != 2 {
			t.Fatalf("backend %d has %d, want one of each worker", backends-1-i, n)
		}
	}
	runtime.KeepAlive(&times)
}

// TestTimesAreBounded: however many backends something is counted for, their times have bounded
// memory, and removed ones make room.
func TestTimesAreBounded(t *testing.T) {
	const backends = maxTimes + 2*timesStock
	var times Times
	times.Ensure(backends)
	count := func(from, to int) (n int) {
		for i := from; i < to; i++ {
			if i%timesStock == 0 {
				times.Refill()
			}
			if times.Count(uint32(i)) != nil {
				n++
			}
		}
		return n
	}
	if n := count(0, backends); n != maxTimes {
		t.Errorf("%d backends have times, want %d", n, maxTimes)
	}
	for i := range uint32(100) {
		times.Remove(i)
	}
	times.Refill()
	if n := count(maxTimes+timesStock, backends); n != 100 {
		t.Errorf("%d more backends have times, want the 100 of removed ones", n)
	}
}
