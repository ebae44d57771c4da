package fastpath

import (
	"time"

	"sluice.dev/sluice/internal/boottime"
)

// clock reads CLOCK_BOOTTIME for half the cost of a system call: it adds an offset to the process's
// monotonic clock, which is read in the vDSO. Only a suspend of the machine changes the offset;
// clock measures it again every second.
type clock struct {
	base     time.Time
	bootBase uint64
}

const clockResync = time.Second

func (c *clock) now() uint64 {
	if !c.base.IsZero() {
		if since := time.Since(c.base); since < clockResync {
			return c.bootBase + uint64(since)
		}
	}
	c.bootBase, c.base = boottime.Now()
	return c.bootBase
}
