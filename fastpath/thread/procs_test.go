package thread

import (
	"runtime"
	"testing"
)

// TestSetProcs: there are two Ps more than workers, and a larger number stays.
func TestSetProcs(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for _, c := range []struct{ workers, want int }{{1, 3}, {5, 7}, {2, 7}} {
		if SetProcs(c.workers); runtime.GOMAXPROCS(0) != c.want {
			t.Errorf("GOMAXPROCS is %d after SetProcs(%d), want %d", runtime.GOMAXPROCS(0), c.workers, c.want)
		}
	}
}
