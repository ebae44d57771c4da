package announce

import (
	"cmp"
	"context"
	"fmt"
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
	// Unlisted: there may be pools of MetalLB, and they cannot be listed.
	Unlisted bool
	// Services has the labels of Services by namespace/name; nil where there are none to read.
	Services map[string]labels.Set
	UIDs     map[string]string // of Services, as Services
	Node     Node
	// Problems are found by the Source.
	Problems []kinds.Problem
	// Password returns the password in a Secret; nil where there are none.
	Password func(namespace, name string) (string, error)
}

// Source reads objects.
type Source interface {
	// Run reads until ctx is done, and calls changed after a change, from any goroutine.
	Run(ctx context.Context, changed func())
	// Objects returns all that is known; waiting is what is not read yet, empty if all is. A Loop
	// goes on with the last objects where there is something to wait for later.
	Objects() (o *Objects, waiting string)
}

// Config configures a Loop.
type Config struct {
	Log      *slog.Logger
	Version  string
	Source   Source
	Speakers []Speaker
	// Gateway is the path of the gateway's pulse socket, State the file for the next process.
	Gateway, State string
	// Hold is how long a gateway's process that ended is waited for.
	Hold time.Duration
	// DrainDelay is how long routes are announced as leaving before they go.
	DrainDelay time.Duration
	// Tell, unless nil, is told what is wrong with objects, and what is announced of Services
	// (normal), each thing once.
	Tell func(p kinds.Problem, normal bool)
	// Beats, unless nil, gets the heartbeats of the loop and of what reads the gateway's pulse.
	Beats *heartbeat.Set
}

// DefaultDrainDelay gives routers the time to move traffic to others: RFC 8326, section 4, leaves
// it to the operator; routers in one data centre take a second or two.
const DefaultDrainDelay = 5 * time.Second

// again is how often speakers try again what could not be done.
const again = time.Second

// lastWord is how long the gateway is heard after this process was told to end: where the whole
// node ends, so does the gateway, and says so with its next pulse.
const lastWord = 2 * pulse.Every

// gather is how long objects may change before they are read: reading costs what all objects cost,
// and of a Service that is created an API server tells several times.
const gather = 50 * time.Millisecond

// A step costs what the VIPs cost that changed: all of them where a session, the node or objects
// did. So between two there are restFactor times as long as the first took, maxRest at most:
// whatever flaps costs a tenth of a CPU. A step for what concerns all VIPs, as that the gateway
// does not forward, does not wait (urgent).
const (
	restFactor = 9
	maxRest    = time.Second
)

// Loop brings together what is seen of the gateway, objects and speakers.
type Loop struct {
	config  Config
	started time.Time
	watch   Watch
	// impairments of the VIPs that the gateway serves.
	impairments Impairments
	reader      kinds.Reader
	// resumed: the process before announced something.
	resumed bool
	// leaving is since when the node keeps traffic away; zero: it does not, or nothing was
	// announced when it began to.
	leaving time.Time
	applied bool // something was given to the speakers
	saved   saved
	savedAt time.Time
	said    bool // pools may say something else than saved
	unsaved bool // VIPs may be others than saved
	told    map[kinds.Problem]bool
	uids    map[string]string
	states  map[netip.Addr]string // of VIPs, that Services were told
	retell  bool                  // any of states may be another one

	objects  *Objects   // the last that were known; nil before the first
	set      *kinds.Set // of objects, since they were read last
	problems []kinds.Problem
	world    *World
	worlds   uint64 // that were made
	judged   *Input // that world is of
	judgedOf *Objects
	verdict  Verdict
	node     Node

	beat    *heartbeat.Beat
	follows *heartbeat.Beat // of what reads the gateway's pulse
	heard   pulse.Sight     // the last sight
	deaf    bool            // what reads the pulse has stalled: heard may be old

	mu      sync.Mutex // guards sights
	sights  []pulse.Sight
	seen    wake.Flag
	changed wake.Flag
	current atomic.Pointer[published]
}

// published is what a View is made of.
type published struct {
	view  *view.View // without VIPs
	world *World     // nil: there are none
}

