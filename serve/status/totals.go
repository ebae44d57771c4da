package status

import (
	"sync"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/fastpath/stats"
)

// Totals are the packets, bytes and flows counted for backends and services. Workers count by
// backend index; an index is reused for other backends, and a service outlives its backends. So
// Totals stores the counts of an index before its present owner, and adds the counts of a removed
// backend to the counts of its service, which never decrease.
//
// The control loop calls Open and Close for the backends that an update changes; both cost one sum
// over the workers.
type Totals struct {
	blocks []*stats.Block

	mu      sync.Mutex
	opened  map[services.BackendRef]Traffic // counts of the index before its present owner
	retired map[services.ServiceID]Traffic  // counts of removed backends
}

// NewTotals returns the totals of the workers' blocks.
func NewTotals(blocks []*stats.Block) *Totals {
	return &Totals{
		blocks:  blocks,
		opened:  map[services.BackendRef]Traffic{},
		retired: map[services.ServiceID]Traffic{},
	}
}

// Open must be called when a ref is assigned, before a snapshot with it is published.
func (ts *Totals) Open(r services.BackendRef) {
	before := ts.counted(r.Index())
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.opened[r] = before
}

// Close must be called when a ref is free again, after the grace period.
func (ts *Totals) Close(r services.BackendRef, service services.ServiceID) {
	t := ts.Backend(r)
	ts.mu.Lock()
	defer ts.mu.Unlock()
	delete(ts.opened, r)
	ts.retired[service] = ts.retired[service].plus(t)
}

// Forget must be called when a service is gone and its number may be used again.
func (ts *Totals) Forget(service services.ServiceID) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	delete(ts.retired, service)
}

// Backend returns the counts of a backend.
func (ts *Totals) Backend(r services.BackendRef) Traffic {
	now := ts.counted(r.Index())
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return now.minus(ts.opened[r])
}

// Retired returns the counts of the removed backends of a service.
func (ts *Totals) Retired(service services.ServiceID) Traffic {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return ts.retired[service]
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
