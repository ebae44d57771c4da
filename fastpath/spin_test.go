package fastpath

import (
	"testing"
	"time"
)

// TestSpin: how long a worker looks for packets never exceeds Spin, nor what it worked
// since its last sleep where it is bounded by that.
func TestSpin(t *testing.T) {
	for _, c := range []struct {
		name     string
		asWorked bool
		worked   uint64
		want     uint64
	}{
		{"always", false, 0, 20_000},
		{"nothing came since the last sleep", true, 0, 0},
		{"one packet", true, 1_500, 1_500},
		{"busy", true, 1_000_000, 20_000},
	} {
		r := RunConfig{Spin: 20 * time.Microsecond, SpinAsWorked: c.asWorked}
		if got := r.spin(c.worked); got != c.want {
			t.Errorf("%s: %d ns, want %d", c.name, got, c.want)
		}
	}
}
