package stats

import (
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

// TestTimes: an index is usable after Ensure, and adding allocates nothing.
func TestTimes(t *testing.T) {
	var none *Times
	none.Ensure(1)
	var times Times
	times.Ensure(timesPageSize + 1)
	if none.At(0) != nil || times.At(2*timesPageSize) != nil || times.At(MaxBackends-1) != nil {
		t.Error("an index without Ensure is usable")
	}
	b := times.At(timesPageSize)
	if allocs := testing.AllocsPerRun(100, func() { b.Answer.Add(150 * time.Millisecond) }); allocs != 0 {
		t.Errorf("%v allocations for a duration", allocs)
	}
	if n := b.Answer.Buckets[bucketOf(150*time.Millisecond)].Load(); n != 101 || b.Answer.Micros.Load() != 101*150_000 {
		t.Errorf("%d durations of %d µs, want 101 of 150 ms", n, b.Answer.Micros.Load())
	}
}
