package rollout

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"

	"sluice.dev/sluice/test/bed/cluster"
	"sluice.dev/sluice/test/bed/observer"
	"sluice.dev/sluice/test/bed/topo"
)

// lab is one system's network, and its measurement.
type lab struct {
	*plan
	rollout  *rollout
	result   *Result
	net      *topo.Net
	servers  *podServers
	system   system
	arrivals arrivals
	taps     []*observer.Tap
}

// build makes the network, the pods and their objects, without a system.
func (l *lab) build(ctx context.Context) (err error) {
	if l.net, err = topo.New(topo.Config{Clients: 2, Backends: podHosts, Queues: 2}); err != nil {
		return err
	}
	gateway := l.net.Gateway
	if err := gateway.Forward(true); err != nil {
		return err
	}
	if l.servers, err = newPodServers(l.net); err != nil {
		return err
	}
	for _, pods := range [][]*pod{l.otherPods, l.rollout.pods} {
		for _, p := range pods {
			if err := l.servers.start(p); err != nil {
				return err
			}
		}
	}
	node := cluster.NewNode(gatewayNode, "", gateway.Addr4(), gateway.Addr6())
	return l.cluster.Put(ctx, node, webSlice(l.rollout.pods))
}

// firstSync starts the system, and waits until a connection through it is answered and it reports
// that it has synced.
func (l *lab) firstSync(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, firstSync)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	began := time.Now()
	group.Go(func() (err error) {
		l.result.FirstAnswer, err = l.awaitAnswer(ctx, began)
		return err
	})
	var err error
	if l.system, err = startSystem(ctx, l.result.System, l.Config, l.cluster, l.net.Gateway); err != nil {
		cancel()
		_ = group.Wait() // it was cancelled
		return err
	}
	l.result.FirstSync = time.Since(began)
	if err := group.Wait(); err != nil {
		return err
	}
	used, err := observer.ProcessUsage(l.system.PID())
	l.result.FirstSyncCPU = processorOf(used)
	l.say("%s: first answer after %.2f s, synced after %.2f s", l.result.System, l.result.FirstAnswer.Seconds(),
		l.result.FirstSync.Seconds())
	return err
}

// probeEvery and probeTimeout configure the wait for the first answer. Attempts overlap, because an
// attempt may get no answer where the kernel limits its ICMP errors.
const (
	probeEvery   = 20 * time.Millisecond
	probeTimeout = 500 * time.Millisecond
)

// awaitAnswer opens connections until one is answered, and returns the time of that answer.
func (l *lab) awaitAnswer(ctx context.Context, began time.Time) (time.Duration, error) {
	ctx, done := context.WithCancel(ctx)
	defer done()
	probe := &load{
		host: l.net.Clients[0], targets: []netip.AddrPort{l.rollingVIP}, rate: int(time.Second / probeEvery),
		timeout: probeTimeout,
	}
	ended := make(chan error, 1)
	go func() { ended <- probe.run(ctx) }()
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			return 0, errors.Join(err, fmt.Errorf("no answer from %s: %w", l.rollingVIP, ctx.Err()))
		case <-tick.C:
		}
		for _, a := range probe.attempts() {
			if a.failure == "" {
				done()
				return a.began.Add(a.connect).Sub(began), <-ended
			}
		}
	}
}

// warmUp is how long clients connect before the update begins.
const warmUp = 3 * time.Second

// roll replaces all pods under load, until no connection meets an old one.
func (l *lab) roll(ctx context.Context) error {
	for _, h := range l.net.Backends {
		tap, err := observer.SYNs(h, "eth0", l.arrivals.add)
		if err != nil {
			return err
		}
		l.taps = append(l.taps, tap)
	}
	loads := []*load{
		{host: l.net.Clients[0], targets: []netip.AddrPort{l.rollingVIP}, rate: l.Rate, timeout: l.Timeout,
			rolling: true},
		{host: l.net.Clients[1], targets: l.otherVIPs, rate: otherRate, timeout: l.Timeout},
	}
	group, ctx := errgroup.WithContext(ctx)
	loading, stop := context.WithCancel(ctx)
	defer stop()
	for _, load := range loads {
		group.Go(func() error { return load.run(loading) })
	}
	group.Go(func() error {
		defer stop()
		return l.update(ctx)
	})
	if err := group.Wait(); err != nil {
		return err
	}
	return l.summarise(loads)
}

