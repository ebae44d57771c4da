package stateless

import (
	"math"
	"math/bits"
	"testing"
	"time"
)

// TestDelayBuckets: what a bucket stands for is within a step of everything in it.
func TestDelayBuckets(t *testing.T) {
	for nanos := uint64(1); nanos < 1<<39; nanos += nanos/7 + 1 {
		bucket := nanos
		if top := bits.Len64(nanos) - 1; top >= delayFine {
			bucket = uint64(top-delayFine)<<delayFine + nanos>>(top-delayFine)
		}
		if got := delayNanos(uint32(bucket)); math.Abs(float64(got)-float64(nanos)) > float64(nanos)/delaySteps {
			t.Errorf("%d ns are counted in bucket %d as %d ns", nanos, bucket, got)
		}
	}
}

// TestHistogramKeepsThreeDigits: also of the shortest latencies, of which a system's own share is
// read.
func TestHistogramKeepsThreeDigits(t *testing.T) {
	for nanos := int64(time.Microsecond); nanos <= latencyHighest; nanos += nanos/9 + 7 {
		h := NewHistogram()
		h.Record(nanos)
		if got := int64(h.Percentile(50)); math.Abs(float64(got-nanos)) > float64(nanos)/1000 {
			t.Errorf("%d ns are kept as %d", nanos, got)
		}
	}
}
