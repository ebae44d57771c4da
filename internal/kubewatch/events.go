package kubewatch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record/util"
	"k8s.io/client-go/util/flowcontrol"

	"sluice.dev/sluice/internal/eventlimit"
	"sluice.dev/sluice/internal/wake"
)

const (
	maxNote = 1024 // bytes (events.k8s.io/v1 Event.note)
	// maxInstance is the bound of Event.reportingInstance, in bytes.
	maxInstance  = 128
	eventTimeout = 10 * time.Second
	// warnInterval is the least time between two warnings that Events are not written.
	warnInterval = 10 * time.Minute
)

// Events writes Events at the rates of package eventlimit; callers do not wait. If several Events
// with one object and one reason are pending, only the last is written.
type Events struct {
	client   kubernetes.Interface
	log      *slog.Logger
	reporter string // reportingController of each Event
	instance string
	limit    flowcontrol.RateLimiter
	added    wake.Flag

	mu      sync.Mutex // guards the fields below
	series  map[subject]*series
	authors map[string]*author // by namespace; only namespaces with a series
	numbers int64              // count of added Events
	warned  time.Time
}

// subject is the object and the reason that the Events of a series share.
type subject struct {
	corev1.ObjectReference
	reason string
}

// series is the Events about one subject.
type series struct {
	subject
	author *author
	event  *eventsv1.Event // pending; nil if none
	number int64           // order of event among all added Events
	last   time.Time       // when an Event was added last
	next   time.Time       // earliest time of the next write
	wait   time.Duration   // interval before next
}

// author is a namespace that has series. Cluster-scoped objects share one author.
type author struct {
	series int
	wrote  time.Time
}

// NewEvents returns Events of a reporter, such as sluice.dev/controller, and of one instance of it.
func NewEvents(client kubernetes.Interface, log *slog.Logger, reporter, instance string) *Events {
	return &Events{client: client, log: log, reporter: reporter, instance: Clip(instance, maxInstance-len("...")),
		limit: eventlimit.New(), added: wake.NewFlag(), series: map[subject]*series{}, authors: map[string]*author{}}
}

// Add queues an Event of a kind (Normal, Warning). It drops the Event if the queue is full: the
// object's conditions have the same information. Notes that are too long are cut.
func (e *Events) Add(about corev1.ObjectReference, kind, reason, action, note string) {
	now := time.Now()
	namespace := about.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	event := &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: util.GenerateEventName(about.Name, now.UnixNano())},
		EventTime:  metav1.NewMicroTime(now), ReportingController: e.reporter, ReportingInstance: e.instance,
		Action: action, Reason: reason, Type: kind, Regarding: about, Note: Clip(note, maxNote-len("...")),
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.of(subject{about, reason}, now)
	if s == nil {
		e.warn(now, "Events are dropped: the queue is full", "about", about.Name, "reason", reason,
			"note", note)
		return
	}
	if now.Sub(s.last) > eventlimit.Memory {
		s.wait = 0
	}
	e.numbers++
	s.event, s.number, s.last = event, e.numbers, now
	e.added.Raise()
}

// of returns the series of a subject, or nil if there is no room for another series.
func (e *Events) of(about subject, now time.Time) *series {
	if s := e.series[about]; s != nil {
		return s
	}
	if a := e.authors[about.Namespace]; len(e.series) >= eventlimit.Most || a != nil &&
		a.series >= eventlimit.MostOfNamespace {
		e.forget(now)
	}
	a := e.authors[about.Namespace]
	if len(e.series) >= eventlimit.Most || a != nil && a.series >= eventlimit.MostOfNamespace {
		return nil
	}
	if a == nil {
		a = &author{}
		e.authors[about.Namespace] = a
	}
	a.series++
	s := &series{subject: about, author: a}
	e.series[about] = s
	return s
}

// forget drops series that have no pending Event and whose next Event would not have to wait.
func (e *Events) forget(now time.Time) {
	for about, s := range e.series {
		if s.event != nil || now.Before(s.next) {
			continue
		}
		delete(e.series, about)
		if s.author.series--; s.author.series == 0 {
			delete(e.authors, about.Namespace)
		}
	}
}

// Waiting returns the pending Events, in the order in which they were added.
func (e *Events) Waiting() (list []*eventsv1.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var of []*series
	for _, s := range e.series {
		if s.event != nil {
			of = append(of, s)
		}
	}
	slices.SortFunc(of, func(a, b *series) int { return cmp.Compare(a.number, b.number) })
	for _, s := range of {
		list = append(list, s.event)
	}
	return list
}

// Run writes Events until ctx is done.
func (e *Events) Run(ctx context.Context) {
	for ctx.Err() == nil {
		_, at := e.due(time.Now())
		if at.IsZero() {
			at = time.Now().Add(eventlimit.MaxInterval)
		}
		if wait := time.Until(at); wait > 0 {
			select {
			case <-ctx.Done():
			case <-e.added:
			case <-time.After(wait):
			}
			continue
		}
		if e.limit.Wait(ctx) != nil {
			return
		}
		if s, _ := e.due(time.Now()); s != nil { // look again: limit.Wait may have taken long
			e.write(ctx, s)
		}
	}
}

// due returns the series whose Event must be written now; if there is none, the time at which the
// next one is due (zero: no Event is pending). Namespaces take turns, so that none waits for the
// Events of another one. Within a namespace warnings come first, then the least frequent subjects.
func (e *Events) due(now time.Time) (first *series, at time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.series {
		switch {
		case s.event == nil:
		case now.Before(s.next):
			if first == nil && (at.IsZero() || s.next.Before(at)) {
				at = s.next
			}
		case first == nil || s.before(first):
			first, at = s, now
		}
	}
	return first, at
}

func (s *series) before(o *series) bool {
	normal := func(s *series) int {
		if s.event.Type == corev1.EventTypeNormal {
			return 1
		}
		return 0
	}
	return cmp.Or(s.author.wrote.Compare(o.author.wrote), cmp.Compare(normal(s), normal(o)),
		cmp.Compare(s.wait, o.wait), cmp.Compare(s.number, o.number)) < 0
}

func (e *Events) write(ctx context.Context, s *series) {
	e.mu.Lock()
	event := s.event
	s.event = nil
	e.mu.Unlock()
	request, cancel := context.WithTimeout(ctx, eventTimeout)
	_, err := e.client.EventsV1().Events(event.Namespace).Create(request, event, metav1.CreateOptions{})
	cancel()
	e.mu.Lock()
	defer e.mu.Unlock()
	now, least := time.Now(), eventlimit.MinInterval
	if err != nil && ctx.Err() == nil {
		least = eventlimit.Retry
		if unanswered(err) && s.event == nil {
			s.event = event
		}
		e.warn(now, "an Event cannot be written", "about", event.Regarding.Name, "note", event.Note, "error",
			fmt.Errorf("create Event: %w", err))
	}
	s.wait = eventlimit.Next(s.wait, least)
	s.next, s.author.wrote = now.Add(s.wait), now
}

// unanswered reports whether the API server may accept the request later.
func unanswered(err error) bool {
	var status apierrors.APIStatus
	return !errors.As(err, &status) || apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) ||
		apierrors.IsInternalError(err) || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err)
}

func (e *Events) warn(now time.Time, text string, attributes ...any) {
	if !e.warned.IsZero() && now.Sub(e.warned) < warnInterval {
		return
	}
	e.warned = now
	e.log.Warn(text, append(attributes, "silent for", warnInterval)...)
}

// Clip cuts a text to a number of bytes, at a character boundary, and appends "..." if it cut.
func Clip(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "..."
}
