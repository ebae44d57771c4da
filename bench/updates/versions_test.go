package updates

import (
	"slices"
	"testing"
	"time"
)

func TestVersions(t *testing.T) {
	zero := time.Unix(1000, 0)
	at := func(ms int) time.Time { return zero.Add(time.Duration(ms) * time.Millisecond) }
	v := versions{service: 3}
	for i := range ring + 3 {
		if n := v.send(at(10 * i)); n != i {
			t.Fatalf("version %d, want %d", n, i)
		}
		switch {
		case i == 5: // skipped: served by the next
		case i == 6:
			v.arrived(at(10*i+1), address(3, 6))
			v.arrived(at(10*i+2), address(3, 4)) // overtaken
		case i == ring+2: // never seen
		default:
			v.arrived(at(10*i+3), address(3, i))
			v.arrived(at(10*i+4), address(3, i)) // the first one counts
		}
	}
	list, unseen := v.latencies()
	want := slices.Repeat([]time.Duration{3 * time.Millisecond}, ring+1) // versions 1 to ring+1
	want[5-1], want[6-1] = 11*time.Millisecond, time.Millisecond
	if !slices.Equal(list, want) || unseen != 1 {
		t.Errorf("%v, %d unseen; want %v, 1", list, unseen, want)
	}
}
