package announce

import (
	"time"

	"sluice.dev/sluice/announce/pulse"
)

// See takes a sight of the gateway and makes a step, as Run does.
func (l *Loop) See(s pulse.Sight, now time.Time) {
	l.mu.Lock()
	l.sights = append(l.sights, s)
	l.mu.Unlock()
	l.step(now, false)
}
