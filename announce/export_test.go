package announce

import (
	"time"

	"sluice.dev/sluice/announce/pulse"
)

// See takes a sight of the gateway and makes a step, as Run does.
func (l *Loop) See(s pulse.Sight, now time.Time) {
	l.pulses.put(s)
	l.step(now, false)
}
