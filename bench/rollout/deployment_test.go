package rollout

import (
	"testing"
	"time"
)

// A rolling update respects the Deployment's limits at every step, and ends.
func TestRollout(t *testing.T) {
	for _, tc := range []struct {
		replicas, most, least int // pods not terminating, and ready ones
	}{
		{50, 63, 38}, {4, 5, 3}, {1, 2, 1}, {7, 9, 6},
	} {
		c := Config{Replicas: tc.replicas, Grace: 300 * time.Millisecond, Seed: 7}
		r := newRollout(&c, func() *pod { return &pod{} })
		steps, now := 0, time.Duration(0)
		for ; !r.done(); now += 10 * time.Millisecond {
			if now > time.Minute {
				t.Fatalf("%d replicas: not done after a minute", tc.replicas)
			}
			s := r.step(now)
			if s.any() {
				steps++
			}
			alive, isReady := 0, 0
			for _, p := range r.pods {
				if p.phase == starting || p.phase == ready {
					alive++
				}
				if p.phase == ready {
					isReady++
				}
			}
			if alive > tc.most || isReady < tc.least {
				t.Fatalf("%d replicas, %v: %d pods (at most %d), %d ready (at least %d)", tc.replicas, now, alive,
					tc.most, isReady, tc.least)
			}
			for _, p := range s.died {
				if late := now - p.due; late < 0 || late >= 10*time.Millisecond {
					t.Errorf("died %v after the grace", late)
				}
			}
		}
		for i, p := range r.pods {
			if old := i < tc.replicas; p.old != old || old != (p.phase == dead) {
				t.Errorf("%d replicas: pod %d is %+v in the end", tc.replicas, i, p)
			}
		}
		if steps < 3 {
			t.Errorf("%d replicas in %d steps", tc.replicas, steps)
		}
	}
}
