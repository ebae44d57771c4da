package layer2

import (
	"maps"
	"sync"
	"time"
)

// incarnations gives each link of a Speaker a greater incarnation than all earlier links had, also
// if the clock was set back. A link that is removed and added again starts with sequence 1 and a
// new list of VIPs: without a new incarnation the other members would take its hellos for replays.
type incarnations struct {
	mu    sync.Mutex // guards the fields below; no other lock is taken while it is held
	last  uint64
	given map[uint64]time.Time // when the incarnation's link ended; zero: it has not
}

// echoes is how long after a link has ended its hellos may still arrive by another interface.
const echoes = time.Minute

// begin returns the incarnation of a new link.
func (i *incarnations) begin(now time.Time) uint64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	maps.DeleteFunc(i.given, func(_ uint64, end time.Time) bool { return !end.IsZero() && now.Sub(end) > echoes })
	if i.given == nil {
		i.given = map[uint64]time.Time{}
	}
	i.last = max(i.last+1, uint64(now.UnixNano()))
	i.given[i.last] = time.Time{}
	return i.last
}

// end records that a link has ended.
func (i *incarnations) end(incarnation uint64, now time.Time) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.given[incarnation] = now
}

// ours reports whether a link of this Speaker has an incarnation, or had it recently.
func (i *incarnations) ours(incarnation uint64) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	_, yes := i.given[incarnation]
	return yes
}
