package status

import (
	"sync"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/fastpath/stats"
)

// Totals are the packets, bytes and flows counted for backends and services. Workers count by
// backend index; an index is reused for other backends, and a service outlives its backends. So
// Totals stores the counts of an index before its present owner, and adds the counts of a removed
// backend to the counts of its service, which never decrease: while it is leaving, its counts are
// read live, because workers may still add to them.
//
// The control loop calls Open, Retire and Close for the backends that an update changes; Open and
// Close cost one sum over the workers.
type Totals struct {
	blocks []*stats.Block

	// reading keeps Close from counting a backend of the snapshot that a reader has (Read).
	reading sync.RWMutex

	mu      sync.Mutex                      // after reading
	opened  map[services.BackendRef]Traffic // counts of the index before its present owner
	retired map[services.ServiceID]Traffic  // counts of removed backends
	// leaving has backends between Retire and Close.
	leaving map[services.ServiceID]map[services.BackendRef]bool
	// retiredTime has the times of removed backends. Close takes them out of the workers' times, so
	// that the index is empty for its next owner.
	retiredTime map[services.ServiceID]*TimesView
}

// NewTotals returns the totals of the workers' blocks.
func NewTotals(blocks []*stats.Block) *Totals {
	return &Totals{
		blocks:  blocks,
		opened:  map[services.BackendRef]Traffic{},
		retired: map[services.ServiceID]Traffic{}, leaving: map[services.ServiceID]map[services.BackendRef]bool{},
		retiredTime: map[services.ServiceID]*TimesView{},
	}
}

// Open must be called when a ref is assigned, before a snapshot with it is published.
func (ts *Totals) Open(r services.BackendRef) {
	before := ts.counted(r.Index())
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.opened[r] = before
}

// Retire must be called when a backend is removed, before a snapshot without it is published.
func (ts *Totals) Retire(r services.BackendRef, service services.ServiceID) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if ts.leaving[service] == nil {
		ts.leaving[service] = map[services.BackendRef]bool{}
	}
	ts.leaving[service][r] = true
}

// Read calls f, which loads the published snapshot and reads the counts of its backends and
// services: no backend of that snapshot is closed meanwhile. Close waits for f.
func (ts *Totals) Read(f func()) {
	ts.reading.RLock()
	defer ts.reading.RUnlock()
	f()
}

// Close must be called when a ref is free again, after the grace period.
func (ts *Totals) Close(r services.BackendRef, service services.ServiceID) {
	ts.reading.Lock()
	defer ts.reading.Unlock()
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t := ts.counted(r.Index()).minus(ts.opened[r])
	delete(ts.opened, r)
	if delete(ts.leaving[service], r); len(ts.leaving[service]) == 0 {
		delete(ts.leaving, service)
	}
	ts.retired[service] = ts.retired[service].plus(t)
	if len(ts.blocks) == 0 {
		return
	}
	b := ts.blocks[0].Times.Remove(r.Index())
	if b == nil {
		return
	}
	times := timesOf(b)
	if sum := ts.retiredTime[service]; sum != nil {
		sum.add(&times, 1)
	} else {
		ts.retiredTime[service] = &times
	}
}

// Forget must be called when a service is gone and its number may be used again.
func (ts *Totals) Forget(service services.ServiceID) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	delete(ts.retired, service)
	delete(ts.retiredTime, service)
}

// Backend returns the counts of a backend.
func (ts *Totals) Backend(r services.BackendRef) Traffic {
	now := ts.counted(r.Index())
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return now.minus(ts.opened[r])
}

// Retired returns the counts of the backends of a service that a snapshot does not have any more.
func (ts *Totals) Retired(s *services.Snapshot, service services.ServiceID) Traffic {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t := ts.retired[service]
	for r := range ts.leaving[service] {
		if s.Backend(r) == nil {
			t = t.plus(ts.counted(r.Index()).minus(ts.opened[r]))
		}
	}
	return t
}

// times returns the times of a backend, which all workers share, or nil.
func (ts *Totals) times(r services.BackendRef) *TimesView {
	if len(ts.blocks) == 0 {
		return nil
	}
	b := ts.blocks[0].Times.At(r.Index())
	if b == nil {
		return nil
	}
	v := timesOf(b)
	return &v
}

// retiredTimes returns the times of the backends that Retired counts.
func (ts *Totals) retiredTimes(s *services.Snapshot, service services.ServiceID) (v TimesView) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if sum := ts.retiredTime[service]; sum != nil {
		v = sum.Minus(&TimesView{}) // a copy
	}
	for r := range ts.leaving[service] {
		if s.Backend(r) == nil {
			if counted := ts.times(r); counted != nil {
				v.add(counted, 1)
			}
		}
	}
	return v
}

// counted sums an index over all workers.
func (ts *Totals) counted(index uint32) (t Traffic) {
	for _, b := range ts.blocks {
		if c := b.Backends.At(index); c != nil {
			t = t.plus(Traffic{c.Flows.Load(), c.ToBackend.Load(), c.ToBackendBytes.Load(), c.ToClient.Load(),
				c.ToClientBytes.Load()})
		}
	}
	return t
}

func (t Traffic) plus(o Traffic) Traffic {
	return Traffic{t.Flows + o.Flows, t.ToBackend + o.ToBackend, t.ToBackendBytes + o.ToBackendBytes, t.ToClient +
		o.ToClient, t.ToClientBytes + o.ToClientBytes}
}

func (t Traffic) minus(o Traffic) Traffic {
	return Traffic{t.Flows - o.Flows, t.ToBackend - o.ToBackend, t.ToBackendBytes - o.ToBackendBytes,
		t.ToClient - o.ToClient, t.ToClientBytes - o.ToClientBytes}
}
