package control_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/control"
)

func TestChangesThatCancelVanish(t *testing.T) {
	tracker := control.NewTracker()
	from := control.Source{Kind: "test"}
	id := control.ObjectID{Kind: control.KindService, Namespace: "bench", Name: "service-1"}
	changes := func(want int, what string) {
		t.Helper()
		if got := tracker.Changes().Len(); got != want {
			t.Errorf("%s: %d changes, want %d", what, got, want)
		}
	}
	tracker.Upsert(from, benchService(1))
	tracker.Delete(from, id)
	changes(0, "added and deleted")
	tracker.Upsert(from, benchService(1))
	tracker.Upsert(from, benchService(1))
	changes(1, "added twice")
	changes(0, "asked again")

	other := benchService(1)
	other.ResourceVersion, other.Spec.Selector = "77", map[string]string{"app": "x"}
	tracker.Upsert(from, other)
	changes(0, "changed where nobody looks")
	other.Spec.Ports[0].Port = 81
	tracker.Upsert(from, other)
	tracker.Upsert(from, benchService(1))
	changes(0, "changed and changed back")
	tracker.Delete(from, id)
	tracker.Upsert(from, benchService(1))
	changes(0, "deleted and added")
	tracker.Delete(from, id)
	changes(1, "deleted")
	tracker.Delete(from, id)
	changes(0, "deleted twice")
	if tracker.Read() != 11 {
		t.Errorf("%d batches read, want 11", tracker.Read())
	}
}

func TestNothingOfTheObjectIsKept(t *testing.T) {
	tracker, compiler := control.NewTracker(), control.NewCompiler(testConfig())
	s := benchService(1)
	tracker.Upsert(control.Source{Kind: "test"}, s)
	s.Spec.Ports[0].Port, s.Status.LoadBalancer.Ingress[0].IP = 9999, "203.0.113.99"
	snapshot, problems, _ := compiler.Compile(tracker.Changes())
	if got := render(snapshot, problems); strings.Contains(got, "99") || !strings.Contains(got, "203.0.1.1:80/TCP") {
		t.Errorf("the caller's object is used after Upsert:\n%s", got)
	}
}

func TestProblemIsOneLine(t *testing.T) {
	tracker := control.NewTracker()
	s := benchService(1)
	s.Name = "evil\nrefused Service default/innocent: is broken\u2028"
	s.Spec.Type = corev1.ServiceType("\x1b[31m\r\n")
	tracker.Upsert(control.Source{Kind: "test", Path: "a\nb"}, s)
	for _, p := range tracker.Locate(nil) {
		if strings.ContainsAny(p.String(), "\n\r\x1b\u2028") {
			t.Errorf("%q", p)
		}
	}
}
