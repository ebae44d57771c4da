package wake

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestFlag: a flag that was raised any number of times is received once, and can be raised again.
func TestFlag(t *testing.T) {
	f := NewFlag()
	for range 2 {
		f.Raise()
		f.Raise()
		<-f
		select {
		case <-f:
			t.Fatal("received twice")
		default:
		}
	}
}

// TestAfter: a wait takes its time unless the context ends, which counts without a wait, too.
func TestAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		began := time.Now()
		for _, c := range []struct {
			wait, at time.Duration
			passed   bool
		}{
			{2 * time.Second, 2 * time.Second, true}, {0, 2 * time.Second, true}, {-1, 2 * time.Second, true},
			{2 * time.Second, 3 * time.Second, false}, {0, 3 * time.Second, false},
		} {
			if passed := After(ctx, c.wait); passed != c.passed || time.Since(began) != c.at {
				t.Errorf("a wait for %v: %v after %v, want %+v", c.wait, passed, time.Since(began), c)
			}
		}
	})
}
