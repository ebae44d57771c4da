package drops

import (
	"sync"
	"time"

	"sluice.dev/sluice/fastpath/capture"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/internal/boottime"
	"sluice.dev/sluice/nat/reason"
	"sluice.dev/sluice/serve/status"
)

// Interval is the time between two calls of Drain.
const Interval = time.Second

// logged is the number of samples that Log gets from one call of Drain, or one for each reason if
// there are more reasons: a flood of drops must not displace the flows from the flow log.
const logged = 16

// Config has the parts of the gateway that a Watch needs.
type Config struct {
	Rings    []*capture.Ring // of the workers
	Services *services.Handle
	// Log gets samples whose weights add up to the counters, oldest first for each reason; nil:
	// there is no log.
	Log func([]Sample)
}

// Watch reads the workers' samples, and keeps them for a while.
type Watch struct {
	c Config

	mu      sync.Mutex // guards history
	history history
}

// New returns a Watch without samples. Its history begins now.
func New(c Config, now time.Time) *Watch { return &Watch{c: c, history: history{since: now}} }

// Drain reads the samples that have come. One goroutine at a time may call it.
func (w *Watch) Drain(now time.Time) {
	snapshot := w.c.Services.Load()
	if snapshot == nil {
		snapshot = &services.Snapshot{}
	}
	var list []Sample
	boot := boottime.Nanos()
	for _, r := range w.c.Rings {
		r.Read(func(rec *capture.Record, _ []byte) bool {
			s := sampleOf(rec, snapshot)
			s.At = now.Add(-time.Duration(boot - min(boot, rec.At)))
			list = append(list, s)
			return true
		})
	}
	w.mu.Lock()
	current := w.history.current(now)
	for i := range list {
		current.byReason[list[i].Reason].add(list[i])
	}
	w.mu.Unlock()
	if w.c.Log != nil && len(list) > 0 {
		w.c.Log(thin(list))
	}
}

// thin returns few samples that stand for all.
func thin(list []Sample) (few []Sample) {
	var byReason [reason.Count]reservoir
	reasons := 0
	for i := range list {
		t := &byReason[list[i].Reason]
		if t.max == 0 {
			t.max = 1
			reasons++
		}
	}
	for r := range byReason {
		byReason[r].max = max(1, logged/reasons)
	}
	for i := range list {
		byReason[list[i].Reason].add(list[i])
	}
	for r := range byReason {
		few = append(few, byReason[r].list...)
	}
	return few
}

// View sums the samples since a time by reason and Service.
func (w *Watch) View(since, now time.Time) status.DropsView {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.history.view(since, now)
}
