package loop

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/steer"
	"sluice.dev/sluice/control/tracker"
	"sluice.dev/sluice/fastpath/services"
)

// Config is what a Loop works with.
type Config struct {
	Log       *slog.Logger
	Tracker   *tracker.Tracker
	Compiler  *compiler.Compiler
	Publisher *Publisher
	Steering  Steering
	// Flows keeps what live flows need open in the kernel program after it is no
	// longer wanted. Nil: it is closed at once.
	Flows Flows
	// Observer hears of each pass. Nil: nobody does.
	Observer Observer
	// HealthChecks hears of health check node ports. Nil: nobody does.
	HealthChecks HealthChecks
	// NodeChanged hears of the Node that the compiler's configuration names, when what
	// NodeInfo says of it changes, also that it went. It is called on the loop's
	// goroutine: it must not block, nor ask anything of the Loop.
	NodeChanged func(objects.NodeInfo)
	// Prepare corrects the compiler's configuration by what the feeds said, such as of this
	// Node, before the first table is compiled. It is called on the loop's goroutine, once.
	// Nil: the configuration stays.
	Prepare func(*compiler.Config)
	// Feeds must all have synced once before the first snapshot is published:
	// half a table would break flows that a predecessor left.
	Feeds []tracker.Feed
	// Window is the least time from the end of one pass to the next: the first change after
	// quiet goes at once, and what comes in a burst goes together.
	Window time.Duration
	// Retry is how often work that is left over is looked at again: numbers to take
	// back, frontends to close, refusals of the kernel. 0 is one second.
	Retry time.Duration
}

// Loop is the control loop: one goroutine that compiles what changed, publishes
// it, and steers by it.
//
//	opening   addresses, publish, then the kernel program: what it sends is known
//	closing   the kernel program, then publish; with Flows: publish, so that no flow
//	          begins, and the kernel program when the last flow has ended
//	start     as opening, and what a predecessor left as closing
type Loop struct {
	Config
	requests chan func()
	ready    chan struct{}
	ended    chan struct{}

	// Only Run's goroutine uses these.
	pending  *pendingChanges // what the kernel program has not done yet
	replaced bool            // the kernel program was given the full set once
	// A walk visits all live flows, so the interval doubles as long as walks find nothing to close.
	nextWalk     time.Time
	walkInterval time.Duration
	// What the kernel program refused is requested again at doubling intervals, and at once when
	// something was closed.
	retryRefusedAt  time.Time
	refusedInterval time.Duration
	// walking is the walk that runs, which is sent to walkDone when it ends; or nil.
	walking  *flowWalk
	walkDone chan *flowWalk
	// outstanding is the Sync that the observer has not received yet. healthEdits is the
	// Compiler.HealthEdits of the last call of HealthChecks; healthNotified: there was one.
	outstanding    *Sync
	healthEdits    uint64
	healthNotified bool
	noted          problemEdits
	checked        time.Time // when the last self check was

	passed   time.Time // end of the last pass
	progress progress
}

// New returns a Loop that does nothing until Run.
func New(cfg Config) *Loop {
	if cfg.Retry == 0 {
		cfg.Retry = time.Second
	}
	return &Loop{
		Config:   cfg,
		requests: make(chan func()),
		ready:    make(chan struct{}),
		walkDone: make(chan *flowWalk, 1),
		ended:    make(chan struct{}),
		pending:  newPending(),
		progress: progress{changed: make(chan struct{}), feeds: map[objects.Source]error{}},

		walkInterval: cfg.Retry, refusedInterval: cfg.Retry,
	}
}

// ErrEnded is returned by requests to a loop that does not run any more.
var ErrEnded = errors.New("the control loop has ended")

// Ready is closed when the first complete snapshot is published and steered by.
func (l *Loop) Ready() <-chan struct{} { return l.ready }

