package k8s_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	eventsv1 "k8s.io/api/events/v1"

	"sluice.dev/sluice/control/k8s"
	"sluice.dev/sluice/control/k8s/k8stest"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/tracker"
	"sluice.dev/sluice/serve/health"
)

// runEvents writes Events of a loop's problems until the test ends.
func runEvents(t *testing.T, w *world, problems k8s.Problems) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); w.watcher.RunEvents(ctx, problems) }()
	t.Cleanup(func() { cancel(); <-done })
}

// written counts the Events with a reason about an object, and checks what all must have.
func written(t *testing.T, s *k8stest.Server, reason, name string) (n int) {
	t.Helper()
	events, _ := s.Events()
	for _, e := range events {
		if e.Regarding.Kind+"/"+e.Regarding.Name != name || e.Reason != reason {
			continue
		}
		n++
		check(t, e)
	}
	return n
}

func check(t *testing.T, e *eventsv1.Event) {
	t.Helper()
	uid := "uid-" + e.Regarding.Kind + "-shop-" + e.Regarding.Name
	if e.Regarding.Kind == "Node" {
		uid = e.Regarding.Name
	}
	if e.Type != "Warning" || e.ReportingController != "sluice.dev/gateway" || e.ReportingInstance != nodeName ||
		e.Action == "" || e.Note == "" || e.EventTime.IsZero() || string(e.Regarding.UID) != uid {
		t.Errorf("Event %+v lacks something", e)
	}
}

func TestEventsAreWrittenOnce(t *testing.T) {
	t.Parallel()
	s := k8stest.Start(t)
	rival := service("rival", 80)
	s.Set(service("a", 80), rival)
	w := start(t, s)
	loop, _ := w.loop(t)
	<-loop.Ready()
	runEvents(t, w, loop.Problems)
	eventually(t, "an Event about the conflict",
		func() bool { return written(t, s, "FrontendConflict", "Service/rival") == 1 })

	// The same again, and changes elsewhere, are no news. A bad object is.
	bad := service("bad", 81)
	bad.Spec.Ports[0].Protocol = "HTTP"
	s.Set(service("rival", 80), service("c", 83), bad)
	eventually(t, "an Event about the bad object",
		func() bool { return written(t, s, "InvalidObject", "Service/bad") == 1 })
	s.Delete(node(nodeName))
	eventually(t, "an Event about the missing Node",
		func() bool { return written(t, s, "ServedDifferently", "Node/"+nodeName) == 1 })
	if n := written(t, s, "FrontendConflict", "Service/rival"); n != 1 {
		t.Errorf("%d Events about one conflict", n)
	}

	// A Problem that returns is one more of its series.
	s.Delete(service("a", 80))
	eventually(t, "no conflict", func() bool {
		list, _ := loop.Problems()
		return !strings.Contains(textOf(list),
			"rival")
	})
	quietRounds(t, w, s)
	s.Set(service("a", 80))
	eventually(t, "a series", func() bool { _, patches := s.Events(); return patches == 1 })
	if n := written(t, s, "FrontendConflict", "Service/rival"); n != 1 {
		t.Errorf("%d Events about a conflict that returned, want one series", n)
	}
}

// quietRounds waits until the writer has looked at the problems as they are: it takes
// them in order, so it has when it tells of another.
func quietRounds(t *testing.T, w *world, s *k8stest.Server) {
	t.Helper()
	bad := slice("a", "bad-slice", "10.0.0.1")
	bad.AddressType = "IPX"
	s.Set(bad)
	eventually(t, "an Event about a slice",
		func() bool { return written(t, s, "InvalidObject", "EndpointSlice/bad-slice") == 1 })
}

// An API server that takes no Events stops nothing, and gets them later.
func TestEventsRefused(t *testing.T) {
	t.Parallel()
	s := k8stest.Start(t)
	s.Allow = func(verb, _, resource string) bool { return resource != "events" }
	s.Set(service("a", 80), service("rival", 80))
	w := start(t, s)
	loop, _ := w.loop(t)
	<-loop.Ready()
	runEvents(t, w, loop.Problems)
	eventually(t, "an attempt", func() bool {
		return slices.Contains(s.Requests(), k8stest.Request{Verb: "create", Group: "events.k8s.io",
			Resource: "events"})
	})
	s.Set(service("c", 83))
	w.settle(t)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := loop.Wait(ctx); err != nil {
		t.Errorf("the loop is held up: %v", err)
	}
	if events, _ := s.Events(); len(events) != 0 {
		t.Errorf("%d Events were taken", len(events))
	}
}

// A refused Event, as in a namespace that is being deleted, holds up no other.
func TestRefusedEventDelaysNoOther(t *testing.T) {
	t.Parallel()
	s := k8stest.Start(t)
	s.Refuse = func(e *eventsv1.Event) string {
		if e.Regarding.Name == "a-rival" {
			return "unable to create new content in namespace shop because it is being terminated"
		}
		return ""
	}
	s.Set(service("a", 80), service("a-rival", 80), service("rival", 80))
	w := start(t, s)
	loop, _ := w.loop(t)
	<-loop.Ready()
	runEvents(t, w, loop.Problems)
	eventually(t, "an Event after the one that is refused",
		func() bool { return written(t, s, "FrontendConflict", "Service/rival") == 1 })
	if n := written(t, s, "FrontendConflict", "Service/a-rival"); n != 0 {
		t.Errorf("%d Events were taken that are refused", n)
	}
}

