package layer2

import (
	"maps"
	"sync"
	"time"
)

// incarnations gives each link of a Speaker one that no link before it had, and a greater one, also
// where the clock went back. A link that was taken out and is put back says hello from sequence 1
// and lists its VIPs anew: others must know that by its incarnation, or they take it for a record.
type incarnations struct {
	mu    sync.Mutex // guards what follows; nothing is locked while it is held
	last  uint64
	given map[uint64]time.Time // when the link ended; zero: it has not
}

// echoes is how long after a link has ended its hellos may still come by another interface.
const echoes = time.Minute

// begin returns that of a link that begins.
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

// end notes that a link has ended.
func (i *incarnations) end(incarnation uint64, now time.Time) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.given[incarnation] = now
}

// ours reports whether a link of this Speaker has an incarnation, or had it lately.
func (i *incarnations) ours(incarnation uint64) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	_, yes := i.given[incarnation]
	return yes
}
