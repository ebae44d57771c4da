package announce

import (
	"slices"
	"sync"
	"time"

	"sluice.dev/sluice/announce/pulse"
	"sluice.dev/sluice/internal/heartbeat"
	"sluice.dev/sluice/internal/wake"
)

// pulses passes the sights of the gateway from their reader to the Loop.
type pulses struct {
	mu      sync.Mutex // guards waiting
	waiting []pulse.Sight
	arrived wake.Flag
	beat    *heartbeat.Beat // of the reader

	// Only the Loop's goroutine uses these.
	last   pulse.Sight
	stalls bool // the reader has stalled: last may be old
}

// put adds a sight. The reader calls it.
func (p *pulses) put(s pulse.Sight) {
	p.mu.Lock()
	p.waiting = append(p.waiting, s)
	p.mu.Unlock()
	p.arrived.Raise()
}

// take returns the waiting sights, the oldest first.
func (p *pulses) take() []pulse.Sight {
	p.mu.Lock()
	defer p.mu.Unlock()
	sights := p.waiting
	p.waiting = nil
	if len(sights) > 0 {
		p.last = sights[len(sights)-1]
	}
	return sights
}

// urgent reports whether a waiting sight concerns all VIPs. before is the last one that was taken.
func (p *pulses) urgent(before pulse.Sight) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.waiting {
		if s.Lost != before.Lost || (s.State == nil) != (before.State == nil) || s.State != nil &&
			(s.State.Phase != before.State.Phase || !slices.Equal(s.State.Failures, before.State.Failures) ||
				!slices.Equal(s.State.Sources, before.State.Sources)) {
			return true
		}
		before = s
	}
	return false
}

// checkReader returns a sight of a lost gateway when the reader has stalled, because no one would
// notice that the gateway ended, and the last sight when the reader continues.
func (p *pulses) checkReader(now time.Time) (s pulse.Sight, changed bool) {
	stalls := p.beat.Late()
	if stalls == p.stalls {
		return s, false
	}
	p.stalls = stalls
	if s = p.last; stalls && s.Lost == "" {
		s.Lost, s.At = "the announcer's reader of the gateway's pulse has stalled", now
		return s, true
	}
	return s, !stalls
}
