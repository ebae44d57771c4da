package k8s

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
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

	"sluice.dev/sluice/control/objects"
)

// What Events cost the API server at most.
const (
	eventsPerSecond = 1
	eventsAtOnce    = 25
	// eventGather is how long problems may come and go before anything is written.
	eventGather = time.Second
	// eventTimeout is how long one may take.
	eventTimeout = 10 * time.Second
	// eventBackoff is how long to leave an API server alone that does not answer.
	eventBackoff = 30 * time.Second
	// eventWarnInterval is how often the log says that Events are refused.
	eventWarnInterval = 10 * time.Minute
	// maxNote and maxName are the API's bounds (events.k8s.io/v1 Event.note; RFC 1123
	// subdomain), in bytes.
	maxNote = 1024
	maxName = 253
)

// Controller is the reportingController of our Events.
const Controller = "sluice.dev/gateway"

// Problems is where Events come from: all outstanding problems, and a channel that is
// closed when there may be others (loop.Loop.Problems).
type Problems func() ([]objects.Problem, <-chan struct{})

// Events writes an Event of the object concerned for every Problem with an object of
// the API server: one when it appears, a count more when it comes back. Problems about
// one field of one object for one reason are one.
type Events struct {
	w           *Watcher
	problems    Problems
	limit       flowcontrol.RateLimiter
	outstanding outstanding
	warned      time.Time
}

// RunEvents writes Events until ctx is done. It is a goroutine of its own: the control
// loop never waits for it.
func (w *Watcher) RunEvents(ctx context.Context, problems Problems) {
	e := w.newEvents(problems)
	for ctx.Err() == nil {
		list, changed := problems()
		e.outstanding.look(list, time.Now())
		if s, at := e.outstanding.due(time.Now()); s == nil {
			e.rest(ctx, changed, at)
			continue
		}
		if e.limit.Wait(ctx) != nil {
			return
		}
		e.one(ctx)
	}
}

func (w *Watcher) newEvents(problems Problems) *Events {
	return &Events{
		w: w, problems: problems, outstanding: outstanding{},
		limit: flowcontrol.NewTokenBucketRateLimiter(eventsPerSecond, eventsAtOnce),
	}
}

// rest waits until there may be something to write: other Problems, or at.
func (e *Events) rest(ctx context.Context, changed <-chan struct{}, at time.Time) {
	var due <-chan time.Time
	if !at.IsZero() {
		due = time.After(time.Until(at))
	}
	select {
	case <-changed:
		sleep(ctx, eventGather)
	case <-due:
	case <-ctx.Done():
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// one writes the Event whose turn it is, by what is outstanding now: the limit may have
// taken a while.
func (e *Events) one(ctx context.Context) {
	list, _ := e.problems()
	e.outstanding.look(list, time.Now())
	s, _ := e.outstanding.due(time.Now())
	if s == nil {
		return
	}
	request, cancel := context.WithTimeout(ctx, eventTimeout)
	err := e.send(request, s)
	cancel()
	switch {
	case err == nil:
		s.wrote(time.Now())
	case ctx.Err() != nil:
	default:
		s.refused(time.Now())
		e.failed(err)
		if unreachable(err) {
			sleep(ctx, eventBackoff)
		}
	}
}

func (e *Events) failed(err error) {
	level := slog.LevelDebug
	if now := time.Now(); !apierrors.IsNotFound(err) && now.Sub(e.warned) >= eventWarnInterval {
		level, e.warned = slog.LevelWarn, now
	}
	e.w.Log.Log(context.Background(), level, "an Event cannot be written; it is tried again later, and others are not held up", "error", err, "silent for", eventWarnInterval)
}

// unreachable says whether an error is no answer to this Event but would be the same
// for any other.
func unreachable(err error) bool {
	var status apierrors.APIStatus
	return !errors.As(err, &status) || apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsUnauthorized(err)
}

// send writes an Event: a new one, or one more of a series. Only the series of an Event
// can be changed (k8s.io/kubernetes pkg/apis/core/validation, ValidateEventUpdate), so
// another text is another Event.
func (e *Events) send(ctx context.Context, s *series) error {
	now := time.Now()
	if s.name != "" && s.note == s.text() {
		patch, err := json.Marshal(map[string]any{"series": eventsv1.EventSeries{Count: s.count, LastObservedTime: metav1.NewMicroTime(now)}})
		if err != nil {
			return fmt.Errorf("encode Event: %w", err)
		}
		err = e.w.clients.events.Patch(types.MergePatchType).Namespace(s.namespace).Resource("events").Name(s.name).Body(patch).Do(ctx).Error()
		if err == nil {
			return nil
		}
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("write Event about %v: %w", s.object, err)
		}
		s.name = "" // the API server forgets Events after an hour
	}
	regarding, err := e.reference(ctx, s.object)
	if err != nil {
		return fmt.Errorf("look up %v: %w", s.object, err)
	}
	event := e.event(s, regarding, now)
	err = e.w.clients.events.Post().Namespace(event.Namespace).Resource("events").Body(event).Do(ctx).Error()
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("write Event about %v: %w", s.object, err)
	}
	s.namespace, s.name, s.note, s.count = event.Namespace, event.Name, event.Note, 1
	return nil
}

func (e *Events) event(s *series, regarding corev1.ObjectReference, now time.Time) *eventsv1.Event {
	namespace := regarding.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault // where Events of Nodes are
	}
	return &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: namespace, Name: eventName(s.object.Name, now)},
		EventTime:           metav1.NewMicroTime(now),
		ReportingController: Controller, ReportingInstance: short(e.w.NodeName, 128),
		Action: "Serve", Reason: string(s.reason), Type: corev1.EventTypeWarning,
		Regarding: regarding, Note: s.text(),
	}
}

// eventName is unlike that of any other Event. What is cut off must leave the name one:
// a part between dots ends with a letter or digit.
func eventName(object string, now time.Time) string {
	suffix := fmt.Sprintf(".%016x", now.UnixNano())
	return strings.TrimRight(short(object, maxName-len(suffix)), ".-") + suffix
}

// reference names an object as an Event must, so that kubectl describe finds it: with
// its UID, which nobody else here needs and therefore nobody keeps.
func (e *Events) reference(ctx context.Context, id objects.ObjectID) (ref corev1.ObjectReference, err error) {
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
	case objects.KindService:
		err = get(e.w.clients.core, "services", &corev1.Service{})
	case objects.KindEndpointSlice:
		ref.APIVersion = discoveryv1.SchemeGroupVersion.String()
		err = get(e.w.clients.discovery, "endpointslices", &discoveryv1.EndpointSlice{})
	case objects.KindNode:
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
