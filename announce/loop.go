package announce

import (
	"cmp"
	"context"
	"log/slog"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	"sluice.dev/sluice/announce/kinds"
	"sluice.dev/sluice/announce/pulse"
	"sluice.dev/sluice/announce/view"
	"sluice.dev/sluice/internal/heartbeat"
	"sluice.dev/sluice/internal/wake"
)

// Objects are what a Source has read. They must not be changed.
type Objects struct {
	Kinds []*unstructured.Unstructured
	// Unlisted: the API server may have pools of MetalLB, but they cannot be listed.
	Unlisted bool
	// Services has the labels of Services by namespace/name; nil if the Source has no Services.
	Services map[string]labels.Set
	UIDs     map[string]string // of Services, with the same keys
	Node     Node
	// NodeSeen: the Source has read Node, now or earlier. A Source that starts later is given it.
	NodeSeen bool
	// Problems are problems that the Source found.
	Problems []kinds.Problem
	// Password returns the password in a Secret; nil if the Source has no Secrets.
	Password func(namespace, name string) (string, error)
}

// Source reads objects.
type Source interface {
	// Run reads until ctx is done. It calls changed after each change, from any goroutine.
	Run(ctx context.Context, changed func())
	// Objects returns all objects, or what the Source still waits for (empty if nothing). If a
	// Source waits again later, the Loop continues with the last objects.
	Objects() (o *Objects, waiting string)
}

// Config configures a Loop.
type Config struct {
	Log      *slog.Logger
	Version  string
	Source   Source
	Speakers []Speaker
	// Gateway is the path of the gateway's pulse socket, State the state file for the next process.
	Gateway, State string
	// Hold is how long routes stay after the gateway's process has ended.
	Hold time.Duration
	// DrainDelay is how long routes are announced as leaving before they are withdrawn.
	DrainDelay time.Duration
	// Report, unless nil, is called once for each problem of an object, and for each change of a
	// Service's announcement (normal: it is announced).
	Report func(p kinds.Problem, normal bool)
	// Beats, unless nil, gets the heartbeats of the loop and of the reader of the gateway's pulse.
	Beats *heartbeat.Set
}

// DefaultDrainDelay is enough for routers to move traffic to other gateways: RFC 8326, section 4,
// leaves the time to the operator; routers in one data centre take a second or two.
const DefaultDrainDelay = 5 * time.Second

// retryEvery is the interval at which speakers retry failed operations.
const retryEvery = time.Second

// finalPulse is how long pulses are still read after this process got its signal to end: if the
// whole node shuts down, the gateway also ends, and its next pulse reports that.
const finalPulse = 2 * pulse.Every

// gather is how long changes of objects are collected before the objects are read: each read
// processes all objects, and an API server sends several changes for a new Service.
const gather = 50 * time.Millisecond

// A step takes time for each changed VIP, and for all VIPs if a session, the node or an object
// changed. So after a step the loop rests restFactor times as long as the step took, at most
// maxRest: flapping VIPs cost at most a tenth of a CPU. A step for a change that concerns all VIPs,
// such as a gateway that stops forwarding, does not wait (urgent).
const (
	restFactor = 9
	maxRest    = time.Second
)

// Loop connects the gateway's pulse, the objects and the speakers.
type Loop struct {
	config  Config
	started time.Time
	pulses  pulses
	watch   Watch
	inputs
	decision
	resumed bool // the previous process announced VIPs
	applied bool // the speakers have a World with VIPs
	stored  stored
	reports reports
	beat    *heartbeat.Beat
	changed wake.Flag // raised by the Source
	current atomic.Pointer[published]
}

// inputs are the Source's objects. readObjects sets them.
type inputs struct {
	reader   kinds.Reader
	objects  *Objects   // the last complete ones; nil before
	set      *kinds.Set // parsed from objects
	problems []kinds.Problem
}