// update is the rolling update and the time until it is over for clients.
func (l *lab) update(ctx context.Context) error {
	if err := topo.Pause(ctx, warmUp+jitter(l.Seed, time.Second)); err != nil {
		return err
	}
	before, err := observer.ProcessUsage(l.system.PID())
	if err != nil {
		return err
	}
	l.result.began = time.Now()
	if err := l.replace(ctx); err != nil {
		return err
	}
	if err := l.quiet(ctx); err != nil {
		return err
	}
	l.result.ended = time.Now()
	l.result.Observed = l.result.ended.Sub(l.result.began)
	after, err := observer.ProcessUsage(l.system.PID())
	if err != nil {
		return err
	}
	l.result.CPU = processorOf(after.Sub(before))
	l.result.Memory, err = observer.ProcessMemory(l.system.PID())
	return err
}

// tick is how long a slice controller takes to notice a changed pod.
const tick = 50 * time.Millisecond

// replace performs the rollout.
func (l *lab) replace(ctx context.Context) error {
	began := time.Now()
	for !l.rollout.done() {
		s := l.rollout.step(time.Since(began))
		for _, p := range s.born {
			if err := l.servers.start(p); err != nil {
				return err
			}
		}
		for _, p := range s.died {
			if err := l.servers.stop(p); err != nil {
				return err
			}
		}
		if s.any() {
			now := time.Now()
			for _, p := range s.ended {
				p.left = now
			}
			if err := l.cluster.Put(ctx, webSlice(l.rollout.pods)); err != nil {
				return err
			}
			l.result.Writes++
		}
		if err := topo.Pause(ctx, tick); err != nil {
			return err
		}
	}
	l.result.Rolled = time.Since(began)
	return nil
}

// convergence bounds how long connections may meet old endpoints after the update.
const convergence = 2 * time.Minute

var errNeverConverged = errors.New("connections still meet old endpoints")

// quiet waits until no connection has met an old endpoint for a while.
func (l *lab) quiet(ctx context.Context) error {
	rolled := time.Now()
	for ; ; time.Sleep(tick) {
		last := judge(l.rollout.pods, l.arrivals.all()).last
		if last.Before(rolled) {
			last = rolled
		}
		switch now := time.Now(); {
		case ctx.Err() != nil:
			return ctx.Err()
		case now.Sub(last) >= quietTime:
			return nil
		case now.Sub(rolled) >= convergence:
			return fmt.Errorf("%w %s after the update", errNeverConverged, convergence)
		}
	}
}

// summarise computes the figures from the observations.
func (l *lab) summarise(loads []*load) error {
	for _, tap := range l.taps {
		missed, err := tap.Close()
		if err != nil || missed > 0 {
			return fmt.Errorf("the tap missed %d packets: %w", missed, err)
		}
	}
	l.taps = nil
	r := l.result
	s := judge(l.rollout.pods, l.arrivals.all())
	r.ToDead, r.ToTerminating, r.LongestStale, r.Converged = s.dead, s.terminating, s.longest, s.converged
	r.Rolling = count(loads[0].attempts(), true, r.began, r.ended)
	r.Others = count(loads[1].attempts(), false, r.began, r.ended)
	l.say("%s: %d of %d failed, %d to dead pods, converged after %.3f s", r.System, r.Rolling.Failed, r.Rolling.Tried,
		r.ToDead, r.Converged.Seconds())
	return nil
}

// close takes the lab down.
func (l *lab) close() error {
	var errs []error
	for _, tap := range l.taps {
		_, err := tap.Close()
		errs = append(errs, err)
	}
	if l.system != nil {
		errs = append(errs, l.system.Close())
	}
	if l.servers != nil {
		l.servers.close()
	}
	if l.net != nil {
		errs = append(errs, l.net.Close())
	}
	return errors.Join(errs...)
}
