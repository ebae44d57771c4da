package fastpath

import (
	"testing"
	"time"

	"sluice.dev/sluice/internal/boottime"
)

// TestClock: the clock is CLOCK_BOOTTIME, also between and after its measurements of the offset.
func TestClock(t *testing.T) {
	var c clock
	for range 3 {
		before := boottime.Nanos()
		now := c.now()
		if after := boottime.Nanos(); now+uint64(time.Millisecond) < before || now > after+uint64(time.Millisecond) {
			t.Errorf("%d is not between %d and %d", now, before, after)
		}
		c.base, c.bootBase = c.base.Add(-clockResync/2), c.bootBase-uint64(clockResync/2) // half a second passes
	}
}
