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
	"sluice.dev/sluice/internal/eventlimit"
	"sluice.dev/sluice/internal/wake"
)

// Bounds of the load that Events put on the API server, beside eventlimit's.
const (
	// eventGather is how long problems may appear and end before an Event is written.
	eventGather = time.Second
	// eventTimeout bounds one request.
	eventTimeout = 10 * time.Second
	// eventBackoff is the pause after an API server did not answer.
	eventBackoff = 30 * time.Second
	// eventWarnInterval is the least time between two warnings that Events are refused.
	eventWarnInterval = 10 * time.Minute
	// maxNote and maxName are the API's bounds (events.k8s.io/v1 Event.note; RFC 1123
	// subdomain), in bytes.
	maxNote = 1024
	maxName = 253
)

// Controller is the reportingController of our Events.
const Controller = "sluice.dev/gateway"

// Problems returns all outstanding problems, and a channel that is closed when they may have
// changed (loop.Loop.Problems).
type Problems func() ([]objects.Problem, <-chan struct{})

// Events writes an Event for every Problem with an object of the API server: a new one when the
// Problem appears, a higher count when it comes back. Problems with one field of one object for one
// reason share an Event.
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
		w: w, problems: problems, outstanding: newOutstanding(),
		limit: eventlimit.New(),
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
		wake.After(ctx, eventGather)
	case <-due:
	case <-ctx.Done():
	}
}

// one writes the Event that is due. It reads the outstanding Problems again, because waiting for
// the limit may have taken a while.
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
			wake.After(ctx, eventBackoff)
		}
	}
}

func (e *Events) failed(err error) {
	level := slog.LevelDebug
	if now := time.Now(); !apierrors.IsNotFound(err) && now.Sub(e.warned) >= eventWarnInterval {
		level, e.warned = slog.LevelWarn, now
	}
	e.w.Log.Log(context.Background(), level,
		"an Event cannot be written; it is tried again later, and others are not held up", "error", err, "silent for",
		eventWarnInterval)
}

// unreachable reports whether an error would also occur for any other Event.
func unreachable(err error) bool {
	var status apierrors.APIStatus
	return !errors.As(err, &status) || apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) ||
		apierrors.IsUnauthorized(err)
}

// send writes an Event: a new one, or one more of a series. Only the series of an Event
// can be changed (k8s.io/kubernetes pkg/apis/core/validation, ValidateEventUpdate), so
// another text is another Event.
func (e *Events) send(ctx context.Context, s *series) error {
	now := time.Now()
	if s.name != "" && s.note == s.text() {
		patch, err := json.Marshal(map[string]any{"series": eventsv1.EventSeries{Count: s.count,
			LastObservedTime: metav1.NewMicroTime(now)}})
		if err != nil {
			return fmt.Errorf("encode Event: %w", err)
		}
		err = e.w.clients.events.Patch(types.MergePatchType).Namespace(s.namespace).
			Resource("events").Name(s.name).Body(patch).Do(ctx).Error()
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

// eventName returns a unique name. A shortened name must remain valid: a part between dots ends
// with a letter or digit.
func eventName(object string, now time.Time) string {
	suffix := fmt.Sprintf(".%016x", now.UnixNano())
	return strings.TrimRight(short(object, maxName-len(suffix)), ".-") + suffix
}

// reference returns the reference to an object with its UID, by which kubectl describe finds the
// Event. The UID is read here, because nothing else uses it.
func (e *Events) reference(ctx context.Context, id objects.ObjectID) (ref corev1.ObjectReference, err error) {
	ref = corev1.ObjectReference{APIVersion: "v1", Kind: id.Kind, Namespace: id.Namespace, Name: id.Name}
	get := func(client rest.Interface, resource string, into interface {
		runtime.Object
		GetUID() types.UID
	}) error {
		err := client.Get().NamespaceIfScoped(id.Namespace,
			id.Namespace != "").Resource(resource).Name(id.Name).Do(ctx).Into(into)
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
		// As in the kubelet's Events the UID is the name. So an Event can also be about a Node that
		// does not exist.
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
