package l2fwd

import (
	"testing"
	"time"
)

func TestQuantile(t *testing.T) {
	var l latencies
	if l.quantile(0.5) != 0 {
		t.Error("a quantile of nothing")
	}
	l[0], l[9], l[sinkBuckets-1] = 50, 49, 1
	for q, want := range map[float64]time.Duration{0.5: 1024, 0.51: 10240, 0.99: 10240, 1: sinkBuckets * 1024} {
		if got := l.quantile(q); got != want {
			t.Errorf("quantile %v is %s, want %s", q, got, want)
		}
	}
}
