package k8s

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/tracker"
	"sluice.dev/sluice/internal/heartbeat"
)

// TestStalledReader: what takes the objects of a kind is late when an object blocks it, and not
// while no object comes.
func TestStalledReader(t *testing.T) {
	w, err := New(Config{Log: slog.New(slog.DiscardHandler), Client: &rest.Config{Host: "http://127.0.0.1:1"},
		Tracker: tracker.New(), NodeName: "n"})
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		var beats heartbeat.Set
		until := make(chan struct{})
		w.Beats = &beats
		w.hold = newHold(func(*tracker.Batch) { <-until }, 0)
		services := w.watched()[0]
		time.Sleep(time.Hour)
		if late := beats.Unready(); len(late) > 0 {
			t.Errorf("no object comes: %q", late)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			services.store.apply(objects.Source{}, []change{{
				id:     objects.ObjectID{Kind: objects.KindService, Namespace: "default", Name: "web"},
				object: &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}},
			}})
		}()
		time.Sleep(15 * time.Second)
		if late := beats.Unready(); len(late) != 1 ||
			!strings.HasPrefix(late[0], "reader of services from the API server: stalled") {
			t.Errorf("blocked: %q", late)
		}
		close(until)
		<-done
		if late := beats.Unready(); len(late) > 0 {
			t.Errorf("goes on: %q", late)
		}
	})
}
