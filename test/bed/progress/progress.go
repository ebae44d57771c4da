// Package progress reports the progress of a long measurement, and the time left:
//
//	p := progress.Start(os.Stderr, len(rounds)*len(systems))
//	p.Step("round 1, sluice")   // [ 1/15] round 1, sluice
//	p.Step("round 1, l2fwd")    // [ 2/15] round 1, l2fwd · 12 s gone, about 2 min 48 s left
//	p.Done()                    // 15 of 15 in 3 min 2 s
//
// A step is named when it begins. The remaining time is estimated from the steps that are over, so
// steps should be about equally long, or Weigh states how long each is relative to the others.
package progress

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// apart is the least time between two lines: thousands of short steps print few.
const apart = time.Second

// Progress is one measurement's. Its methods may be called by several goroutines.
type Progress struct {
	mu    sync.Mutex
	out   io.Writer
	total int
	begun int // steps
	share []float64
	start time.Time
	said  time.Time
	now   func() time.Time // of tests
}

// Start begins a measurement of total steps. A nil out prints nothing.
func Start(out io.Writer, total int) *Progress { return startAt(out, total, time.Now) }

func startAt(out io.Writer, total int, now func() time.Time) *Progress {
	if out == nil {
		out = io.Discard
	}
	return &Progress{out: out, total: total, start: now(), now: now}
}

// Weigh sets how long the steps are, in any unit. It must be called before the first.
func (p *Progress) Weigh(shares ...float64) *Progress {
	p.share = shares
	return p
}

// left is how much of the steps that are over the others are.
func (p *Progress) left(over int) float64 {
	if len(p.share) != p.total {
		return float64(p.total-over) / float64(over)
	}
	var gone, all float64
	for i, s := range p.share {
		all += s
		if i < over {
			gone += s
		}
	}
	return (all - gone) / gone
}

// Step prints what begins now; it ends the step before.
func (p *Progress) Step(what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	over := p.begun
	p.begun++
	p.total = max(p.total, p.begun) // a total that was too small must not print 5/4
	if over > 0 && p.begun < p.total && now.Sub(p.said) < apart {
		return
	}
	p.said = now
	width := len(fmt.Sprint(p.total))
	fmt.Fprintf(p.out, "[%*d/%d] %s", width, p.begun, p.total, what)
	if gone := now.Sub(p.start); over > 0 {
		left := time.Duration(float64(gone) * p.left(over))
		fmt.Fprintf(p.out, " · %s gone, about %s left", Short(gone), Short(left))
	}
	fmt.Fprintln(p.out)
}

// Done prints the total time.
func (p *Progress) Done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.out, "%d of %d in %s\n", p.begun, p.total, Short(p.now().Sub(p.start)))
}

// Short is a duration as people say it: "8 s", "2 min 48 s", "1 h 5 min".
func Short(d time.Duration) string {
	s := int(d.Round(time.Second) / time.Second)
	switch {
	case s < 60:
		return fmt.Sprintf("%d s", s)
	case s < 3600:
		return fmt.Sprintf("%d min %d s", s/60, s%60)
	}
	return fmt.Sprintf("%d h %d min", s/3600, s%3600/60)
}
