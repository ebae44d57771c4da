package demo

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// Only an answer to a datagram sent after the daemon's end proves that its successor forwards.
func TestProbeCountsOnlyLaterDatagrams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &probe{}
		died := time.Now()
		go func() {
			time.Sleep(10 * time.Millisecond)
			p.echoed(died.Add(-time.Millisecond)) // a late answer to an older datagram
			p.echoed(died)
			time.Sleep(20 * time.Millisecond)
			p.echoed(died.Add(time.Millisecond))
			p.echoed(died.Add(2 * time.Millisecond)) // the waiter is gone
		}()
		at, err := p.answered(t.Context(), died, time.Minute)
		if err != nil || at.Sub(died) != 30*time.Millisecond {
			t.Errorf("answered after %s: %v", at.Sub(died), err)
		}
		synctest.Wait()
	})
}

func TestProbeGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &probe{}
		began := time.Now()
		if _, err := p.answered(t.Context(), began, time.Second); err == nil || time.Since(began) != time.Second {
			t.Errorf("no answer, but error %v after %s", err, time.Since(began))
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := p.answered(ctx, time.Now(), time.Hour); err == nil {
			t.Error("interrupted, but no error")
		}
	})
}
