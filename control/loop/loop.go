package loop

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/steer"
	"sluice.dev/sluice/control/tracker"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/internal/heartbeat"
	"sluice.dev/sluice/internal/wake"
)

// Config configures a Loop.
type Config struct {
	Log       *slog.Logger
	Tracker   *tracker.Tracker
	Compiler  *compiler.Compiler
	Publisher *Publisher
	Steering  Steering
	// Flows returns what live flows still need: that stays open in the kernel program after it is
	// no longer wanted. Nil: it is closed at once.
	Flows Flows
	// Observer, if not nil, is called after each pass.
	Observer Observer
	// HealthChecks, if not nil, is called when health check node ports change.
	HealthChecks HealthChecks
	// EndpointChecks, if not nil, is called when the endpoints that are checked change.
	EndpointChecks EndpointChecks
	// NodeChanged, if not nil, is called when the NodeInfo of the Node that the compiler's
	// configuration names changes, also when the Node is deleted. It is called on the loop's
	// goroutine: it must not block, and must not call methods of the Loop that send it a request.
	NodeChanged func(objects.NodeInfo)
	// SaveDrains, if not nil, is called with all drains when one came or went, before the request
	// for it is answered. It is called on the loop's goroutine.
	SaveDrains func([]compiler.Drain) error
	// Prepare, if not nil, changes the compiler's configuration by objects that the feeds have
	// read, such as this Node, before the first table is compiled. It is called once, on the loop's
	// goroutine.
	Prepare func(*compiler.Config)
	// Beats, if not nil, gets the heartbeats of the loop, from its first compilation on, and of the
	// goroutines that work for it: an iteration of the loop follows after Retry at the latest.
	Beats *heartbeat.Set
	// Feeds must all have synced once before the first snapshot is published: an incomplete table
	// would break flows that a predecessor left.
	Feeds []tracker.Feed
	// Window is the minimum time from the end of one pass to the next: a single change is applied
	// at once, changes of a burst together.
	Window time.Duration
	// Retry is the interval of retries: of numbers to free, frontends to close and entries that the
	// kernel program refused. 0 is one second.
	Retry time.Duration
}

// Loop is the control loop: one goroutine that compiles changes, publishes the snapshot, and
// updates the kernel program.
//
//	opening   addresses, publish, then the kernel program: workers know all that it sends
//	closing   the kernel program, then publish; with Flows: publish, so that no flow
//	          begins, and the kernel program when the last flow has ended
//	start     as opening; entries that a predecessor left, as closing
type Loop struct {
	Config
	requests chan func()
	began    chan struct{}
	ready    chan struct{}
	ended    chan struct{}

	// Only Run's goroutine uses these.
	pending  *pendingChanges // outstanding changes of the kernel program
	replaced bool            // the kernel program was given the full set once
	// A walk visits all live flows, so the interval doubles as long as walks find nothing to close.
	nextWalk     time.Time
	walkInterval time.Duration
	// Entries that the kernel program refused are requested again at doubling intervals, and at
	// once when something was closed.
	retryRefusedAt  time.Time
	refusedInterval time.Duration
	// walking is the walk that runs, which is sent to walkDone when it ends; or nil.
	walking  *flowWalk
	walkDone chan *flowWalk
	// sharing: a source address became the node's, and workers may choose its ports as before yet.
	sharing bool
	// building is the table that another goroutine builds, which is sent to tableDone; or nil.
	building  *compiler.TableJob
	tableDone chan *compiler.TableJob
	// outstanding is the Sync that the observer has not received yet. healthEdits is the
	// Compiler.HealthEdits of the last call of HealthChecks; healthNotified: there was one.
	outstanding    *Sync
	healthEdits    uint64
	healthNotified bool
	checkEdits     uint64 // Compiler.CheckEdits of the last call of EndpointChecks; noEdits before
	listed         problemLister
	checked        time.Time // when the last self check was

	changes                   changeLog
	problems                  problemLog
	beat, walkBeat, tableBeat *heartbeat.Beat

	passed   time.Time // end of the last pass
	progress progress
}

