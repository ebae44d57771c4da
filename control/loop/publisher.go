package loop

import (
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/fastpath/stats"
)

// Publisher publishes snapshots to the workers, and reports which are still in use.
type Publisher struct {
	handle  *services.Handle
	workers []*stats.Block
}

// NewPublisher returns a Publisher for the workers that write these blocks.
func NewPublisher(handle *services.Handle, workers []*stats.Block) *Publisher {
	return &Publisher{handle, workers}
}

// Publish makes s current. Counters for its backends are made first, because
// workers never allocate.
func (p *Publisher) Publish(s *services.Snapshot) {
	for _, w := range p.workers {
		w.Backends.Ensure(s.BackendIndexes())
	}
	if len(p.workers) > 0 {
		p.workers[0].Times.Ensure(s.BackendIndexes()) // all workers share it
	}
	p.handle.Store(s)
}

// Published returns the generation of the current snapshot, 0 before the first.
func (p *Publisher) Published() uint64 {
	if s := p.handle.Load(); s != nil {
		return s.Generation
	}
	return 0
}

// Oldest returns the generation of the oldest snapshot that a worker may still use; the published
// one's if no worker uses any. It never waits.
//
// The order matters: a worker that sleeps when its block is read loads the handle after that, and
// so finds no older snapshot than the one loaded here before. A worker that woke and has not stored
// its generation yet counts as using any snapshot.
func (p *Publisher) Oldest() uint64 {
	oldest := p.Published()
	for _, w := range p.workers {
		if seen := w.Generation.Load(); seen != stats.Offline {
			oldest = min(oldest, seen)
		}
	}
	return oldest
}
