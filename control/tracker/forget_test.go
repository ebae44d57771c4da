package tracker

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/control/objects"
)

// TestNothingIsKeptOfDeletedObjects: nothing is kept of deleted objects, among them malformed ones
// and some from two sources.
func TestNothingIsKeptOfDeletedObjects(t *testing.T) {
	tracker := New()
	places := []objects.Source{{Kind: "test", Path: "a"}, {Kind: "test", Path: "b"}}
	for i := range 10 {
		s := &corev1.Service{}
		s.Name, s.Spec.Ports = fmt.Sprintf("s%d", i), []corev1.ServicePort{{Port: 80}}
		if i%4 == 0 {
			s.Spec.Type = "no such type"
		}
		for _, from := range places[:1+i%2] {
			tracker.Upsert(from, s)
		}
	}
	if n := tracker.Changes().Len(); n != 7 || len(tracker.withProblems) != 8 {
		t.Fatalf("%d changes, %d objects with problems", n, len(tracker.withProblems))
	}
	for id := range tracker.objects {
		for _, from := range places {
			tracker.Delete(from, id)
		}
	}
	if tracker.Changes(); len(tracker.objects) != 0 || len(tracker.withProblems) != 0 || len(tracker.dirty) != 0 {
		t.Errorf("left: %d objects, %d of them with problems, %d that may have changed", len(tracker.objects),
			len(tracker.withProblems), len(tracker.dirty))
	}
}
