package demo

import "testing"

// The changes of act 5 always leave two endpoints, and end as they began.
func TestTogglesRestoreTheEndpoints(t *testing.T) {
	is := map[int]bool{0: true, 1: true, 2: true}
	for _, n := range toggled {
		is[n] = !is[n]
		here := 0
		for _, on := range is {
			if on {
				here++
			}
		}
		if here < 2 {
			t.Errorf("%d endpoints are left after %d", here, n)
		}
	}
	if !is[0] || !is[1] || !is[2] || is[3] {
		t.Errorf("endpoints at the end: %v", is)
	}
}
