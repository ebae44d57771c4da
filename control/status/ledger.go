package status

import (
	"sync"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/fastpath/stats"
)

// Ledger attributes the workers' counts to backends and services. Workers count by backend index;
// an index has one owner after another, and a service outlives its backends. So the ledger keeps
// the counts of an index from before its present owner, and adds the counts of a removed backend to
// those of its service, whose counters never decrease.
//
// The control loop calls Open and Close; both cost one sum over the workers, so an
// update pays for what it changes.
type Ledger struct {
	blocks []*stats.Block

	mu      sync.Mutex
	opened  map[services.BackendRef]Traffic // counts of the index before this owner
	retired map[services.ServiceID]Traffic  // of backends that are gone
}

// NewLedger returns a ledger over the workers' blocks.
func NewLedger(blocks []*stats.Block) *Ledger {
	return &Ledger{
		blocks:  blocks,
		opened:  map[services.BackendRef]Traffic{},
		retired: map[services.ServiceID]Traffic{},
	}
}

// Open must be called when a ref is assigned, before a snapshot with it is published.
func (l *Ledger) Open(r services.BackendRef) {
	before := l.counted(r.Index())
	l.mu.Lock()
	defer l.mu.Unlock()
	l.opened[r] = before
}

// Close must be called when a ref is free again, after the grace period.
func (l *Ledger) Close(r services.BackendRef, service services.ServiceID) {
	t := l.Backend(r)
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.opened, r)
	l.retired[service] = l.retired[service].plus(t)
}

// Forget must be called when a service is gone and its number may be used again.
func (l *Ledger) Forget(service services.ServiceID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.retired, service)
}

// Backend returns what the workers counted for a backend.
func (l *Ledger) Backend(r services.BackendRef) Traffic {
	now := l.counted(r.Index())
	l.mu.Lock()
	defer l.mu.Unlock()
	return now.minus(l.opened[r])
}

// Retired returns what the removed backends of a service had counted.
func (l *Ledger) Retired(service services.ServiceID) Traffic {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.retired[service]
}

// counted sums an index over all workers.
func (l *Ledger) counted(index uint32) (t Traffic) {
	for _, b := range l.blocks {
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
