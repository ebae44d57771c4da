// Package checks runs the health checks of endpoints. It passes the time, the workers' counters and
// the results of package control/probe to package control/endpointhealth, and the health of
// endpoints from there to the control loop.
package checks

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/endpointhealth"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/probe"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/fastpath/stats"
	"sluice.dev/sluice/internal/heartbeat"
	"sluice.dev/sluice/internal/logs"
	"sluice.dev/sluice/internal/wake"
)

// Config configures a Runner.
type Config struct {
	Log *slog.Logger
	// Settings are the tracker's. New sets Random and MostUnderWay.
	Settings endpointhealth.Config
	// Own reports whether an address belongs to this node. Such an address is not checked:
	// otherwise users who may write EndpointSlices could reach ports that the node's firewall
	// closes to the network.
	Own func(netip.Addr) bool
	// Apply changes the health of endpoints in the next snapshot.
	Apply func(context.Context, []compiler.EndpointHealth) error
	// Report replaces the problems that checks report about objects.
	Report func([]objects.Problem)
	// Snapshot returns the published snapshot, or nil.
	Snapshot func() *services.Snapshot
	// Blocks are the counters of the workers.
	Blocks []*stats.Block
	// Beats has the heartbeats of Run and of the goroutine that connects; it may be nil.
	Beats *heartbeat.Set
}

// Runner runs checks.
type Runner struct {
	cfg    Config
	prober *probe.Prober
	wake   wake.Flag
	beat   *heartbeat.Beat
	limit  logs.Limit // of lines about endpoints

	mu       sync.Mutex // guards the fields below
	tracker  *endpointhealth.Tracker
	ports    []*compiler.CheckedPort // for the tracker, if news is set
	news     bool
	settings *endpointhealth.Config // for the tracker; nil: unchanged

	// Only Run's goroutine uses these: the service ports that were reported last, by reason, and
	// the number of samples.
	denied, late, suspects, unreturned []endpointhealth.Denial
	samples                            int
}

// New returns a Runner, which Run starts.
func New(cfg Config) (*Runner, error) {
	r := &Runner{cfg: cfg, wake: wake.NewFlag(), limit: logs.Limit{PerSecond: linesPerSecond},
		beat: cfg.Beats.Add("health checks", heartbeat.DefaultBounds)}
	cfg.Settings.Random, cfg.Settings.MostUnderWay = rand.Int64N, mostUnderWay()
	r.tracker = endpointhealth.New(cfg.Settings)
	var err error
	r.prober, err = probe.New(func(a netip.Addr) string {
		if cfg.Own(a) {
			return "an address of this node"
		}
		return ""
	}, cfg.Beats.Add("connections of health checks", heartbeat.DefaultBounds))
	return r, err
}

// mostUnderWay returns how many checks may be under way: their descriptors are at most a quarter of
// the process's limit.
func mostUnderWay() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return endpointhealth.MostUnderWay
	}
	return int(min(endpointhealth.MostUnderWay, max(limit.Cur/(4*probe.MostDescriptors), 1)))
}

// Known returns the state of the endpoints, for the next process.
func (r *Runner) Known() []endpointhealth.Known {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.tracker.Known()
}

// Remember continues from the state of the previous process, and returns the endpoints' health for
// the first snapshot. It must be called before any other method.
func (r *Runner) Remember(list []endpointhealth.Known) []compiler.EndpointHealth {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.tracker.Remember(list, time.Now())
}

// SetCheckedPorts implements loop.EndpointChecks.
func (r *Runner) SetCheckedPorts(ports []*compiler.CheckedPort) {
	r.mu.Lock()
	r.ports, r.news = ports, true
	r.mu.Unlock()
	r.wake.Raise()
}

// Configure changes the settings.
func (r *Runner) Configure(s endpointhealth.Config) {
	r.mu.Lock()
	r.settings = &s
	r.mu.Unlock()
	r.wake.Raise()
}

// Views calls f for each endpoint that is checked.
func (r *Runner) Views(f func(compiler.Endpoint, endpointhealth.View)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tracker.Views(f)
}

// Counts returns the totals.
func (r *Runner) Counts() endpointhealth.Counts {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.tracker.Counts()
}

// settle is how long changes are gathered: endpoints that fail together are compiled together.
const settle = 20 * time.Millisecond

// Run makes checks until ctx is done.
func (r *Runner) Run(ctx context.Context) {
	defer r.prober.Close()
	defer r.beat.Rest()
	sample := time.NewTicker(endpointhealth.SampleEvery)
	defer sample.Stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	apply := applier{Runner: r, done: make(chan struct{}, 1)}
	for {
		r.beat.Beat()
		next := r.step(&apply)
		timer.Reset(next)
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		case <-timer.C:
		case list := <-r.prober.Results():
			r.finish(list)
		case <-sample.C:
			r.sample()
			r.findLate()
		case <-apply.done:
			apply.running = false
		}
		apply.flush(ctx)
	}
}

// step starts the checks that are due, and returns the time until the next one. It holds no lock
// during calls of other packages, which have their own locks, except for the tracker's Unresolved.
func (r *Runner) step(a *applier) time.Duration {
	next, changed, denied := r.plan(a)
	if changed {
		r.denied = denied
		r.report()
	}
	for _, s := range a.starts {
		r.prober.Start(s)
	}
	return next
}