// decision is the last World and the state to make the next one from it. step and decide set it.
type decision struct {
	node    Node
	verdict Verdict
	// impairments has the impairments of the served VIPs.
	impairments Impairments
	// leaving is the time since which the node is excluded, deleted or cordoned; zero: it is not,
	// or nothing was announced at that time.
	leaving   time.Time
	world     *World
	worlds    uint64 // count of Worlds
	input     *Input // that world was decided from
	inputFrom *Objects
}

// published is the data of a View.
type published struct {
	view  *view.View // without VIPs
	world *World     // nil: no World yet
}

// New returns a Loop. It reads the state that the previous process saved.
func New(c Config) *Loop {
	l := &Loop{config: c, started: time.Now(), changed: wake.NewFlag(), watch: Watch{Hold: c.Hold},
		inputs: inputs{set: &kinds.Set{}}, stored: stored{path: c.State, log: c.Log},
		pulses:  pulses{arrived: wake.NewFlag()},
		reports: reports{log: c.Log, report: c.Report, speakers: c.Speakers},
		beat:    c.Beats.Add("announcement loop", heartbeat.DefaultBounds)}
	l.pulses.beat = c.Beats.Add("reader of the gateway's pulse", heartbeat.DefaultBounds)
	var err error
	if l.stored.saved, err = load(c.State); err != nil {
		c.Log.Warn("the state of the previous process cannot be read", "error", err)
	}
	before := &l.stored.saved
	l.stored.node = before.Node
	l.watch.Restore(before.Hold)
	if l.resumed = len(before.VIPs) > 0; l.resumed {
		l.watch.Resume(before.VIPs, l.started)
		l.watch.interfaces = before.Interfaces
	}
	l.reader.Resume(before.Pools)
	l.publish("the first objects")
	return l
}

// View returns the current announcements and the stalled loops of this process. Any goroutine may
// call it.
func (l *Loop) View() *view.View {
	p := l.current.Load()
	v := *p.view
	v.VIPs = []view.VIP{}
	if p.world != nil {
		for _, s := range p.world.VIPs {
			line := view.VIP{Address: s.VIP, Services: s.Services, To: linesOf(l.config.Speakers, s.VIP)}
			if s.Pool != nil {
				line.Pool = s.Pool.Name
			}
			v.VIPs = append(v.VIPs, line)
		}
		for _, s := range p.world.Sources {
			v.Sources = append(v.Sources, view.Source{Address: s.VIP, Rank: s.Rank,
				To: linesOf(l.config.Speakers, s.VIP)})
		}
	}
	if stalled := l.config.Beats.Unready(); len(stalled) > 0 {
		v.Stalled = stalled
	}
	return &v
}

// Run announces until ctx is done, and finalPulse longer.
func (l *Loop) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	ended := ctx.Done()
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	running.Go(func() { l.config.Source.Run(ctx, l.changed.Raise) })
	running.Go(func() {
		pulse.Follow(ctx, l.config.Gateway, l.pulses.put, l.pulses.beat)
	})
	reported := wake.NewFlag()
	for _, s := range l.config.Speakers {
		running.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case <-s.Changed():
					reported.Raise()
				}
			}
		})
	}
	tick := time.NewTicker(retryEvery)
	defer tick.Stop()
	alarm := time.NewTimer(0)
	defer alarm.Stop()
	read := true
	var gathered <-chan time.Time // nil: no object has changed
	var last <-chan time.Time     // nil: ctx is not done
	var rested <-chan time.Time   // nil: no step is delayed
	defer l.beat.Rest()
	for {
		l.beat.Beat()
		begin := time.Now()
		if next := l.step(begin, read); !next.IsZero() {
			alarm.Reset(time.Until(next))
		}
		end := time.Now()
		rest := end.Add(min(restFactor*end.Sub(begin), maxRest))
		// delayed reports whether the next step must be delayed, and schedules it.
		delayed := func() bool {
			if left := time.Until(rest); left > 0 && rested == nil {
				rested = time.After(left)
			}
			return rested != nil
		}
		read = false
		for waiting := true; waiting; {
			waiting = false
			select {
			case <-ended:
				ended, last, waiting = nil, time.After(finalPulse), true
			case <-last:
				if l.applied {
					l.save(time.Now(), true)
				}
				for _, s := range l.config.Speakers {
					s.Close()
				}
				return
			case <-l.changed:
				waiting = true
				if gathered == nil {
					gathered = time.After(gather)
				}
			case <-gathered:
				read, gathered = true, nil
				waiting = delayed()
			case <-l.pulses.arrived:
				waiting = !l.pulses.urgent(l.watch.sight) && delayed()
			case <-reported:
				l.reports.stale = true
				waiting = delayed()
			case <-rested:
				rested = nil
			case <-tick.C:
				l.reports.stale = l.reports.stale || len(l.set.Layer2) > 0 // owners of VIPs also change with time
			case <-alarm.C:
			}
		}
	}
}

