package updates

import (
	"context"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"golang.org/x/sync/errgroup"
)

// change makes all changes, on schedule as far as the API server is fast enough.
func (l *lab) change(ctx context.Context) error {
	began := time.Now()
	group, ctx := errgroup.WithContext(ctx)
	if l.source.writers() == 1 {
		group.Go(func() error {
			return l.onSchedule(ctx, l.Rate, func(n int) error { return l.nth(ctx, n) })
		})
	} else {
		l.concurrently(ctx, group)
	}
	if err := group.Wait(); err != nil {
		return err
	}
	l.result.Changed = time.Since(began)
	for _, v := range l.probes.versions {
		l.result.ProbedChanges += len(v.sent) - 1
	}
	l.result.Changes = l.Rate * l.Seconds
	return nil
}

// onSchedule calls f rate times per second. It makes late calls up at once.
func (l *lab) onSchedule(ctx context.Context, rate int, f func(n int) error) error {
	began := time.Now()
	for n := range rate * l.Seconds {
		time.Sleep(time.Until(began.Add(time.Duration(n) * time.Second / time.Duration(rate))))
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := f(n); err != nil {
			return err
		}
	}
	return nil
}

// nth is the n-th change: at regular intervals of a probed Service.
func (l *lab) nth(ctx context.Context, n int) error {
	share := l.Rate / l.ProbedRate
	if n%share == 0 {
		return l.probed(ctx, n/share%l.Probed)
	}
	return l.source.update(ctx, l.nthOther(n))
}

// nthOther is the n-th change of a Service that is not probed: a slice in which all endpoints move.
// The order of the Services keeps neighbours far apart.
func (c *Config) nthOther(n int) *discoveryv1.EndpointSlice {
	const stride = 7919 // a prime
	others := c.Services - c.firstOther()
	return c.otherSlice(c.firstOther()+n*stride%others, 1+n/others)
}

// probed sends the next version of a probed Service.
func (l *lab) probed(ctx context.Context, i int) error {
	v := l.probes.versions[i]
	slice := l.probedSlice(i, len(v.sent)) // no other goroutine sends it
	v.send(time.Now())
	return l.source.update(ctx, slice)
}

// concurrently makes the same changes with a writer for each probed Service, whose versions must be
// in order, and several for all others.
func (l *lab) concurrently(ctx context.Context, group *errgroup.Group) {
	for i := range l.Probed {
		group.Go(func() error {
			return l.onSchedule(ctx, max(1, l.ProbedRate/l.Probed), func(int) error { return l.probed(ctx, i) })
		})
	}
	writers := l.source.writers()
	for w := range writers {
		rate := (l.Rate - l.ProbedRate) / writers
		if rate == 0 {
			continue
		}
		group.Go(func() error {
			return l.onSchedule(ctx, rate, func(n int) error { return l.source.update(ctx, l.nthOther(n*writers+w)) })
		})
	}
}
