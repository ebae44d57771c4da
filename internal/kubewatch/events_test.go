package kubewatch

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	eventsclient "k8s.io/client-go/kubernetes/typed/events/v1"
)

// recorder is an API server that notes Events.
type recorder struct {
	kubernetes.Interface
	eventsclient.EventsV1Interface
	eventsclient.EventInterface
	count   atomic.Int64
	written []*eventsv1.Event
}

func (r *recorder) EventsV1() eventsclient.EventsV1Interface  { return r }
func (r *recorder) Events(string) eventsclient.EventInterface { return r }
func (r *recorder) Create(_ context.Context, e *eventsv1.Event, _ metav1.CreateOptions) (*eventsv1.Event, error) {
	r.count.Add(1)
	r.written = append(r.written, e)
	return e, nil
}

// TestEventsAreLimited: one Service that changes ten times a second for an hour costs some twenty
// Events, a thousand Services of its namespace one a second; another namespace's Event waits for
// neither.
func TestEventsAreLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{}
		e := NewEvents(r, slog.New(slog.DiscardHandler), "sluice.dev/test", "me")
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); e.Run(ctx) }()
		of := func(namespace, name string) corev1.ObjectReference {
			return corev1.ObjectReference{Kind: "Service", Namespace: namespace, Name: name}
		}
		for i := range 36000 {
			e.Add(of("crowd", "flaps"), corev1.EventTypeNormal, []string{"Announced", "NotAnnounced"}[i%2], "Announce",
				fmt.Sprint(i))
			time.Sleep(100 * time.Millisecond)
		}
		if n := r.count.Load(); n > 40 {
			t.Errorf("one that flaps for an hour has %d Events", n)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if last := r.written[len(r.written)-1].Note; last != "35998" && last != "35999" {
			t.Errorf("the last Event is %q, want one of the last two", last)
		}
		before := r.count.Load()
		for i := range 1000 {
			e.Add(of("crowd", fmt.Sprint("s", i)), corev1.EventTypeWarning, "PoolEmpty", "Allocate", "")
		}
		time.Sleep(30 * time.Second)
		e.Add(of("honest", "web"), corev1.EventTypeNormal, "Assigned", "Allocate", "honest")
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if n := r.count.Load() - before; n > 25+34 {
			t.Errorf("a thousand Services have %d Events within 33 s", n)
		}
		is := false
		for _, event := range r.written {
			is = is || event.Note == "honest"
		}
		if !is {
			t.Error("the other namespace's Event was not written within 3 s")
		}
		cancel()
		<-done
	})
}
