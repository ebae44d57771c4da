package tracker

import (
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/internal/wake"
)

// Tracker collects the objects that sources read, and returns what changed since the last call of
// Changes. It is safe for concurrent use.
//
// Three rules:
//   - Changes that cancel out, and updates that change no field in use, are not returned.
//   - If the new version of an object is malformed, its last good version stays in use.
//   - An object that is read at two places is a Problem. The version of the place that sorts first
//     is used; when that is deleted, the other one is.
type Tracker struct {
	mu           sync.Mutex
	objects      map[objects.ObjectID]*tracked
	dirty        map[objects.ObjectID]waitingChange
	withProblems map[objects.ObjectID]bool            // objects without exactly one good version
	problemEdits uint64                               // counts changes that may change what Locate returns
	reports      map[objects.Source][]objects.Problem // of places, not of objects
	read         uint64                               // counts batches taken in
	wake         wake.Flag

	// For ChangesWithin: the costs of a Service's objects, and start-time fair queueing of the
	// namespaces that wait. tags are the start tags of their next Services, virtual is the tag of
	// the last Service returned.
	costs   map[serviceKey]cost
	nodes   int // Nodes with a good version
	tags    map[string]uint64
	virtual uint64

	// For measurements, see triggers.go.
	started  time.Time
	queued   time.Time // when the oldest of dirty was read
	waiting  Waiting
	triggers []trigger
}

// tracked is the Tracker's state of one object.
type tracked struct {
	versions []version // sorted by source; empty only if the object is deleted and Changes has yet to return that
	given    any       // what Changes returned last; nil if nothing
}

// version is an object as one place has it.
type version struct {
	source objects.Source
	good   any                    // *objects.Service, Slice or Node; nil if there never was a good one
	bad    []objects.FieldProblem // why the newest version is not used
	read   uint64
}

// New returns an empty Tracker.
func New() *Tracker {
	return &Tracker{
		objects:      map[objects.ObjectID]*tracked{},
		dirty:        map[objects.ObjectID]waitingChange{},
		costs:        map[serviceKey]cost{},
		tags:         map[string]uint64{},
		reports:      map[objects.Source][]objects.Problem{},
		withProblems: map[objects.ObjectID]bool{},
		wake:         wake.NewFlag(),
		started:      time.Now(),
	}
}

// Wake returns a channel that receives a value when there may be changes.
func (t *Tracker) Wake() <-chan struct{} { return t.wake }

// Batch is a group of changes that must take effect together, such as all changes of one file. The
// zero Batch is empty.
type Batch struct{ ops []operation }

type operation struct {
	source  objects.Source
	id      objects.ObjectID
	object  any // nil deletes
	bad     []objects.FieldProblem
	report  []objects.Problem
	reports bool
}

// Upsert adds or replaces an object: a *corev1.Service, *discoveryv1.EndpointSlice or *corev1.Node.
// It keeps copies only.
func (b *Batch) Upsert(from objects.Source, object runtime.Object) { b.UpsertNoted(from, object, nil) }

// UpsertNoted is Upsert with further problems of a Service, which its source has found.
func (b *Batch) UpsertNoted(from objects.Source, object runtime.Object, further []objects.FieldProblem) {
	op := operation{source: from}
	switch o := object.(type) {
	case *corev1.Service:
		s, bad := objects.TrimService(o)
		s.Problems = objects.LimitProblems(append(s.Problems, further...))
		op.id, op.object, op.bad = s.ID, s, objects.LimitProblems(bad)
	case *discoveryv1.EndpointSlice:
		s, bad := objects.TrimSlice(o)
		s.Problems = objects.LimitProblems(s.Problems)
		op.id, op.object, op.bad = s.ID, s, objects.LimitProblems(bad)
	case *corev1.Node:
		n, bad := objects.TrimNode(o)
		op.id, op.object, op.bad = n.ID, n, objects.LimitProblems(bad)
	default:
		panic(fmt.Sprintf("tracker: %T given to Batch.Upsert; give it a Service, EndpointSlice or Node", object))
	}
	b.ops = append(b.ops, op)
}

// Malformed records that the newest version of an object cannot be decoded. Its last good version
// stays in use.
func (b *Batch) Malformed(from objects.Source, id objects.ObjectID, field, message string) {
	id = objects.MakeObjectID(id.Kind, id.Namespace, id.Name)
	b.ops = append(b.ops, operation{source: from, id: id, bad: []objects.FieldProblem{{Field: objects.ClipError(field),
		Message: objects.ClipError(message), Severity: objects.Refused}}})
}

// Delete records that a place no longer has the object.
func (b *Batch) Delete(from objects.Source, id objects.ObjectID) {
	b.ops = append(b.ops, operation{source: from, id: objects.MakeObjectID(id.Kind, id.Namespace, id.Name)})
}

