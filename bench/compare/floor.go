package compare

import (
	"context"
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"time"

	"sluice.dev/sluice/fastpath/thread"
)

// A thread that forwards on a CPU does not run while a hypervisor stops the CPU, an interrupt is
// handled or the scheduler runs another thread. The floor measures such gaps with a loop that is
// alone on an idle CPU while nothing else is measured. It is expressed as a latency: packets come
// all the time, and each waits for the end of the gap in which it came.

// absences are the gaps during which a loop on a CPU did not run.
type absences struct {
	gaps []time.Duration // gaps longer than shortGap, the longest first
	of   time.Duration   // duration of the measurement
}

// shortGap is longer than the time to read the clock.
const shortGap = time.Microsecond

// watch measures the gaps of a CPU for a duration.
func watch(ctx context.Context, cpu int, d time.Duration) (a absences, err error) {
	const most = 1 << 16 // 32,000 interrupts a second for two seconds
	a.gaps = make([]time.Duration, 0, most)
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its mask
		if err := thread.Bind(cpu); err != nil {
			done <- err
			return
		}
		for begin, last := time.Now(), time.Now(); ctx.Err() == nil && a.of < d; a.of = last.Sub(begin) {
			for range 1000 {
				now := time.Now()
				if gap := now.Sub(last); gap > shortGap && len(a.gaps) < most {
					a.gaps = append(a.gaps, gap)
				}
				last = now
			}
		}
		done <- ctx.Err()
	}()
	err = <-done
	slices.SortFunc(a.gaps, func(x, y time.Duration) int { return int(y - x) })
	return a, err
}

// percentile returns the least wait that p percent of packets do not exceed, if packets come all
// the time and each waits for the end of the gap in which it comes.
func (a *absences) percentile(p float64) time.Duration {
	// In a gap g, packets wait for longer than w during max(0, g-w). If the n longest gaps are
	// longer than w, packets wait for longer than w during the sum of these gaps less n times w.
	left := (1 - p/100) * float64(a.of)
	sum := 0.0
	for n, g := range a.gaps {
		sum += float64(g)
		next := 0.0
		if n+1 < len(a.gaps) {
			next = float64(a.gaps[n+1])
		}
		if w := (sum - left) / float64(n+1); w >= next {
			return time.Duration(max(0, math.Round(w)))
		}
	}
	return 0
}

// measureFloor measures the floor of the first CPU on which no packet arrives.
func measureFloor(ctx context.Context, c *comparison) error {
	free := c.quiet()
	if len(free) == 0 {
		return nil
	}
	a, err := watch(ctx, free[0], c.Duration)
	if err != nil {
		return err
	}
	if c.floor == nil {
		c.floor = map[string][]float64{}
	}
	for _, p := range percentiles {
		c.floor[p.name] = append(c.floor[p.name], float64(a.percentile(p.percent))/float64(time.Microsecond))
	}
	return nil
}

// printFloor writes the floor as a line in the table of rates.
func (c *comparison) printFloor(w io.Writer) {
	if c.floor == nil {
		return
	}
	fmt.Fprintf(w, "empty CPU %d\t-\t-\t-\t", c.quiet()[0])
	for _, p := range percentiles {
		fmt.Fprintf(w, "%.0f\t", median(c.floor[p.name]))
	}
	fmt.Fprint(w, "-\t-\t\n")
}
