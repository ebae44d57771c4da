package neigh

import "time"

const (
	// minReadingGap lets a burst of events become one reading.
	minReadingGap = 2 * time.Millisecond
	// maxReadingGap bounds how long a change can wait behind slow readings.
	maxReadingGap = time.Second
	// restPerReading keeps readings of a large table below a tenth of one core.
	restPerReading = 9
)

// pace says when the topology is read next: soon after an event, but not more
// often than readings can be afforded.
type pace struct {
	dirty  bool // something was announced
	all    bool // neighbours and rules too
	forced bool // publish even if nothing differs: the configuration changed
	armed  bool // the timer runs
	last   time.Time
	took   time.Duration
}

func (p *pace) everything() { p.dirty, p.all = true, true }
func (p *pace) force()      { p.dirty, p.forced = true, true }

// arm returns how long to wait for the next reading, if one is due and no timer runs.
func (p *pace) arm(now time.Time) (time.Duration, bool) {
	if !p.dirty || p.armed {
		return 0, false
	}
	p.armed = true
	rest := min(max(minReadingGap, restPerReading*p.took), maxReadingGap)
	return max(minReadingGap, rest-now.Sub(p.last)), true
}

func (p *pace) done(now time.Time, took time.Duration) { p.last, p.took = now, took }