// Run works until ctx is done. It runs once.
func (l *Loop) Run(ctx context.Context) error {
	defer close(l.ended)
	defer l.awaitWalk()
	if err := l.await(ctx); err != nil {
		return err
	}
	l.prepare()
	l.update(true)
	tick := time.NewTicker(l.Retry)
	defer tick.Stop()
	l.checked = time.Now()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-l.Tracker.Wake():
			if err := pause(ctx, time.Until(l.passed.Add(l.Window))); err != nil {
				return err
			}
			l.update(false)
			l.passed = time.Now()
		case request := <-l.requests:
			request()
		case q := <-l.walkDone:
			l.finishWalk(q)
		case <-tick.C:
			l.leftovers()
			l.selfCheck(time.Now())
		}
	}
}

// prepare asks for the configuration of the first table. What the kernel program must
// have is asked for as a whole after that.
func (l *Loop) prepare() {
	if l.Prepare == nil {
		return
	}
	cfg := l.Compiler.Config()
	l.Prepare(&cfg)
	l.Compiler.Configure(cfg)
}

// await returns when every feed has synced once. A feed that cannot is asked
// again and again; status says why nothing is served.
func (l *Loop) await(ctx context.Context) error {
	for _, f := range l.Feeds {
		for {
			err := f.Sync(ctx)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if l.progress.feed(f.Source(), err) && err != nil {
				l.Log.Warn("source cannot be read; nothing is served before it is", "source", f.Source().String(), "error", err)
			}
			if err == nil {
				break
			}
			if err := pause(ctx, l.Retry); err != nil {
				return err
			}
		}
	}
	return nil
}

// update compiles and applies what the sources changed. The first time is full.
func (l *Loop) update(full bool) {
	l.Compiler.Release(l.Publisher.Oldest())
	ch := l.Tracker.Changes()
	if ch.Len() > 0 || full {
		l.passBegan(syncOf(ch, full))
	}
	l.apply(l.Compiler.Compile(ch))
	l.notify(ch)
}

// apply brings the workers and the kernel program to what was compiled.
func (l *Loop) apply(snapshot *services.Snapshot, _ []objects.Problem, steer *steer.Change) {
	if l.walking != nil {
		l.walking.reopened.add(&steer.Open)
	}
	l.pending.add(steer)
	if !steer.Close.Empty() {
		l.nextWalk, l.walkInterval = time.Time{}, l.Retry
	}
	if l.Flows == nil {
		l.close()
	}
	l.openAddrs()
	if snapshot.Generation != l.Publisher.Published() {
		l.Publisher.Publish(snapshot)
	}
	l.open()
	l.note()
	l.completed()
}

// leftovers looks at what could not be done at once: frontends that live flows
// needed, refusals of the kernel, numbers that were in use.
func (l *Loop) leftovers() {
	l.Compiler.Release(l.Publisher.Oldest())
	if l.Compiler.Starved() {
		l.apply(l.Compiler.Compile(&objects.Changes{}))
	}
	if l.replaced && l.pending.empty() {
		return
	}
	if now := time.Now(); l.pending.refused.len() > 0 && !now.Before(l.retryRefusedAt) {
		l.retryRefusedAt, l.refusedInterval = now.Add(l.refusedInterval), min(2*l.refusedInterval, maxRefusedInterval)
		l.pending.again()
	}
	l.open()
	l.close()
	l.note()
	l.completed()
}

// open asks the kernel program for what is published and not steered yet.
func (l *Loop) open() {
	if !l.replaced {
		l.replace()
		return
	}
	if l.pending.opens() == 0 {
		return
	}
	set := l.pending.opening()
	l.openSet(&set)
}

// maxRefusedInterval bounds how long something stays refused after there is room for it.
const maxRefusedInterval = time.Minute

// openSet asks the kernel program for a set and notes what became of it.
func (l *Loop) openSet(set *steer.Set) {
	err := l.Steering.Open(set)
	if refused := (*steer.RefusedError)(nil); errors.As(err, &refused) {
		l.pending.opened(set)
		l.setAside(refused)
	} else if l.steered(err) {
		l.pending.opened(set)
	}
}

// setAside moves what the kernel program cannot hold to the refused entries: the rest is served
// without it.
func (l *Loop) setAside(r *steer.RefusedError) {
	if now := time.Now(); !now.Before(l.retryRefusedAt) {
		l.retryRefusedAt = now.Add(l.refusedInterval)
	}
	l.pending.refuse(&r.Set)
	l.steered(r)
}