// New returns a Loop. It reads what the process before left.
func New(c Config) *Loop {
	l := &Loop{config: c, started: time.Now(), seen: wake.NewFlag(), changed: wake.NewFlag(),
		watch: Watch{Hold: c.Hold}, set: &kinds.Set{}, told: map[kinds.Problem]bool{},
		beat:    c.Beats.Add("announcement loop", heartbeat.DefaultBounds),
		follows: c.Beats.Add("reader of the gateway's pulse", heartbeat.DefaultBounds),
		states:  map[netip.Addr]string{}}
	var err error
	if l.saved, err = load(c.State); err != nil {
		c.Log.Warn("what the process before announced is not known", "error", err)
	}
	l.watch.Restore(l.saved.Hold)
	if l.resumed = len(l.saved.VIPs) > 0; l.resumed {
		l.watch.Resume(l.saved.VIPs, l.started)
		l.watch.interfaces = l.saved.Interfaces
	}
	l.reader.Resume(l.saved.Pools)
	l.publish("the first objects")
	return l
}

// View returns what is announced now, and the loops of this process that have stalled. Any
// goroutine may call it.
func (l *Loop) View() *view.View {
	p := l.current.Load()
	v := *p.view
	v.VIPs = []view.VIP{}
	if p.world != nil {
		for _, s := range p.world.VIPs {
			line := view.VIP{Address: s.VIP, Services: s.Services, To: l.lines(s.VIP)}
			if s.Pool != nil {
				line.Pool = s.Pool.Name
			}
			v.VIPs = append(v.VIPs, line)
		}
	}
	if stalled := l.config.Beats.Unready(); len(stalled) > 0 {
		v.Stalled = stalled
	}
	return &v
}

// lines says to whom a VIP is announced, by all speakers.
func (l *Loop) lines(vip netip.Addr) []view.Line {
	list := []view.Line{}
	for _, s := range l.config.Speakers {
		list = append(list, s.Lines(vip)...)
	}
	return list
}

// Run announces until ctx is done, and lastWord longer.
func (l *Loop) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	ended := ctx.Done()
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	running.Go(func() { l.config.Source.Run(ctx, l.changed.Raise) })
	running.Go(func() {
		pulse.Follow(ctx, l.config.Gateway, func(s pulse.Sight) {
			l.mu.Lock()
			l.sights = append(l.sights, s)
			l.mu.Unlock()
			l.seen.Raise()
		}, l.follows)
	})
	reports := wake.NewFlag()
	for _, s := range l.config.Speakers {
		running.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case <-s.Changed():
					reports.Raise()
				}
			}
		})
	}
	tick := time.NewTicker(again)
	defer tick.Stop()
	alarm := time.NewTimer(0)
	defer alarm.Stop()
	read := true
	var gathered <-chan time.Time // nil while no object has changed
	var last <-chan time.Time     // nil until this process is told to end
	var rested <-chan time.Time   // nil while nothing waits for the rest to end
	defer l.beat.Rest()
	for {
		l.beat.Beat()
		begin := time.Now()
		if next := l.step(begin, read); !next.IsZero() {
			alarm.Reset(time.Until(next))
		}
		end := time.Now()
		rest := end.Add(min(restFactor*end.Sub(begin), maxRest))
		// wait reports whether a step has to wait, and has it made later.
		wait := func() bool {
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
				ended, last, waiting = nil, time.After(lastWord), true
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
				waiting = wait()
			case <-l.seen:
				waiting = !l.urgent() && wait()
			case <-reports:
				l.retell = true
				waiting = wait()
			case <-rested:
				rested = nil
			case <-tick.C:
				l.retell = l.retell || len(l.set.Layer2) > 0 // who has a VIP follows from the time, too
			case <-alarm.C:
			}
		}
	}
}

// urgent reports whether something was seen of the gateway that concerns all VIPs.
func (l *Loop) urgent() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.watch.sight
	for _, s := range l.sights {
		if s.Lost != before.Lost || (s.State == nil) != (before.State == nil) || s.State != nil &&
			(s.State.Phase != before.State.Phase || !slices.Equal(s.State.Failures, before.State.Failures)) {
			return true
		}
		before = s
	}
	return false
}

// step judges and has the speakers announce. It returns when it must be called again at the latest;
// zero: when something changes.
func (l *Loop) step(now time.Time, read bool) (next time.Time) {
	l.mu.Lock()
	sights := l.sights
	l.sights = nil
	l.mu.Unlock()
	for _, s := range sights {
		l.heard = s
		l.watch.See(s, now)
	}
	l.listen(now)
	if waiting := l.look(read); waiting != "" {
		l.publish(waiting)
		return time.Time{}
	}
	l.node, l.verdict = l.objects.Node, l.watch.Verdict(now)
	// Routes of a process before stay with peers that keep them, until this one has told all. Where
	// there are none, sessions begin meanwhile: GoBGP takes 2 s for that.
	if !l.applied && !l.watch.Heard(now) {
		if !l.resumed {
			l.worlds++
			l.world = &World{Node: l.node, Gateway: No, Interfaces: l.watch.interfaces, Set: l.set, Number: l.worlds}
			for _, s := range l.config.Speakers {
				s.Apply(l.world)
			}
		}
		l.saveHold(now)
		l.publish(cmp.Or(l.verdict.Why, "the gateway is not heard yet"))
		return l.verdict.Until
	}
	next = l.judge(now)
	for _, s := range l.config.Speakers {
		s.Apply(l.world)
	}
	l.applied = true
	l.save(now, false)
	l.publish("")
	return next
}

