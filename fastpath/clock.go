package fastpath

import (
	"time"

	"golang.org/x/sys/unix"
)

// clock reads CLOCK_BOOTTIME for half the cost of a system call: it adds an offset to the process's
// monotonic clock, which is read in the vDSO. Only a suspend of the machine changes the offset;
// clock measures it again every second.
type clock struct {
	base     time.Time
	bootBase uint64
}

const (
	clockResync = time.Second
	clockReads  = 4                     // at most, in a resync
	clockError  = 20 * time.Microsecond // a thread that was not preempted takes a tenth of it
)

func (c *clock) now() uint64 {
	if !c.base.IsZero() {
		if since := time.Since(c.base); since < clockResync {
			return c.bootBase + uint64(since)
		}
	}
	return c.resync(bootNanos)
}

func bootNanos() uint64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) // cannot fail on Linux
	return uint64(ts.Nano())
}

// resync measures the offset. A thread that is preempted between the reads of the two clocks would
// be wrong by the time it waited, so it reads again.
func (c *clock) resync(boot func() uint64) uint64 {
	for range clockReads {
		c.base = time.Now()
		c.bootBase = boot()
		if time.Since(c.base) <= clockError {
			break
		}
	}
	return c.bootBase
}