// step decides and applies the result to the speakers. It returns the latest time of the next call;
// zero: none is needed before a change.
func (l *Loop) step(now time.Time, read bool) (next time.Time) {
	for _, sight := range l.pulses.take() {
		l.watch.See(sight, now)
	}
	if sight, changed := l.pulses.checkReader(now); changed {
		l.watch.See(sight, now)
	}
	if waiting := l.readObjects(read); waiting != "" {
		l.publish(waiting)
		return time.Time{}
	}
	l.node, l.verdict = l.objects.Node, l.watch.Verdict(now)
	if l.objects.NodeSeen {
		l.stored.node = l.node.Name
	}
	// Peers with graceful restart keep the routes of the previous process until this one has sent
	// all of its own. If there are no such routes, sessions begin now: GoBGP takes 2 s for that.
	if !l.applied && !l.watch.Known(now) {
		if !l.resumed {
			l.worlds++
			l.world = &World{Node: l.node, Gateway: No, Interfaces: l.watch.interfaces, Set: l.set, Number: l.worlds}
			for _, s := range l.config.Speakers {
				s.Apply(l.world)
			}
		}
		l.stored.saveOthers(l.watch.Used(now))
		l.publish(cmp.Or(l.verdict.Why, "no pulse of the gateway has arrived yet"))
		return l.verdict.Until
	}
	next = l.decide(now)
	for _, s := range l.config.Speakers {
		s.Apply(l.world)
	}
	l.applied = true
	l.save(now, false)
	l.publish("")
	return next
}

// decide makes the next World, incrementally if only single VIPs can have changed. It returns the
// time at which the World changes without an event; zero: never.
func (l *Loop) decide(now time.Time) (next time.Time) {
	in := Input{Node: l.node, Verdict: l.verdict, Set: l.set, Services: l.objects.Services}
	var leaves, impairmentEnds time.Time
	in.Leaves, leaves = l.leaves(now)
	w := &World{Node: l.node, Gateway: l.verdict.Grade, Serves: l.verdict.Serves(),
		Interfaces: l.watch.interfaces, Set: l.set}
	changed, all := l.watch.Changes()
	if before := l.input; before != nil && !all && in.sameForAll(before) {
		if l.objects != l.inputFrom {
			changed = append(changed, in.relabelled(before.Services)...)
		}
		var differ []netip.Addr
		in.Impaired, impairmentEnds, differ = l.impairments.UpdateSome(l.verdict.VIPs, changed, now)
		w.Changed, w.Since = append(changed, differ...), l.world.Number
		w.VIPs, w.Sources = DecideSome(&in, l.world.VIPs, w.Changed), l.world.Sources
		l.stored.vipsDiffer = l.stored.vipsDiffer || len(w.Changed) > 0
	} else {
		in.Impaired, impairmentEnds = l.impairments.Update(l.verdict.VIPs, l.node.NetworkUnavailable, now)
		w.VIPs, w.Sources = Decide(&in), DecideSources(&in)
		l.stored.vipsDiffer, l.reports.stale = true, true
	}
	l.worlds++
	w.Number = l.worlds
	l.world, l.input, l.inputFrom = w, &in, l.objects
	return earliest(leaves, l.verdict.Until, impairmentEnds)
}

