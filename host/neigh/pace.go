package neigh

import "time"

const (
	// minReadingGap is the minimum time between readings, so that a burst of events leads to one.
	minReadingGap = 2 * time.Millisecond
	// maxReadingGap is the maximum time that a change waits because readings are slow.
	maxReadingGap = time.Second
	// restPerReading keeps readings of a large table below a tenth of one core.
	restPerReading = 9
)

// pace schedules the next reading of the topology: soon after an event, but not so often that
// readings take more than a tenth of a core.
type pace struct {
	dirty  bool // a change was announced
	all    bool // read neighbours and rules as well
	forced bool // publish even without a difference: the configuration changed
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
