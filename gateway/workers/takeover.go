package workers

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"time"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/xsk"
	"sluice.dev/sluice/internal/boottime"
	"sluice.dev/sluice/nat/fragment"
)

// Custody has the parts of the workers' state that another process needs to continue their work.
type Custody struct {
	Workers   []WorkerCustody
	Fragments fragment.Contents
}

// WorkerCustody is the part of one worker.
type WorkerCustody struct {
	UMEM              xsk.Custody
	Remains           fastpath.Remains
	Busy, Idle, Polls uint64 // counters
}

// Layout describes the properties of Custody that must be the same in both processes.
func Layout() string {
	names := fastpath.CountNames()
	sum := sha256.Sum256([]byte(strings.Join(names, "\n")))
	return fmt.Sprintf("%d counts (%x), %d packets held for next hops, %s", len(names), sum[:4], config.HeldPackets,
		fragment.Layout())
}

// Shapes describes the UMEMs and sockets of all workers, with their files (xsk.UMEM.Shape).
func (g *Group) Shapes() (shapes []xsk.Shape, files []int) {
	for _, w := range g.workers {
		shape, f := w.umem.Shape()
		shapes, files = append(shapes, shape), append(files, f...)
	}
	return shapes, files
}

// Pause stops all workers, which must run, between two steps. It returns their state, and when the
// first one stopped, by CLOCK_BOOTTIME. If a worker does not stop in time, the others continue at
// once.
func (g *Group) Pause(within time.Duration) (c Custody, at uint64, err error) {
	c.Workers = make([]WorkerCustody, len(g.workers))
	stopped := make([]uint64, len(g.workers))
	calls, err := fastpath.Call(g.all(), func(id int, w *fastpath.Worker) {
		stopped[id] = boottime.Nanos()
		c.Workers[id].Remains = w.Pause()
	})
	if err == nil {
		err = calls.Wait(within)
	}
	if err != nil {
		g.Resume()
		return Custody{}, 0, err
	}
	for id, w := range g.workers {
		at := &c.Workers[id]
		at.UMEM = w.umem.Custody()
		at.Busy, at.Idle, at.Polls = w.block.BusyNanos.Load(), w.block.IdleNanos.Load(), w.block.Polls.Load()
	}
	c.Fragments = g.fragments.Contents(boottime.Nanos())
	return c, slices.Min(stopped), nil
}

// Resume makes the workers continue after a Pause. It waits for none of them: a stalled worker must
// not keep the others paused, or block the caller, which holds locks of the whole daemon.
func (g *Group) Resume() {
	for _, w := range g.workers {
		w.Tell((*fastpath.Worker).Resume)
	}
}

// Assume makes the workers, which must not run yet, go on where those of another process have
// paused. After an error they must not be used.
func (g *Group) Assume(c *Custody) error {
	if len(c.Workers) != len(g.workers) {
		return fmt.Errorf("the other process has %d workers, this one has %d", len(c.Workers), len(g.workers))
	}
	if err := g.fragments.Assume(c.Fragments); err != nil {
		return err
	}
	for id, w := range g.workers {
		from := &c.Workers[id]
		ours, err := w.umem.Assume(from.UMEM)
		if err != nil {
			return fmt.Errorf("worker %d: %w", id, err)
		}
		if err := w.Assume(from.Remains, ours); err != nil {
			return err
		}
		w.block.BusyNanos.Store(from.Busy)
		w.block.IdleNanos.Store(from.Idle)
		w.block.Polls.Store(from.Polls)
	}
	return nil
}
