package conformance

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"sluice.dev/sluice/test/bed/cluster"
)

// result is the outcomes of one probe.
type result struct {
	c        *Case
	s        *step
	p        *probe
	outcomes []string // by system; empty if it was not asked
}

// String names a probe among all.
func (r *result) String() string {
	if r.s.name == "" {
		return r.p.String()
	}
	return r.s.name + ": " + r.p.String()
}

// subject is one system under test.
type subject struct {
	system
	name   string
	prober *prober
	// wants is the outcome that a probe should have here.
	wants func(*result) string
}

// run is a run of all cases.
type run struct {
	c        *cluster.Cluster
	subjects []*subject
	cases    []*Case
	logf     func(format string, args ...any) // how far the run is

	mu      sync.Mutex
	results map[*probe]*result
}

// parallel is how many probes run at the same time: most of their time is waiting.
const parallel = 48

// attempts is how often a probe is made that has another outcome than it should after a
// change, which may take a moment to be in force, and between them a rest.
const (
	attempts = 4
	rest     = 750 * time.Millisecond
)

// all runs the steps that cases share, round by round, and then the steps that they do not.
func (r *run) all(ctx context.Context) error {
	for round := 0; ; round++ {
		cases, steps := r.round(round)
		if len(steps) == 0 {
			break
		}
		began := time.Now()
		if round > 0 { // objects from before the start are in force already
			if err := r.change(ctx, steps...); err != nil {
				return err
			}
		}
		changed := time.Now()
		if err := r.probe(ctx, cases, steps, round > 0); err != nil {
			return err
		}
		r.logf("round %d of %d cases: in force after %.0f s, probed in %.0f s%s", round+1, len(cases),
			changed.Sub(began).Seconds(), time.Since(changed).Seconds(), r.surprises(steps))
	}
	return r.lonely(ctx)
}

// surprises is the unexpected outcomes of probes, for the user who waits for the end of a
// long run.
func (r *run) surprises(steps []*step) string {
	var b strings.Builder
	for _, s := range steps {
		for _, p := range s.probes {
			at := r.results[p]
			if at == nil {
				continue
			}
			for k, got := range at.outcomes {
				if x := r.subjects[k]; got != "" && !allows(x.wants(at), got) {
					fmt.Fprintf(&b, "\n\t%s: %s: %s", x.name, at.key(), got)
				}
			}
		}
	}
	return b.String()
}

// round is the steps of a number that are not alone, and their cases.
func (r *run) round(number int) (cases []*Case, steps []*step) {
	for _, c := range r.cases {
		if number < len(c.steps) && !c.steps[number].alone {
			cases, steps = append(cases, c), append(steps, c.steps[number])
		}
	}
	return cases, steps
}

// lonely runs the steps that change what all cases share.
func (r *run) lonely(ctx context.Context) error {
	for _, c := range r.cases {
		configured := false
		for _, s := range c.steps {
			if !s.alone {
				continue
			}
			if err := r.change(ctx, s); err != nil {
				return err
			}
			if s.options != "" {
				configured = true
				if err := r.configure(ctx, s.options); err != nil {
					return err
				}
			}
			if err := r.probe(ctx, []*Case{c}, []*step{s}, true); err != nil {
				return err
			}
		}
		if configured {
			if err := r.configure(ctx, ""); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *run) configure(ctx context.Context, options string) error {
	for _, x := range r.subjects {
		if _, err := x.configure(ctx, options); err != nil {
			return err
		}
	}
	return nil
}

// write writes the objects of steps, and expects the API server to reject the invalid ones.
func (r *run) write(ctx context.Context, steps ...*step) error {
	var put, remove []cluster.Object
	for _, s := range steps {
		put, remove = append(put, s.put...), append(remove, s.delete...)
		for _, o := range s.refuse {
			if err := r.c.Put(ctx, o); err == nil {
				return fmt.Errorf("the API server took %T %s, which it should refuse", o, o.GetName())
			}
		}
	}
	if err := r.c.Put(ctx, put...); err != nil {
		return err
	}
	return r.c.Delete(ctx, remove...)
}

// change writes what steps say and returns when it is in force.
func (r *run) change(ctx context.Context, steps ...*step) error {
	if err := r.write(ctx, steps...); err != nil {
		return err
	}
	for _, x := range r.subjects {
		if err := x.sync(ctx); err != nil {
			return fmt.Errorf("%s: %w", x.name, err)
		}
	}
	return nil
}

// probe makes the probes of steps, many at the same time.
func (r *run) probe(ctx context.Context, cases []*Case, steps []*step, patient bool) error {
	var running sync.WaitGroup
	slots := make(chan struct{}, parallel)
	for i, s := range steps {
		for k, x := range r.subjects {
			if s.options != "" && k > 0 { // a configuration of Sluice's
				continue
			}
			for _, p := range s.probes {
				if p.unasked != "" && k > 0 {
					continue
				}
				slots <- struct{}{}
				running.Go(func() {
					defer func() { <-slots }()
					r.note(ctx, k, &result{c: cases[i], s: s, p: p}, x, patient)
				})
			}
		}
	}
	running.Wait()
	return ctx.Err()
}

// note makes a probe and records its outcome.
func (r *run) note(ctx context.Context, k int, at *result, x *subject, patient bool) {
	c, p := at.c, at.p
	r.mu.Lock()
	if known := r.results[p]; known != nil {
		at = known
	} else {
		at.outcomes = make([]string, len(r.subjects))
		r.results[p] = at
	}
	r.mu.Unlock()
	got := x.prober.do(ctx, c, p)
	for i := 1; patient && i < attempts && !allows(x.wants(at), got); i++ {
		select {
		case <-ctx.Done():
			return
		case <-time.After(rest):
		}
		got = x.prober.do(ctx, c, p)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	at.outcomes[k] = got
}

// inOrder is all results, as the cases are.
func (r *run) inOrder() (list []*result) {
	for _, c := range r.cases {
		for _, s := range c.steps {
			for _, p := range s.probes {
				if at := r.results[p]; at != nil {
					list = append(list, at)
				}
			}
		}
	}
	return list
}