// firstSlots are the slots of large tables that are built before the first snapshot: half a second.
const firstSlots = 6_000_000

// New returns a Loop, which Run starts.
func New(cfg Config) *Loop {
	if cfg.Retry == 0 {
		cfg.Retry = time.Second
	}
	return &Loop{
		Config:    cfg,
		beat:      cfg.Beats.Add("control loop", heartbeat.DefaultBounds),
		walkBeat:  cfg.Beats.Add("search for flows of closed frontends", walkBounds),
		tableBeat: cfg.Beats.Add("builder of large tables", heartbeat.DefaultBounds),
		listed: problemLister{
			done: make(chan *problemList, 1), beat: cfg.Beats.Add("list of problems", heartbeat.DefaultBounds),
		},
		requests:  make(chan func()),
		began:     make(chan struct{}),
		ready:     make(chan struct{}),
		walkDone:  make(chan *flowWalk, 1),
		tableDone: make(chan *compiler.TableJob, 1),
		ended:     make(chan struct{}),
		changes:   changeLog{log: cfg.Log},
		problems:  problemLog{log: cfg.Log},
		pending:   newPending(),
		progress:  progress{changed: make(chan struct{}), feeds: map[objects.Source]error{}},

		walkInterval: cfg.Retry, refusedInterval: cfg.Retry, checkEdits: noEdits,
	}
}

// noEdits makes the first pass call EndpointChecks even if there are no checks: checks of a
// predecessor may have to end.
const noEdits = math.MaxUint64

// ErrEnded is returned by requests to a loop that has ended.
var ErrEnded = errors.New("the control loop has ended")

// Ready is closed when the first complete snapshot is published and steered.
func (l *Loop) Ready() <-chan struct{} { return l.ready }

// Began is closed when all feeds have synced once, before Prepare is called. Until then requests
// such as Configure wait, for as long as a feed cannot be read.
func (l *Loop) Began() <-chan struct{} { return l.began }

// Run runs the loop until ctx is done. It must be called once.
func (l *Loop) Run(ctx context.Context) error {
	defer close(l.ended)
	defer l.awaitWalk()
	if err := l.await(ctx); err != nil {
		return err
	}
	defer l.beat.Rest()
	l.beat.Beat()
	close(l.began)
	l.prepare()
	l.Compiler.DeferTables(true)
	l.Compiler.DeferProblems(true)
	l.Compiler.DeferEndpoints(true)
	l.Compiler.BuildAtOnce(firstSlots)
	l.update(true)
	tick := time.NewTicker(l.Retry)
	defer tick.Stop()
	l.checked = time.Now()
	for {
		l.beat.Beat()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-l.Tracker.Wake():
			if !wake.After(ctx, time.Until(l.passed.Add(l.Window))) {
				return ctx.Err()
			}
			l.update(false)
			l.passed = time.Now()
		case request := <-l.requests:
			request()
		case q := <-l.walkDone:
			l.finishWalk(q)
		case j := <-l.tableDone:
			l.building = nil
			l.apply(l.Compiler.Install(j))
		case <-l.staleEndpoints():
			l.recompile()
		case <-l.staleProblems():
			l.Compiler.RefreshProblems()
			l.note()
		case <-l.listed.due:
			l.listed.due = nil
			l.note()
		case list := <-l.listed.done:
			l.finishList(list)
			l.note()
		case <-tick.C:
			l.leftovers()
			l.changes.flush(time.Now())
			l.problems.flush(time.Now())
			l.selfCheck(time.Now())
			l.buildTable()
		}
	}
}

// prepare sets the configuration of the first table. replace then gives the kernel program the full
// set.
func (l *Loop) prepare() {
	if l.Prepare == nil {
		return
	}
	cfg := l.Compiler.Config()
	l.Prepare(&cfg)
	l.Compiler.Configure(cfg)
}