// replace gives the kernel program the full set for the first time. What a
// predecessor left there and nobody wants stays as long as flows need it: the daemon
// was dead while a service went, or the predecessor kept it for them.
func (l *Loop) replace() {
	full, used := l.Compiler.Steer().Open, steer.Set{}
	if l.Flows != nil {
		held := l.Steering.Held()
		if left := held.Without(&full); !left.Empty() {
			used = l.Flows.InUse(&left)
		}
	}
	keep := full.With(&used)
	err := l.Steering.Replace(&keep)
	refused := (*steer.RefusedError)(nil)
	if errors.As(err, &refused) && refused.Set.Len() < keep.Len() {
		err = nil
	}
	if !l.steered(err) {
		return
	}
	l.replaced, l.pending = true, newPending()
	l.pending.note(&used, false)
	if refused != nil {
		l.setAside(refused)
	}
	close(l.ready)
}

// openAddrs steers what comes to new addresses before they are published: with the
// snapshot a flow may leave from one, and its reply must not meet the kernel, which
// knows nothing of it and would reset it. What comes before the snapshot goes back
// to the kernel.
func (l *Loop) openAddrs() {
	if !l.replaced || l.pending.opens() == 0 {
		return
	}
	set := steer.Set{Addrs: l.pending.opening().Addrs}
	if !set.Empty() {
		l.openSet(&set)
	}
}

// steered notes the answer of the kernel program, and reports whether it took all. As long
// as something is refused, that is what others are told.
func (l *Loop) steered(err error) bool {
	if err == nil && l.pending.refused.len() > 0 {
		return true
	}
	if l.progress.steer(err) && err != nil {
		l.Log.Error("the kernel program refused; it is asked again", "error", err, "retry", l.Retry)
	}
	return err == nil
}

// note tells everybody how far the loop is. What problems there are is asked only when
// that may differ: with thousands of them, listing all is no part of one small change.
func (l *Loop) note() {
	p := &l.progress
	if edits := (problemEdits{l.Compiler.ProblemEdits(), l.Tracker.ProblemEdits()}); edits != l.noted {
		problems := l.Tracker.Locate(l.Compiler.Problems())
		l.noted = edits
		l.warn(p.setProblems(problems))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closing = l.pending.closes()
	if l.replaced && l.pending.opens() == 0 && p.applied != l.Compiler.Read() {
		p.applied, p.at = l.Compiler.Read(), time.Now()
	}
	close(p.changed)
	p.changed = make(chan struct{})
}

func (l *Loop) warn(news []objects.Problem) {
	for _, q := range news {
		l.Log.Warn("problem", "severity", q.Severity, "problem", q.String())
	}
}

// request runs f on the loop's goroutine.
func (l *Loop) request(ctx context.Context, f func()) error {
	done := make(chan struct{})
	select {
	case l.requests <- func() { f(); close(done) }:
		<-done
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-l.ended:
		return ErrEnded
	}
}

// Configure changes the compiler's configuration.
func (l *Loop) Configure(ctx context.Context, change func(*compiler.Config)) error {
	return l.request(ctx, func() {
		cfg := l.Compiler.Config()
		change(&cfg)
		none := &objects.Changes{}
		l.passBegan(syncOf(none, true))
		l.apply(l.Compiler.Configure(cfg))
		l.notify(none)
	})
}

// Drain keeps new flows from backends and says how many those are now. See
// Compiler.Drain.
func (l *Loop) Drain(ctx context.Context, d compiler.Drain) (backends int, err error) {
	return l.drain(ctx, d, l.Compiler.Drain)
}

// Undrain lets them come again.
func (l *Loop) Undrain(ctx context.Context, d compiler.Drain) (backends int, err error) {
	return l.drain(ctx, d, l.Compiler.Undrain)
}

func (l *Loop) drain(ctx context.Context, d compiler.Drain, do func(compiler.Drain) error) (backends int, err error) {
	requested := l.request(ctx, func() {
		if err = do(d); err != nil {
			return
		}
		backends = l.Compiler.Count(d)
		none := &objects.Changes{}
		l.apply(l.Compiler.Compile(none))
		l.notify(none)
	})
	return backends, errors.Join(requested, err)
}

// pause waits for a time.
func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