// Report replaces the problems with a place itself, such as a file that is not YAML.
func (b *Batch) Report(from objects.Source, problems []objects.Problem) {
	b.ops = append(b.ops, operation{source: from, report: problems, reports: true})
}

// Upsert applies a batch with one Upsert.
func (t *Tracker) Upsert(from objects.Source, object runtime.Object) {
	var b Batch
	b.Upsert(from, object)
	t.Apply(&b)
}

// Delete applies a batch with one Delete.
func (t *Tracker) Delete(from objects.Source, id objects.ObjectID) {
	var b Batch
	b.Delete(from, id)
	t.Apply(&b)
}

// Apply applies all changes of a batch atomically.
func (t *Tracker) Apply(b *Batch) {
	t.mu.Lock()
	t.read++
	together := t.together(b)
	for i := range b.ops {
		t.apply(&b.ops[i], together)
	}
	t.mu.Unlock()
	t.wake.Raise()
}

func (t *Tracker) apply(op *operation, together bool) {
	if op.reports {
		t.problemEdits++
		place := op.source.Place()
		delete(t.reports, place)
		if len(op.report) > 0 {
			t.reports[place] = slices.Clone(op.report)
		}
		return
	}
	o := t.objects[op.id]
	if o == nil {
		if op.object == nil && op.bad == nil {
			return
		}
		o = &tracked{}
		t.objects[op.id] = o
	}
	t.note(op.id, together)
	t.addCost(o.good(), -1)
	defer func() { t.addCost(o.good(), 1) }()
	at, found := slices.BinarySearchFunc(o.versions, op.source, func(v version, s objects.Source) int {
		return objects.CompareSources(v.source.Place(), s.Place())
	})
	before := o.place()
	defer func() { t.noteProblems(op.id, o, before) }()
	switch {
	case op.object == nil && op.bad == nil:
		if found {
			o.versions = slices.Delete(o.versions, at, at+1)
		}
		return
	case !found:
		o.versions = slices.Insert(o.versions, at, version{})
	}
	v := &o.versions[at]
	v.source, v.bad, v.read = op.source, op.bad, t.read
	if len(op.bad) == 0 {
		t.noteTrigger(v.good, op.object)
		v.good = op.object
	}
}

// winner returns the version in use: the good one of the first place that has one; nil if there is
// none.
func (o *tracked) winner() *version {
	for i := range o.versions {
		if o.versions[i].good != nil {
			return &o.versions[i]
		}
	}
	return nil
}

// Changes returns the objects that differ from their versions at the last call. Read is the number
// of batches applied so far.
func (t *Tracker) Changes() *objects.Changes {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.takeAll()
}

// takeAll returns all changes. mu must be held.
func (t *Tracker) takeAll() *objects.Changes {
	ch := &objects.Changes{Read: t.read, Queued: t.queued}
	for id := range t.dirty {
		t.take(ch, id)
	}
	ch.Sort()
	t.forgetDirty()
	ch.Triggers = t.takeTriggers(ch)
	return ch
}

// take adds an object to the changes if it differs from the version that was returned last. mu must
// be held.
func (t *Tracker) take(ch *objects.Changes, id objects.ObjectID) {
	o := t.objects[id]
	now := o.good()
	if !objects.Equal(o.given, now) {
		ch.Add(id, now)
		o.given = now
	}
	if len(o.versions) == 0 {
		delete(t.objects, id)
	}
}

// Read returns the number of batches applied.
func (t *Tracker) Read() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.read
}

// State returns all that Changes has returned so far, as changes from the empty state.
func (t *Tracker) State() *objects.State {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := &objects.State{All: objects.Changes{Read: t.read}}
	for id, o := range t.objects {
		if o.given != nil {
			s.All.Add(id, o.given)
		}
	}
	s.All.Sort()
	return s
}

// Node returns the NodeInfo of a Node, which may be newer than the compiled one. It may be called
// from any goroutine.
func (t *Tracker) Node(name string) objects.NodeInfo {
	t.mu.Lock()
	defer t.mu.Unlock()
	if o := t.objects[objects.MakeObjectID(objects.KindNode, "", name)]; o != nil {
		if w := o.winner(); w != nil {
			return w.good.(*objects.Node).Info()
		}
	}
	return objects.NodeInfo{}
}

// Some returns up to n objects as Changes returned them, chosen at random by the iteration order of
// maps.
func (t *Tracker) Some(n int) (objects []any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, o := range t.objects {
		if n--; n < 0 {
			break
		}
		if o.given != nil {
			objects = append(objects, o.given)
		}
	}
	return objects
}

// HandedOut reports whether an object is the one that Changes returned last.
func (t *Tracker) HandedOut(id objects.ObjectID, object any) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := t.objects[id]
	return o != nil && o.given == object
}