// await returns when every feed has synced once. It retries a feed that cannot; the status shows
// why nothing is served.
func (l *Loop) await(ctx context.Context) error {
	for _, f := range l.Feeds {
		for {
			err := f.Sync(ctx)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if l.progress.feed(f.Source(), err) && err != nil {
				l.Log.Warn("source cannot be read; nothing is served before it is", "source", f.Source().String(),
					"error", err)
			}
			if err == nil {
				break
			}
			if !wake.After(ctx, l.Retry) {
				return ctx.Err()
			}
		}
	}
	return nil
}

// update compiles and applies the changes of the sources; full is true for the first table.
func (l *Loop) update(full bool) {
	l.Compiler.Release(l.Publisher.Oldest())
	ch := l.changesOf(full)
	if ch.Len() > 0 || full {
		l.passBegan(syncOf(ch, full))
	}
	var before *servedBefore
	if !full {
		before = l.changes.before(l.Compiler, ch)
	}
	l.apply(l.Compiler.Compile(ch))
	if full {
		l.changes.start(l.Compiler, ch)
	}
	l.changes.after(l.Compiler, ch, before, time.Now())
	l.notify(ch)
}

// passCost bounds the changes of one pass. So changes of one namespace, however many and costly,
// delay another namespace's by at most a few milliseconds and the costliest Service.
const passCost = 20_000

// changesOf returns the changes for a pass: all changes for the first table, which is published
// once.
func (l *Loop) changesOf(full bool) *objects.Changes {
	if full {
		return l.Tracker.Changes()
	}
	return l.Tracker.ChangesWithin(passCost)
}

// apply publishes a compiled snapshot to the workers, and updates the kernel program.
func (l *Loop) apply(snapshot *services.Snapshot, _ []objects.Problem, steer *steer.Change) {
	if l.walking != nil {
		l.walking.reopened.add(&steer.Open)
	}
	l.pending.add(steer)
	l.shareSources(&steer.Open)
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
	l.buildTable()
	if edits := l.Compiler.CheckEdits(); l.EndpointChecks != nil && l.checkEdits != edits {
		l.checkEdits = edits
		l.EndpointChecks.SetCheckedPorts(l.Compiler.CheckedPorts())
	}
}

// buildTable starts to build the next deferred table, unless one is built. The goroutine uses no
// resource that ends with the loop, so the loop does not wait for it.
func (l *Loop) buildTable() {
	if l.building != nil {
		return
	}
	if j := l.Compiler.NextTable(); j != nil {
		l.building = j
		go func() {
			l.tableBeat.Beat()
			j.Build()
			l.tableBeat.Rest()
			l.tableDone <- j
		}()
	}
}

// staleEndpoints returns a closed channel if the compiler has stale endpoints and no change waits:
// the pass of a change evaluates some of them anyway.
func (l *Loop) staleEndpoints() <-chan struct{} {
	if l.Compiler.StaleEndpoints() && len(l.Tracker.Wake()) == 0 {
		return closed
	}
	return nil
}

// recompile compiles without changes of the sources.
func (l *Loop) recompile() {
	none := &objects.Changes{}
	l.apply(l.Compiler.Compile(none))
	l.notify(none)
}