// plan passes new ports and settings to the tracker, and takes from it the checks that are due
// (a.starts) and the changes. changed reports whether denied may have changed.
func (r *Runner) plan(a *applier) (next time.Duration, changed bool, denied []endpointhealth.Denial) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if r.settings != nil {
		r.tracker.Configure(*r.settings, now)
		r.settings, changed = nil, true
	}
	if r.news {
		r.tracker.SetPorts(r.ports, now)
		r.ports, r.news, changed = nil, false, true
	}
	a.starts = r.tracker.Due(now, a.starts[:0])
	if list := r.tracker.Changes(); len(list) > 0 {
		if a.list == nil {
			a.due = now.Add(settle)
		}
		a.list = append(a.list, list...)
		r.log(list)
	}
	next = time.Hour
	if at, ok := r.tracker.Next(); ok {
		next = max(at.Sub(now), 0)
	}
	if a.list != nil && !a.running {
		next = min(next, max(a.due.Sub(now), 0))
	}
	return next, changed, r.tracker.Denied()
}

// finish passes results to the tracker.
func (r *Runner) finish(list []probe.Finished) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	for _, f := range list {
		r.tracker.Done(f.Start, f.Result, now)
	}
}

// sample passes the workers' counters to the tracker.
func (r *Runner) sample() {
	s := r.cfg.Snapshot()
	if s == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tracker.Sample(s, r.tally, time.Now())
}

// lateSamples is the number of samples between two searches of findLate.
const lateSamples = 4

// findLate reports the late checks, the suspects without room, and endpoints whose answers do not
// return, if these have changed.
func (r *Runner) findLate() {
	if r.samples++; r.samples%lateSamples != 0 {
		return
	}
	r.mu.Lock()
	now := time.Now()
	late, suspects, unreturned := r.tracker.Late(now), r.tracker.DeniedSuspects(now), r.tracker.Unreturned()
	r.mu.Unlock()
	if !slices.Equal(late, r.late) || !slices.Equal(suspects, r.suspects) || !slices.Equal(unreturned, r.unreturned) {
		r.late, r.suspects, r.unreturned = late, suspects, unreturned
		r.report()
	}
}

func (r *Runner) tally(ref services.BackendRef) (t endpointhealth.Tally) {
	for _, b := range r.cfg.Blocks {
		if c := b.Backends.At(ref.Index()); c != nil {
			t.Opened += c.Flows.Load()
			t.Answered += c.Answered.Load()
			t.Refused += c.Refused.Load()
		}
	}
	return t
}

// applier gathers changes for the control loop.
type applier struct {
	*Runner
	starts  []endpointhealth.Start
	list    []compiler.EndpointHealth
	due     time.Time
	running bool // Apply runs; done is sent when it returns
	done    chan struct{}
}

// flush passes the changes to the control loop in a goroutine: the loop may be busy, and checks
// continue.
func (a *applier) flush(ctx context.Context) {
	if a.list == nil || a.running || time.Now().Before(a.due) {
		return
	}
	list := a.list
	a.list, a.running = nil, true
	go func() {
		// Apply fails only when the loop ends, and ctx ends with it.
		_ = a.cfg.Apply(ctx, list)
		a.done <- struct{}{}
	}()
}

// mostLogged bounds the lines about one batch of changes, linesPerSecond all lines.
const (
	mostLogged     = 10
	linesPerSecond = 10
)

func (r *Runner) log(list []compiler.EndpointHealth) {
	down, up := 0, 0
	for i := range list {
		h := &list[i]
		switch {
		case h.Down:
			down++
		case h.SlowStart <= 1: // later steps of the slow start are not logged
			up++
		}
		if len(list) > mostLogged || h.SlowStart > 1 {
			continue
		}
		v, _ := r.tracker.View(h.Endpoint)
		r.limit.Info(r.cfg.Log, time.Now(), "endpoint", "service", h.Namespace+"/"+h.Service, "endpoint",
			netip.AddrPortFrom(h.Addr.Netip(), h.Port), "down", h.Down, "check", v.Check, "last", v.Last)
	}
	if len(list) > mostLogged {
		r.limit.Info(r.cfg.Log, time.Now(), "endpoints changed by their checks", "down", down, "up", up)
	}
}

// report reports the Services whose endpoints are not checked or checked late, because there are
// too many checks, or whose endpoints' answers do not return through this gateway.
func (r *Runner) report() {
	var problems []objects.Problem
	add := func(list []endpointhealth.Denial, field, message string) {
		for _, d := range list {
			problems = append(problems, objects.Problem{
				Source:   Source(),
				Object:   objects.ObjectID{Kind: objects.KindService, Namespace: d.Namespace, Name: d.Service},
				Field:    field,
				Severity: objects.Warning,
				Message:  fmt.Sprintf(message, d.PortName),
			})
		}
	}
	const annotation = "metadata.annotations[sluice.dev/health-check]"
	add(r.denied, annotation, "the endpoints of port %q are not checked: with them the checks would exceed "+
		"the gateway's rate of checks, or the namespace's share of it; use a longer interval")
	add(r.late, annotation, "the endpoints of port %q are checked late, and their health does not change until "+
		"then: the checks of the namespace, or all checks, take too long together, or too many addresses do not "+
		"answer on their link; use a longer interval or a shorter timeout")
	add(r.suspects, "", "endpoints of port %q answered no client and take new flows, because the gateway does not "+
		"check so many such endpoints of one namespace, or of all; remove the endpoints that do not answer")
	add(r.unreturned, "metadata.annotations[sluice.dev/forwarding]", "endpoints of port %q accept connections of "+
		"this gateway, and no client gets an answer from them: their answers do not return through this gateway; "+
		"route them here, or remove the annotation")
	r.cfg.Report(problems)
}

// Source returns the source of the problems that checks report.
func Source() objects.Source { return objects.Source{Kind: "endpoint-health"} }