// earliest returns the first of the times that are not zero.
func earliest(times ...time.Time) (first time.Time) {
	for _, t := range times {
		if first.IsZero() || !t.IsZero() && t.Before(first) {
			first = t
		}
	}
	return first
}

// readObjects gets the Source's objects and, with read or for the first time, parses them. It
// returns what the Source waits for, if it never had all objects. If a Source waits again later,
// the last objects stay in force: routes of a gateway that fails meanwhile must still be withdrawn.
func (l *Loop) readObjects(read bool) (waiting string) {
	objects, waiting := l.config.Source.Objects()
	if waiting != "" {
		if l.objects == nil {
			return waiting
		}
		return ""
	}
	if read || l.objects == nil {
		l.reader.Password, l.reader.Unlisted = objects.Password, objects.Unlisted
		set, problems := l.reader.Read(objects.Kinds)
		if l.problems = problems; !reflect.DeepEqual(set, l.set) {
			l.set = set
		}
		l.stored.poolsDiffer = !reflect.DeepEqual(l.set.SavedPools(), l.stored.saved.Pools)
	}
	l.objects = objects
	return ""
}

// leaves reports whether an excluded, deleted or cordoned node still announces its routes as
// leaving, and until when.
func (l *Loop) leaves(now time.Time) (bool, time.Time) {
	if grade, _ := l.node.grade(); grade != No {
		l.leaving = time.Time{}
		return false, time.Time{}
	}
	if l.leaving.IsZero() {
		l.leaving = now
		if !l.applied && !l.resumed {
			l.leaving = now.Add(-l.config.DrainDelay) // nothing was announced
		}
	}
	end := l.leaving.Add(l.config.DrainDelay)
	if !now.Before(end) {
		return false, time.Time{}
	}
	return true, end
}

// save saves the state for the next process, at once if last.
func (l *Loop) save(now time.Time, last bool) {
	l.stored.save(now, last, l.watch.Used(now), l.verdict.VIPs, l.world)
}

// publish publishes the View. waiting is what the loop waits for before it announces anything.
func (l *Loop) publish(waiting string) {
	v := &view.View{Node: l.node.Name, PID: os.Getpid(), Version: l.config.Version, StartedAt: l.started,
		Waiting: waiting, Gateway: l.verdict.Grade.String(), Why: l.verdict.Why,
		Peers: []view.Peer{}, Problems: []view.Problem{}}
	if until := l.verdict.Until; !until.IsZero() {
		v.Until = &until
	}
	problems := slices.Clone(l.problems)
	if l.objects != nil {
		problems = append(problems, l.objects.Problems...)
	}
	if l.world != nil {
		for _, s := range l.config.Speakers {
			r := s.Report()
			v.Peers = append(v.Peers, r.Peers...)
			problems = append(problems, r.Problems...)
		}
	}
	for _, p := range problems {
		v.Problems = append(v.Problems, view.Problem{Object: p.About.String(), Reason: p.Reason, Note: p.Note})
	}
	l.reports.ofProblems(problems)
	if v.Waiting == "" && v.Gateway != No.String() {
		l.reports.ofVIPs(v.Node, l.world, l.objects.UIDs)
	} else {
		l.reports.stale = true
	}
	l.log(v)
	l.current.Store(&published{v, l.world})
}

// log writes a line when the gateway's grade, the reason or the wait changes.
func (l *Loop) log(v *view.View) {
	p := l.current.Load()
	if p == nil || p.view.Gateway == v.Gateway && p.view.Why == v.Why && p.view.Waiting == v.Waiting {
		return
	}
	vips := 0
	if l.world != nil {
		vips = len(l.world.VIPs)
	}
	attributes := []any{"announced", v.Gateway, "vips", vips}
	if why := strings.TrimSpace(cmp.Or(v.Waiting, v.Why)); why != "" {
		attributes = append(attributes, "why", why)
	}
	if v.Gateway == Yes.String() && v.Why == "" {
		l.config.Log.Info("the gateway forwards", attributes...)
		return
	}
	l.config.Log.Warn("the announcement of the gateway has changed", attributes...)
}