// leftovers retries operations that had to wait: closing frontends that live flows needed, opening
// entries that the kernel program refused, freeing numbers that were in use.
func (l *Loop) leftovers() {
	l.Compiler.Release(l.Publisher.Oldest())
	if l.sharing && l.Publisher.Oldest() >= l.Publisher.Published() {
		l.sharing = false
		l.keepReplies()
	}
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

// open makes the kernel program open entries that are published and not steered yet.
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

// maxRefusedInterval bounds the retry interval of refused entries.
const maxRefusedInterval = time.Minute

// openSet makes the kernel program open a set, and records the result.
func (l *Loop) openSet(set *steer.Set) {
	err := l.Steering.Open(set)
	if refused := (*steer.RefusedError)(nil); errors.As(err, &refused) {
		l.pending.opened(set)
		l.setAside(refused)
	} else if l.steered(err) {
		l.pending.opened(set)
	}
}

// setAside moves entries that the kernel program cannot hold to the refused entries; the other
// entries are served.
func (l *Loop) setAside(r *steer.RefusedError) {
	if now := time.Now(); !now.Before(l.retryRefusedAt) {
		l.retryRefusedAt = now.Add(l.refusedInterval)
	}
	l.pending.refuse(&r.Set)
	l.steered(r)
}

// replace gives the kernel program the full set for the first time. Entries of a predecessor that
// are not in it stay as long as flows need them: the service was deleted while no daemon ran, or
// the predecessor kept them for its flows.
func (l *Loop) replace() {
	full, used := l.Compiler.Steer().Open, steer.Set{}
	if l.Flows != nil {
		held := l.Steering.Held()
		left := held.Without(&full)
		if turnShared(&held, &full) {
			left.Replies = steer.AllPorts()
		}
		if !left.Empty() {
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

// openAddrs steers packets for new addresses before the snapshot is published: as soon as it is, a
// flow may use such an address as its source, and the kernel would reset its reply. Workers return
// packets that arrive before the snapshot to the kernel.
func (l *Loop) openAddrs() {
	if !l.replaced || l.pending.opens() == 0 {
		return
	}
	all := l.pending.opening()
	set := steer.Set{Addrs: all.Addrs, Replies: all.Replies}
	if !set.Empty() {
		l.openSet(&set)
	}
}

// steered records the result of a call of the kernel program, and reports whether it succeeded.
// While entries are refused, the status keeps that error.
func (l *Loop) steered(err error) bool {
	if err == nil && l.pending.refused.len() > 0 {
		return true
	}
	if l.progress.steer(err) && err != nil {
		l.Log.Error("the kernel program refused; retrying", "error", err, "retry", l.Retry)
	}
	return err == nil
}

// note updates progress, and lists the problems if they may have changed.
func (l *Loop) note() {
	l.listProblems()
	p := &l.progress
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closing = l.pending.closes()
	if l.replaced && l.pending.opens() == 0 && p.applied != l.Compiler.Read() {
		p.applied, p.at = l.Compiler.Read(), time.Now()
	}
	close(p.changed)
	p.changed = make(chan struct{})
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

// Drain makes backends take no new flows, and returns how many backends those are now. See
// Compiler.Drain.
func (l *Loop) Drain(ctx context.Context, d compiler.Drain) (backends int, err error) {
	return l.drain(ctx, d, l.Compiler.Drain)
}

// Undrain ends a Drain.
func (l *Loop) Undrain(ctx context.Context, d compiler.Drain) (backends int, err error) {
	return l.drain(ctx, d, l.Compiler.Undrain)
}

func (l *Loop) drain(ctx context.Context, d compiler.Drain, do func(compiler.Drain) error) (backends int, err error) {
	requested := l.request(ctx, func() {
		if err = do(d); err != nil {
			return
		}
		if l.SaveDrains != nil {
			if err = l.SaveDrains(l.Compiler.Drains()); err != nil {
				err = fmt.Errorf("in force, but not saved, so a restart will undo it: %w", err)
			}
		}
		backends = l.Compiler.Count(d)
		l.recompile()
	})
	return backends, errors.Join(requested, err)
}

// SetHealth passes the results of checks to the compiler, see Compiler.SetHealth.
func (l *Loop) SetHealth(ctx context.Context, list []compiler.EndpointHealth) error {
	return l.request(ctx, func() {
		l.Compiler.SetHealth(list)
		l.apply(l.Compiler.Compile(&objects.Changes{}))
	})
}