// listen has the gateway count as lost while what reads its pulse has stalled: the gateway may have
// ended, and nobody would withdraw its routes.
func (l *Loop) listen(now time.Time) {
	deaf := l.follows.Late()
	if deaf == l.deaf {
		return
	}
	l.deaf = deaf
	if s := l.heard; !deaf {
		l.watch.See(s, now)
	} else if s.Lost == "" {
		s.Lost, s.At = "this announcer does not hear the gateway: the reader of its pulse has stalled", now
		l.watch.See(s, now)
	}
}

// judge makes the World of now: from the one before, where nothing but single VIPs can have
// changed. It returns when it changes though nothing is seen; zero: never.
func (l *Loop) judge(now time.Time) (next time.Time) {
	in := Input{Node: l.node, Verdict: l.verdict, Set: l.set, Services: l.objects.Services}
	var leaves, settles time.Time
	in.Leaves, leaves = l.leaves(now)
	w := &World{Node: l.node, Gateway: l.verdict.Grade, Serves: l.verdict.Serves(),
		Interfaces: l.watch.interfaces, Set: l.set}
	changed, all := l.watch.Changes()
	if before := l.judged; before != nil && !all && in.alike(before) {
		if l.objects != l.judgedOf {
			changed = append(changed, in.relabelled(before.Services)...)
		}
		var differ []netip.Addr
		in.Impaired, settles, differ = l.impairments.SeeSome(l.verdict.VIPs, changed, now)
		w.Changed, w.Since = append(changed, differ...), l.world.Number
		w.VIPs = JudgeSome(&in, l.world.VIPs, w.Changed)
		l.unsaved = l.unsaved || len(w.Changed) > 0
	} else {
		in.Impaired, settles = l.impairments.See(l.verdict.VIPs, l.node.NetworkUnavailable, now)
		w.VIPs = Judge(&in)
		l.unsaved, l.retell = true, true
	}
	l.worlds++
	w.Number = l.worlds
	l.world, l.judged, l.judgedOf = w, &in, l.objects
	return earliest(leaves, l.verdict.Until, settles)
}

// earliest returns the first of times that are not zero.
func earliest(times ...time.Time) (first time.Time) {
	for _, t := range times {
		if first.IsZero() || !t.IsZero() && t.Before(first) {
			first = t
		}
	}
	return first
}

// look takes the objects, and reads them if read, and when they are known for the first time. It
// returns what is waited for before that. While a source waits again, later, what was known stays
// in force: the routes of a gateway that fails meanwhile must go.
func (l *Loop) look(read bool) (waiting string) {
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
		l.said = !reflect.DeepEqual(l.set.Said(), l.saved.Pools)
	}
	l.objects, l.uids = objects, objects.UIDs
	return ""
}

// leaves reports whether the node, which keeps traffic away, still announces that routes leave, and
// until when.
func (l *Loop) leaves(now time.Time) (bool, time.Time) {
	if grade, _ := l.node.grade(); grade != No {
		l.leaving = time.Time{}
		return false, time.Time{}
	}
	if l.leaving.IsZero() {
		l.leaving = now
		if !l.applied && !l.resumed {
			l.leaving = now.Add(-l.config.DrainDelay) // nobody was told anything
		}
	}
	end := l.leaving.Add(l.config.DrainDelay)
	if !now.Before(end) {
		return false, time.Time{}
	}
	return true, end
}

// saveEvery is how often VIPs that changed are saved. A process that starts waits for what the
// gateway says before it announces any, and must know only whether the one before announced some.
const saveEvery = 10 * time.Second

