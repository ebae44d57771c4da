package updates

import (
	"testing"
	"time"
)

func TestCurve(t *testing.T) {
	list := make([]time.Duration, 1000)
	for i := range list {
		list[i] = time.Duration(i+1) * time.Millisecond
	}
	want := map[float64]float64{0: 1, 50: 501, 99: 991, 99.9: 1000, 100: 1000}
	for _, p := range curve(list) {
		if w, asked := want[p[0]]; asked && p[1] != w {
			t.Errorf("percentile %g is %g ms, want %g", p[0], p[1], w)
		}
	}
	if len(curve(list)) != len(percentiles) || curve(nil) != nil {
		t.Errorf("%d points of %d, %v of none", len(curve(list)), len(percentiles), curve(nil))
	}
}
