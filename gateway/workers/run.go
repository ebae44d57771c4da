package workers

import (
	"context"
	"fmt"
	"slices"
	"time"

	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/thread"
	"sluice.dev/sluice/internal/boottime"
)

// tidyThreads is the interval at which threads without a worker are unbound from workers' CPUs.
const tidyThreads = time.Second

// Run starts the workers, which end with ctx. It calls fail, which must not block, with the error
// of a worker that cannot continue: with half of its workers a gateway would lose half of the
// packets.
//
// After Ready, the workers start at once.
func (g *Group) Run(ctx context.Context, fail func(error)) {
	if g.runners == nil {
		if err := g.Ready(ctx); err != nil {
			fail(err)
			return
		}
	}
	g.started, g.startedAt = true, boottime.Nanos()
	for _, w := range g.workers {
		context.AfterFunc(ctx, w.Stop)
	}
	g.runners.begin()
}

// Ready makes the threads that the workers will run on; they end with ctx.
func (g *Group) Ready(ctx context.Context) error {
	threads, err := thread.NewGroup(thread.Priority{})
	if err != nil {
		return err
	}
	g.done.Add(1)
	go func() {
		defer g.done.Done()
		if err := threads.TidyEvery(ctx, tidyThreads); err != nil {
			g.c.Log.Warn("threads that a worker's thread started stay bound to its CPU", "error", err)
		}
	}()
	r := &runners{g: g, life: ctx, config: fastpath.RunConfig{Threads: threads, Turn: thread.Turn}}
	if err := r.ready(); err != nil {
		return err
	}
	g.runners = r
	return nil
}

// Follow moves workers when packets arrive on other CPUs, until ctx is done. It must begin after
// Run, and end before Wait and before Config.Arrivals stops working.
func (g *Group) Follow(ctx context.Context) {
	if g.runners != nil && g.c.Arrivals != nil {
		g.runners.follow(ctx)
	}
}

// Wait returns when the workers have ended. From then on Do runs on the caller's goroutine.
func (g *Group) Wait() {
	g.done.Wait()
	g.started = false
}

// Do runs f where the worker's links may be changed: on the worker's goroutine, if that runs.
func (g *Group) Do(ctx context.Context, id int, f func(*fastpath.Worker)) error {
	w := g.workers[id].Worker
	if !g.started {
		f(w)
		return nil
	}
	if !w.Do(ctx, f) {
		return fmt.Errorf("worker %d is stopped", id)
	}
	return nil
}

// all returns the workers in the order of their numbers.
func (g *Group) all() (list []*fastpath.Worker) {
	for _, w := range g.workers {
		list = append(list, w.Worker)
	}
	return list
}

// RunNow calls Run and waits until every worker has begun. It returns when the last one began, by
// CLOCK_BOOTTIME; if one does not begin within the time, it returns the present time and an error.
func (g *Group) RunNow(ctx context.Context, fail func(error), within time.Duration) (at uint64, err error) {
	began := make([]uint64, len(g.workers))
	c, err := fastpath.Call(g.all(), func(id int, _ *fastpath.Worker) { began[id] = boottime.Nanos() })
	g.Run(ctx, fail)
	if err == nil {
		err = c.Wait(within)
	}
	if err != nil {
		return boottime.Nanos(), err
	}
	return slices.Max(began), nil
}

// SetHostMAC sets the MAC addresses of the host link's ends in every worker.
func (g *Group) SetHostMAC(ctx context.Context, mac fastpath.HostMAC) error {
	for id := range g.workers {
		if err := g.Do(ctx, id, func(w *fastpath.Worker) { w.SetHostMAC(mac) }); err != nil {
			return err
		}
	}
	return nil
}
