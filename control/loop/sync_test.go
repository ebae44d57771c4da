package loop_test

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/controltest"
	"sluice.dev/sluice/control/loop"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/tracker"
	"sluice.dev/sluice/nat/header"
)

// ears hears what the loop tells.
type ears struct {
	mu     sync.Mutex
	syncs  []loop.Sync
	checks [][]compiler.HealthCheck
	nodes  []objects.NodeInfo
}

func (e *ears) Synced(s *loop.Sync) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.syncs = append(e.syncs, *s)
}

func (e *ears) SetHealthChecks(c []compiler.HealthCheck) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.checks = append(e.checks, c)
}

func (e *ears) nodeChanged(n objects.NodeInfo) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.nodes = append(e.nodes, n)
}

// take returns what was heard since it was asked last.
func (e *ears) take() (syncs []loop.Sync, checks [][]compiler.HealthCheck, nodes []objects.NodeInfo) {
	e.mu.Lock()
	defer e.mu.Unlock()
	syncs, checks, nodes = e.syncs, e.checks, e.nodes
	e.syncs, e.checks, e.nodes = nil, nil, nil
	return syncs, checks, nodes
}

func newHearing(t *testing.T) (*rig, *ears) {
	e := &ears{}
	r := newRig(t, func(_ *rig, c *loop.Config) { c.Observer, c.HealthChecks, c.NodeChanged = e, e, e.nodeChanged })
	return r, e
}

func triggered(i, version int, at time.Time) *discoveryv1.EndpointSlice {
	s := controltest.Slice(i, version)
	s.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: at.Format(time.RFC3339Nano)}
	return s
}

func TestObserverGetsEachPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from := objects.Source{Kind: "test"}
		before := time.Now().Add(-time.Hour)
		r, e := newHearing(t)
		if syncs, checks, _ := e.take(); len(syncs) != 1 || !syncs[0].Full || len(checks) != 1 || len(checks[0]) != 0 {
			t.Fatalf("after the start %+v, %+v", syncs, checks)
		}
		time.Sleep(time.Second)
		r.tracker.Upsert(from, triggered(8, 0, before)) // at once, after quiet
		synctest.Wait()
		if syncs, _, _ := e.take(); len(syncs) != 1 || syncs[0].Started != syncs[0].Queued {
			t.Errorf("after quiet: %+v", syncs)
		}
		queued := time.Now()
		var b tracker.Batch
		b.Upsert(from, controltest.Service(1))
		b.Upsert(from, triggered(1, 0, queued.Add(-3*time.Millisecond)))
		b.Upsert(from, triggered(2, 0, before)) // from before we ran
		bad := controltest.Slice(3, 0)
		bad.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: "yesterday"}
		b.Upsert(from, bad)
		r.tracker.Apply(&b)
		time.Sleep(500 * time.Microsecond) // the loop rests for a millisecond: both meet in one pass
		r.tracker.Upsert(from, triggered(1, 1, queued.Add(time.Microsecond)))
		r.settle()
		syncs, _, _ := e.take()
		if len(syncs) != 1 {
			t.Fatalf("%d passes: %+v", len(syncs), syncs)
		}
		s := syncs[0]
		want := []time.Time{queued.Add(-3 * time.Millisecond), queued.Add(time.Microsecond)}
		if s.Full || s.Services != 1 || s.EndpointSlices != 3 || !s.Queued.Equal(queued) ||
			s.Started.Sub(queued) != time.Millisecond || !slices.EqualFunc(s.Triggers, want, time.Time.Equal) {
			t.Errorf("%+v, want triggers %v", s, want)
		}

		r.tracker.Upsert(from, triggered(1, 1, time.Now())) // the annotation alone
		r.tracker.Delete(from, objects.ObjectID{Kind: objects.KindEndpointSlice, Namespace: "bench",
			Name: "service-9-x"})
		r.settle()
		if syncs, _, _ := e.take(); len(syncs) != 0 {
			t.Errorf("nothing changed, and a pass is reported: %+v", syncs)
		}
		var gone tracker.Batch // in one: the loop, which is quiet, would take the first of two at once
		gone.Upsert(from, triggered(1, 2, time.Now()))
		gone.Delete(from, objects.ObjectID{Kind: objects.KindEndpointSlice, Namespace: "bench", Name: "service-1-x"})
		r.tracker.Apply(&gone)
		r.settle()
		if syncs, _, _ := e.take(); len(syncs) != 1 || len(syncs[0].Triggers) != 0 {
			t.Errorf("a slice that went has triggers: %+v", syncs)
		}
	})
}

// TestObserverGetsPassOnceSteered: a pass that the kernel program refuses is not
// complete, and what comes meanwhile belongs to it.
func TestObserverGetsPassOnceSteered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, e := newHearing(t)
		e.take()
		refusal := errors.New("the map is full")
		r.kernel.Refuse.Store(&refusal)
		first := time.Now()
		r.add(1)
		r.add(2)
		if syncs, _, _ := e.take(); len(syncs) != 0 {
			t.Fatalf("reported while it is refused: %+v", syncs)
		}
		r.kernel.Refuse.Store(nil)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		syncs, _, _ := e.take()
		if len(syncs) != 1 || syncs[0].Services != 2 || syncs[0].EndpointSlices != 2 || !syncs[0].Queued.Equal(first) ||
			syncs[0].Took < 900*time.Millisecond {
			t.Errorf("%+v", syncs)
		}
		if err := r.Configure(t.Context(), func(c *compiler.Config) { c.SelectKey[0]++ }); err != nil {
			t.Fatal(err)
		}
		if syncs, _, _ := e.take(); len(syncs) != 1 || !syncs[0].Full {
			t.Errorf("after a new configuration %+v", syncs)
		}
	})
}

func TestTriggersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, e := newHearing(t)
		e.take()
		var b tracker.Batch
		for i := range 1200 {
			b.Upsert(objects.Source{Kind: "test"}, triggered(i, 0, time.Now().Add(time.Duration(i+1))))
		}
		r.tracker.Apply(&b)
		r.settle()
		if syncs, _, _ := e.take(); len(syncs) != 1 || syncs[0].EndpointSlices != 1200 ||
			len(syncs[0].Triggers) != 1000 {
			t.Errorf("%d passes, %d triggers", len(syncs), len(syncs[0].Triggers))
		}
	})
}

func TestLoopPublishesItsNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from := objects.Source{Kind: "test"}
		r, e := newHearing(t)
		r.tracker.Upsert(from, controltest.Node("gw-2", "z2"))
		r.settle()
		r.tracker.Upsert(from, controltest.Node("gw-1", "z1"))
		r.settle()
		r.tracker.Upsert(from, controltest.Node("gw-1", "z1"))
		r.settle()
		r.tracker.Delete(from, objects.ObjectID{Kind: objects.KindNode, Name: "gw-1"})
		r.settle()
		_, _, nodes := e.take()
		if len(nodes) != 2 || nodes[0].Zone != "z1" || len(nodes[0].Addresses) != 3 || nodes[1].Known {
			t.Errorf("%+v", nodes)
		}
	})
}

func TestLoopPublishesHealthChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from := objects.Source{Kind: "test"}
		r, e := newHearing(t)
		heard := func(what string, want ...compiler.HealthCheck) {
			t.Helper()
			r.settle()
			if _, checks, _ := e.take(); len(checks) != 1 || !slices.Equal(checks[0], want) {
				t.Errorf("%s: %+v, want once %+v", what, checks, want)
			}
		}
		one := compiler.HealthCheck{Namespace: "bench", Name: "service-1", Port: 31000, V4: true, Local4: 1}
		two := compiler.HealthCheck{Namespace: "bench", Name: "service-2", Port: 30999, V4: true, Local4: 2}
		heard("at the start")
		s, slice := controltest.LocalService(1, 31000, "gw-1", "gw-2")
		// The loop may look between the two: a Service without endpoints would have a check of its
		// own.
		r.tracker.Upsert(from, slice)
		r.tracker.Upsert(from, s)
		heard("the first", one)
		s2, slice2 := controltest.LocalService(2, 30999, "gw-1", "gw-1")
		r.tracker.Upsert(from, slice2)
		r.tracker.Upsert(from, s2)
		heard("in order of port", two, one)
		r.add(3)
		if _, checks, _ := e.take(); len(checks) != 0 {
			t.Errorf("reported for a change that is none: %+v", checks)
		}
		if _, err := r.Drain(t.Context(), compiler.Drain{Addr: addr4(10, 9, 2, 1)}); err != nil {
			t.Fatal(err)
		}
		two.Local4 = 1
		heard("one is drained", two, one)
		r.remove(2)
		heard("a Service went", one)
		if err := r.Configure(t.Context(), func(c *compiler.Config) { c.NodeName = "gw-3" }); err != nil {
			t.Fatal(err)
		}
		one.Local4 = 0
		heard("this is another node", one)
	})
}

func addr4(a, b, c, d byte) header.Addr { return header.AddrFrom4([4]byte{a, b, c, d}) }

// TestProblemsFollowEachChange: the loop lists problems anew only where they may
// differ, so each way in which they can is tried through it.
func TestProblemsFollowEachChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := objects.Source{Kind: "test", Path: "a", Document: 1}, objects.Source{Kind: "test", Path: "b"}
		id := objects.ObjectID{Kind: objects.KindService, Namespace: "bench", Name: "service-1"}
		r := newRig(t, nil)
		problems := func(what string, want ...string) {
			t.Helper()
			r.settle()
			var got []string
			for _, p := range r.Status().Problems {
				got = append(got, p.Source.String()+" "+p.Field)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: %q, want %q", what, got, want)
			}
		}
		bad := controltest.Service(1)
		bad.Status.LoadBalancer.Ingress[0].IP = "127.0.0.1"
		const field = "status.loadBalancer.ingress"
		r.tracker.Upsert(a, controltest.Service(1))
		problems("it is good")
		r.tracker.Upsert(a, bad)
		problems("a problem of compiling", "a#1 "+field)
		moved := a
		moved.Document = 2
		r.tracker.Upsert(moved, bad)
		problems("its object moved in the file", "a#2 "+field)
		r.tracker.Upsert(b, bad)
		problems("it is at two places", "a#2 "+field, "b ")
		r.tracker.Delete(a, id)
		problems("one of them is left", "b "+field)
		var batch tracker.Batch
		batch.Malformed(b, id, "spec", "is cut off")
		r.tracker.Apply(&batch)
		problems("its newest version is none", "b spec", "b "+field)
		r.tracker.Upsert(b, controltest.Service(1))
		problems("it is good again")
		batch = tracker.Batch{}
		batch.Report(b, []objects.Problem{{Source: b, Message: "is no YAML", Severity: objects.Refused}})
		r.tracker.Apply(&batch)
		problems("of the place", "b ")
		batch = tracker.Batch{}
		batch.Report(b, nil)
		r.tracker.Apply(&batch)
		problems("no more")
	})
}
