package ports

import (
	"testing"
	"time"
)

// Everything is read at each look while something changes, and every two seconds else.
func TestReadings(t *testing.T) {
	var r readings
	now := time.Unix(1000, 0)
	count := func(d time.Duration, stir bool) (n int) {
		for end := now.Add(d); now.Before(end); now = now.Add(watchEvery) {
			if stir {
				r.stir(now)
			}
			if r.due(now) {
				n++
			}
		}
		return n
	}
	for _, c := range []struct {
		when string
		d    time.Duration
		stir bool
		want int
	}{
		{"at the start and after", 8 * time.Second, false, 4},
		{"while something changes", 3 * time.Second, true, 6},
		{"and some time after", stirFor - watchEvery, false, 9},
		{"then seldom", 8 * time.Second, false, 4},
	} {
		if n := count(c.d, c.stir); n != c.want {
			t.Errorf("%s: read %d times in %v, want %d", c.when, n, c.d, c.want)
		}
	}
}
