package k8s

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"sluice.dev/sluice/control"
)

// What Events cost the API server at most, and what is remembered of them.
const (
	eventsPerSecond = 1
	eventsAtOnce    = 25
	// eventGather is how long problems may come and go before anything is written.
	eventGather = time.Second
	// eventRetry is how long to leave an API server alone that took no Event.
	eventRetry = 30 * time.Second
	// eventMemory is how long a Problem that returns is the same Event once more.
	eventMemory = 30 * time.Minute
	// maxEvents bounds what is remembered.
	maxEvents = 4096
	// maxNote is the API's bound (events.k8s.io/v1 Event.note), in bytes.
	maxNote = 1024
)

// Controller is the reportingController of our Events.
const Controller = "sluice.dev/gateway"

// Problems is where Events come from: all outstanding problems, and a channel that is
// closed when there may be others (control.Loop.Problems).
type Problems func() ([]control.Problem, <-chan struct{})

// Events writes an Event of the object concerned for every Problem with an object of
// the API server: one when it appears, a count more when it comes back.
type Events struct {
	w        *Watcher
	problems Problems
	limit    flowcontrol.RateLimiter
	written  map[control.Problem]*series
	failure  string
}

// series is an Event that was written.
type series struct {
	namespace, name string
	count           int32
	last            time.Time // when the Problem was last outstanding
	out             bool      // it is outstanding
}

// RunEvents writes Events until ctx is done. It is a goroutine of its own: the control
// loop never waits for it.
func (w *Watcher) RunEvents(ctx context.Context, problems Problems) {
	e := &Events{
		w: w, problems: problems, written: map[control.Problem]*series{},
		limit: flowcontrol.NewTokenBucketRateLimiter(eventsPerSecond, eventsAtOnce),
	}
	for ctx.Err() == nil {
		list, changed := problems()
		wait := eventGather
		if err := e.write(ctx, list); err != nil && ctx.Err() == nil {
			e.failed(err)
			wait = eventRetry
		} else {
			e.failure = ""
			select {
			case <-changed:
			case <-ctx.Done():
			}
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}

func (e *Events) failed(err error) {
	if e.failure != err.Error() {
		e.failure = err.Error()
		e.w.Log.Warn("Events cannot be written; they are tried again", "error", err, "retry", eventRetry)
	}
}

// write brings what is written up to date with the problems there are. It ends with the
// first Event that is not taken.
func (e *Events) write(ctx context.Context, list []control.Problem) error {
	now := time.Now()
	outstanding := make(map[control.Problem]bool, len(list))
	for _, p := range list {
		if p.Source.Kind == Kind && p.Object != (control.ObjectID{}) {
			outstanding[p] = true
		}
	}
	for p, s := range e.written {
		if s.out = s.out && outstanding[p]; !s.out && now.Sub(s.last) > eventMemory {
			delete(e.written, p)
		}
	}
	for _, p := range list {
		if !outstanding[p] {
			continue
		}
		s := e.written[p]
		if s != nil && s.out {
			s.last = now
			continue
		}
		if s == nil && len(e.written) >= maxEvents {
			continue
		}
		if err := e.limit.Wait(ctx); err != nil {
			return err
		}
		if err := e.send(ctx, p, s); err != nil {
			return err
		}
	}
	return nil
}

// send writes a Problem: a new Event, or one more of a series.
func (e *Events) send(ctx context.Context, p control.Problem, s *series) error {
	now := time.Now()
	if s != nil {
		patch, err := json.Marshal(map[string]any{"series": eventsv1.EventSeries{Count: s.count + 1, LastObservedTime: metav1.NewMicroTime(now)}})
		if err != nil {
			return fmt.Errorf("encode Event: %w", err)
		}
		err = e.w.clients.events.Patch(types.MergePatchType).Namespace(s.namespace).Resource("events").Name(s.name).Body(patch).Do(ctx).Error()
		if err == nil {
			s.count, s.last, s.out = s.count+1, now, true
			return nil
		}
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("write Event about %v: %w", p.Object, err)
		}
	}
	regarding, err := e.reference(ctx, p.Object)
	if apierrors.IsNotFound(err) {
		return nil // the Problem will go with it
	}
	if err != nil {
		return err
	}
	event := e.event(p, regarding, now)
	err = e.w.clients.events.Post().Namespace(event.Namespace).Resource("events").Body(event).Do(ctx).Error()
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("write Event about %v: %w", p.Object, err)
	}
	e.written[p] = &series{namespace: event.Namespace, name: event.Name, count: 1, last: now, out: true}
	return nil
}

func (e *Events) event(p control.Problem, regarding corev1.ObjectReference, now time.Time) *eventsv1.Event {
	namespace := regarding.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault // where Events of Nodes are
	}
	note := p.Message
	if p.Field != "" {
		note = p.Field + ": " + note
	}
	if p.Serving {
		note += " (its last good version is served)"
	}
	name := p.Object.Name
	if over := len(name) + 17 - 253; over > 0 {
		name = name[:len(name)-over]
	}
	return &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("%s.%016x", name, now.UnixNano())},
		EventTime:           metav1.NewMicroTime(now),
		ReportingController: Controller, ReportingInstance: short(e.w.NodeName, 128),
		Action: "Serve", Reason: string(p.Why()), Type: corev1.EventTypeWarning,
		Regarding: regarding, Note: short(note, maxNote),
	}
}

// reference names an object as an Event must, so that kubectl describe finds it: with
// its UID, which nobody else here needs and therefore nobody keeps.
func (e *Events) reference(ctx context.Context, id control.ObjectID) (ref corev1.ObjectReference, err error) {
	ref = corev1.ObjectReference{APIVersion: "v1", Kind: id.Kind, Namespace: id.Namespace, Name: id.Name}
	get := func(client rest.Interface, resource string, into interface {
		runtime.Object
		GetUID() types.UID
	}) error {
		err := client.Get().NamespaceIfScoped(id.Namespace, id.Namespace != "").Resource(resource).Name(id.Name).Do(ctx).Into(into)
		ref.UID = into.GetUID()
		return err
	}
	switch id.Kind {
	case control.KindService:
		err = get(e.w.clients.core, "services", &corev1.Service{})
	case control.KindEndpointSlice:
		ref.APIVersion = discoveryv1.SchemeGroupVersion.String()
		err = get(e.w.clients.discovery, "endpointslices", &discoveryv1.EndpointSlice{})
	case control.KindNode:
		// As the kubelet has it: the name is the UID. A Node that does not exist can be told of, too.
		ref.UID = types.UID(id.Name)
	}
	return ref, err
}

// short cuts a text to a number of bytes, at the end of a character.
func short(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && s[limit]&0xc0 == 0x80 {
		limit--
	}
	return s[:limit]
}