// An object's name may be as long as an Event's, and what is cut off may begin anywhere.
func TestEventOfLongName(t *testing.T) {
	t.Parallel()
	s := k8stest.Start(t)
	bad := slice("a", strings.Repeat("a", 235)+"."+strings.Repeat("b", 17), "10.0.0.1")
	bad.AddressType = "IPX"
	s.Set(service("a", 80), bad)
	w := start(t, s)
	loop, _ := w.loop(t)
	<-loop.Ready()
	runEvents(t, w, loop.Problems)
	eventually(t, "an Event about it",
		func() bool { return written(t, s, "InvalidObject", "EndpointSlice/"+bad.Name) == 1 })
}

// TestEventsOfOtherParts: Problems that other parts of the gateway report become Events of their
// objects, unless the object is from a file. The Event about a health check node port has
// kube-proxy's reason.
func TestEventsOfOtherParts(t *testing.T) {
	t.Parallel()
	s := k8stest.Start(t)
	s.Set(service("a", 80), service("file", 81))
	w := start(t, s)
	loop, _ := w.loop(t)
	<-loop.Ready()
	runEvents(t, w, loop.Problems)
	ofService := func(name string) objects.ObjectID {
		return objects.ObjectID{Kind: objects.KindService, Namespace: "shop", Name: name}
	}
	for _, p := range []objects.Problem{
		{Source: objects.Source{Kind: objects.Manifests}, Object: ofService("file"), Message: "is unknown"},
		{Source: objects.Source{Kind: "flow-table"}, Object: objects.ObjectID{Kind: objects.KindNode, Name: nodeName},
			Message: "7 flows were lost", Severity: objects.Warning, Reason: objects.ReasonFlowsLost},
		{Source: objects.Source{Kind: "endpoint-health"}, Object: ofService("a"), Message: "are not checked",
			Severity: objects.Warning},
		{Source: health.Source(), Object: ofService("a"), Field: "spec.healthCheckNodePort",
			Message: "address already in use", Severity: objects.Warning, Reason: health.ReasonFailed},
	} {
		var b tracker.Batch
		b.Report(p.Source, []objects.Problem{p})
		w.tracker.Apply(&b)
	}
	eventually(t, "Events", func() bool {
		return written(t, s, "FailedToStartServiceHealthcheck", "Service/a") == 1 &&
			written(t, s, "ServedDifferently", "Service/a") == 1 && written(t, s, "FlowsLost", "Node/"+nodeName) == 1
	})
	if events, _ := s.Events(); len(events) != 3 {
		t.Errorf("%d Events, want 3: %+v", len(events), events)
	}
}

// TestEventOfUnknownAnnotation: a misspelt annotation is an Event of the Service, which names the
// annotation that may be meant.
func TestEventOfUnknownAnnotation(t *testing.T) {
	t.Parallel()
	s := k8stest.Start(t)
	misspelt := service("a", 80)
	misspelt.Annotations = map[string]string{"sluice.dev/schedular": "rr"}
	s.Set(misspelt, service("b", 81))
	w := start(t, s)
	loop, _ := w.loop(t)
	<-loop.Ready()
	runEvents(t, w, loop.Problems)
	eventually(t, "an Event", func() bool { return written(t, s, "ServedDifferently", "Service/a") == 1 })
	events, _ := s.Events()
	const want = "metadata.annotations[sluice.dev/schedular]: is unknown, did you mean sluice.dev/scheduler?"
	if len(events) != 1 || !strings.Contains(events[0].Note, want) {
		t.Errorf("%d Events: %+v, want %q", len(events), events, want)
	}
}

// A new Problem does not wait for Events about those that are resolved by now.
func TestEventsSkipResolvedProblems(t *testing.T) {
	t.Parallel()
	s := k8stest.Start(t)
	problem := func(name string) objects.Problem {
		s.Set(service(name, 80))
		return objects.Problem{Source: objects.Source{Kind: k8s.Kind},
			Object:  objects.ObjectID{Kind: objects.KindService, Namespace: "shop", Name: name},
			Message: "x", Severity: objects.Refused}
	}
	var many []objects.Problem
	for i := range 100 {
		many = append(many, problem(fmt.Sprintf("s%02d", i)))
	}
	fresh := []objects.Problem{problem("z")}
	var outstanding atomic.Pointer[[]objects.Problem]
	outstanding.Store(&many)
	w := start(t, s)
	changed := make(chan struct{})
	runEvents(t, w, func() ([]objects.Problem, <-chan struct{}) { return *outstanding.Load(), changed })
	eventually(t, "the first Events", func() bool { events, _ := s.Events(); return len(events) > 0 })
	outstanding.Store(&fresh)
	close(changed)
	eventually(t, "an Event about what is outstanding",
		func() bool { return written(t, s, "NotServed", "Service/z") == 1 })
	if events, _ := s.Events(); len(events) > len(many)/2 {
		t.Errorf("%d Events about what was resolved", len(events)-1)
	}
}
