package soak

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"

	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/topo"
)

// ErrFailed is wrapped by Run's error where a soak went to its end and found something.
var ErrFailed = errors.New("the soak failed")

// tally is the result of all rounds of one kind of fault.
type tally struct {
	rounds, floods    int
	byBackend, broken int
	asked, failed     int64 // new connections during the fault
	took              []time.Duration
}

// result is the result of a soak.
type result struct {
	rounds    int
	elapsed   time.Duration
	tallies   []tally // as faults
	halves    [2][]sample
	answers   int64 // over established connections
	datagrams *topo.Result
	findings  []error // each makes the soak fail
	progress  io.Writer
}

// most is how many findings are kept; one is enough to fail.
const most = 20

func (r *result) found(err error) {
	if err != nil && len(r.findings) < most {
		fmt.Fprintf(r.progress, "found: %v\n", err)
		r.findings = append(r.findings, err)
	}
}

// Run soaks a gateway and prints the results. It returns an error that wraps ErrFailed if something
// broke or grew, and another error if the soak could not go on.
func Run(ctx context.Context, c Config) (err error) {
	if err := c.check(); err != nil {
		return err
	}
	if _, err := launch.Sweep(); err != nil {
		return err
	}
	w, err := build(ctx, &c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	r := &result{tallies: make([]tally, len(faults)), progress: c.Progress}
	fmt.Fprintf(c.Progress, "seed %d\n", c.Seed)
	if err := w.rounds(ctx, r); err != nil {
		return fmt.Errorf("%w\n%s", errors.Join(append(r.findings, err)...), w.gate.Log())
	}
	w.end(ctx, r)
	if err := r.print(&c); err != nil {
		return err
	}
	if len(r.findings) > 0 {
		return fmt.Errorf("%w:\n%w", ErrFailed, errors.Join(r.findings...))
	}
	return nil
}

// rounds injects faults until the time is over.
func (w *world) rounds(ctx context.Context, r *result) (err error) {
	began := time.Now()
	churning, stop := context.WithCancel(ctx)
	var churn errgroup.Group
	churn.Go(func() error { return w.churn(churning) })
	defer func() {
		stop()
		err = errors.Join(err, churn.Wait())
		r.elapsed = time.Since(began)
	}()
	var hand []int // kinds that have not come yet
	for half := 0; time.Since(began) < w.Duration; r.rounds++ {
		if now := int(2 * time.Since(began) / w.Duration); now != half {
			half, hand = min(now, 1), nil
		}
		if len(hand) == 0 {
			hand = draw(w.random, half == 0)
		}
		kind := hand[0]
		hand = hand[1:]
		if err := w.round(ctx, r, kind); err != nil {
			return fmt.Errorf("round %d, %s: %w", r.rounds, faults[kind].name, err)
		}
		s, err := take(ctx, w.gate, w.net.Gateway)
		if err != nil {
			return err
		}
		r.halves[half] = append(r.halves[half], s)
		fmt.Fprintf(w.Progress, "[%v of %v] %s: %d findings so far\n", time.Since(began).Round(time.Second), w.Duration,
			faults[kind].name, len(r.findings))
	}
	return nil
}

// draw shuffles the kinds of faults: all kinds, or only kinds that do not replace the process.
func draw(random *rand.Rand, oneProcess bool) (hand []int) {
	for i := range faults {
		if !oneProcess || !faults[i].replaces {
			hand = append(hand, i)
		}
	}
	random.Shuffle(len(hand), func(a, b int) { hand[a], hand[b] = hand[b], hand[a] })
	return hand
}

// round is one fault: load, fault, and the checks afterwards.
func (w *world) round(ctx context.Context, r *result, kind int) error {
	f, t := &faults[kind], &r.tallies[kind]
	young, err := w.connect(ctx, 50, 5*time.Minute)
	if err != nil {
		return err
	}
	defer func() { young.flows.Stop() }()
	asking, enough := context.WithCancel(ctx)
	var beside errgroup.Group
	defer func() { enough(); _ = beside.Wait() }() // also where the fault could not be injected
	beside.Go(func() error { return w.ask(asking, t) })
	if t.rounds++; w.random.IntN(3) == 0 && f.name != "SYN flood" {
		t.floods++
		beside.Go(func() error { return w.flood(ctx, time.Second) })
	}
	_ = topo.Pause(ctx, w.moment(500*time.Millisecond))
	began := time.Now()
	if err := f.inject(w, ctx); err != nil {
		return err
	}
	if err := w.servedAgain(ctx); err != nil {
		return err
	}
	t.took = append(t.took, time.Since(began))
	enough()
	if err := beside.Wait(); err != nil {
		return err
	}
	w.judge(ctx, r, t, f, young)
	return ctx.Err()
}

// ask opens new connections while the fault is there; they may fail.
func (w *world) ask(ctx context.Context, t *tally) error {
	got, err := w.net.Clients[1].HTTP(ctx, topo.HTTPLoad{Targets: targets(webPort), Requests: 1 << 30, Concurrency: 2,
		Interval: 5 * time.Millisecond, Timeout: time.Second})
	if err == nil {
		t.asked, t.failed = t.asked+got.Requests, t.failed+got.Failed()
	}
	return err
}

// servedAgain returns when 16 of 16 new connections are served.
func (w *world) servedAgain(ctx context.Context) error {
	return topo.Until(ctx, 20*time.Second, 10*time.Millisecond, func(ctx context.Context) error {
		got, err := w.net.Clients[1].HTTP(ctx, topo.HTTPLoad{Targets: targets(webPort), Requests: 16, Concurrency: 4,
			Timeout: time.Second})
		if err == nil && got.Failed() > 0 {
			err = fmt.Errorf("new connections: %v", got.Errors)
		}
		return err
	})
}

// judge finds flows that did not survive the fault, and Services that get no answer after it.
func (w *world) judge(ctx context.Context, r *result, t *tally, f *fault, young *load) {
	ended := ""
	if f.ends {
		ended = w.net.Backends[ends].Name
	}
	for _, l := range []*load{w.lasting, young} {
		if err := l.flows.AnsweredAgain(ctx, time.Minute, 1); err != nil {
			r.found(fmt.Errorf("%s: %w", f.name, err))
		}
		byBackend, broken := l.judge(ended)
		t.byBackend, t.broken = t.byBackend+byBackend, t.broken+len(broken)
		for _, err := range broken {
			r.found(fmt.Errorf("%s: %w", f.name, err))
		}
	}
	got, err := w.net.Clients[1].HTTP(ctx, topo.HTTPLoad{Targets: targets(webPort), Requests: 200, Concurrency: 4})
	if err == nil && got.Failed() > 0 {
		err = fmt.Errorf("new connections: %v", got.Errors)
	}
	if err != nil {
		r.found(fmt.Errorf("after %s: %w", f.name, err))
	}
	for _, transfer := range []func(context.Context, netip.AddrPort, int64) (*topo.Transfer, error){
		w.net.Clients[1].Download, w.net.Clients[1].Upload} {
		if _, err := transfer(ctx, targets(webPort)[w.random.IntN(2)], 4<<20); err != nil {
			r.found(fmt.Errorf("after %s: %w", f.name, err))
		}
	}
}

// end stops the load, and checks the gateway's final state.
func (w *world) end(ctx context.Context, r *result) {
	r.answers = w.lasting.flows.Stop().Requests
	r.datagrams = w.datagram.Stop()
	if _, err := w.gate.Laws(ctx); err != nil {
		r.found(err)
	}
	for half := range r.halves {
		for i := range bounds {
			if g, ok := growthOf(&bounds[i], r.halves[half]); ok && g.err() != nil {
				r.found(fmt.Errorf("%s: %w", halfNames[half], g.err()))
			}
		}
	}
}