// save leaves for the next process what is announced, what pools say, and how much of the hold is
// used. VIPs are saved at once where there were none, or are none, or if last.
func (l *Loop) save(now time.Time, last bool) {
	some := slices.ContainsFunc(l.world.VIPs, func(s *Standing) bool { return s.Grade != No })
	hold := l.watch.Used(now)
	due := l.unsaved && (last || now.Sub(l.savedAt) >= saveEvery) ||
		!slices.Equal(l.watch.interfaces, l.saved.Interfaces)
	if !l.said && !due && hold == l.saved.Hold && some == (len(l.saved.VIPs) > 0) {
		return
	}
	var vips []pulse.VIP
	for i, s := range l.world.VIPs {
		if s.Grade != No {
			vips = append(vips, l.verdict.VIPs[i])
		}
	}
	same := slices.Equal(l.watch.interfaces, l.saved.Interfaces) &&
		slices.EqualFunc(vips, l.saved.VIPs, func(a, b pulse.VIP) bool { return a.Equal(&b) })
	if !l.said && hold == l.saved.Hold && same ||
		l.store(saved{VIPs: vips, Interfaces: l.watch.interfaces, Pools: l.set.Said(), Hold: hold}) {
		l.said, l.unsaved, l.savedAt = false, false, now
	}
}

// publish makes the View. waiting is what is waited for before anything is announced.
func (l *Loop) publish(waiting string) {
	v := &view.View{Node: l.node.Name, PID: os.Getpid(), Version: l.config.Version, StartedAt: l.started,
		Waiting: waiting, Gateway: l.verdict.Grade.String(), Why: l.verdict.Why,
		Peers: []view.Peer{}, Problems: []view.Problem{}}
	if !l.verdict.Until.IsZero() {
		v.Until = &l.verdict.Until
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
	l.tell(problems)
	l.tellServices(v)
	l.log(v)
	l.current.Store(&published{v, l.world})
}

// tell reports each problem once, and again after it was gone.
func (l *Loop) tell(problems []kinds.Problem) {
	told := map[kinds.Problem]bool{}
	for _, p := range problems {
		if told[p] = true; !l.told[p] {
			l.config.Log.Warn("an object is not as it should be", "object", p.About.String(), "reason", p.Reason,
				"problem", p.Note)
			if l.config.Tell != nil {
				l.config.Tell(p, false)
			}
		}
	}
	l.told = told
}

// tellServices reports for each Service when routes to its VIP come and go. While the gateway as a
// whole is not announced, the log, the status and metrics say so, and not an Event of each Service.
func (l *Loop) tellServices(v *view.View) {
	if l.config.Tell == nil || v.Waiting != "" || v.Gateway == No.String() {
		l.retell = true
		return
	}
	if !l.retell {
		for _, vip := range l.world.Changed {
			if s := l.world.Find(vip); s != nil {
				l.tellVIP(v.Node, s)
			} else {
				delete(l.states, vip)
			}
		}
		return
	}
	l.retell = false
	for vip := range l.states {
		if l.world.Find(vip) == nil {
			delete(l.states, vip)
		}
	}
	for _, s := range l.world.VIPs {
		l.tellVIP(v.Node, s)
	}
}

// tellVIP reports to the Services of a VIP what is announced of it, if that has changed.
func (l *Loop) tellVIP(node string, vip *Standing) {
	line := bestLine(l.lines(vip.VIP))
	before, known := l.states[vip.VIP]
	if line.State == view.Waiting && known {
		return // a session that flaps is the peer's story
	}
	l.states[vip.VIP] = line.State
	// Who has a VIP at layer 2 tells, and not those that do not.
	if line.State == before || line.State == view.Waiting || line.State == view.Standby {
		return
	}
	p := kinds.Problem{Reason: "Announced", Note: fmt.Sprintf("node %s announces %v as %s to %s", node, vip.VIP,
		line.What, line.To)}
	if line.State == view.Not {
		p = kinds.Problem{Reason: "NotAnnounced", Note: fmt.Sprintf("node %s does not announce %v: %s", node, vip.VIP,
			line.Why)}
	} else if line.State == view.LastResort {
		p.Reason, p.Note = "LastResort", p.Note+", as the last resort: "+line.Why
	} else if line.State == view.Leaving {
		p.Reason, p.Note = "Leaving", p.Note+", as leaving: "+line.Why
	}
	for _, service := range vip.Services {
		namespace, name, _ := strings.Cut(service, "/")
		p.About = kinds.Ref{APIVersion: "v1", Kind: "Service", Namespace: namespace, Name: name, UID: l.uids[service]}
		l.config.Tell(p, line.State != view.Not)
	}
}

// log writes a line when the gateway's standing changes.
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
	l.config.Log.Warn("the gateway's standing has changed", attributes...)
}
