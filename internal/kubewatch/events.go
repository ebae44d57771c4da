package kubewatch

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record/util"
)

const (
	maxNote = 1024 // bytes (events.k8s.io/v1 Event.note)
	// maxInstance is the bound of Event.reportingInstance, in bytes.
	maxInstance = 128
	// waitingEvents are kept while the API server is slow. Beyond that Events are dropped: the
	// conditions say the same.
	waitingEvents = 4096
	eventTimeout  = 10 * time.Second
)

// Events writes Events, one after another, so that nobody waits for them.
type Events struct {
	client   kubernetes.Interface
	log      *slog.Logger
	reporter string // who writes them: reportingController
	instance string
	queue    chan *eventsv1.Event
}

// NewEvents returns Events of a reporter, such as sluice.dev/controller, and one process of it.
func NewEvents(client kubernetes.Interface, log *slog.Logger, reporter, instance string) *Events {
	return &Events{client: client, log: log, reporter: reporter, instance: clip(instance, maxInstance-len("...")),
		queue: make(chan *eventsv1.Event, waitingEvents)}
}

// Add queues an Event of a kind (Normal, Warning), or drops it where too many wait. Notes that are
// too long are cut.
func (e *Events) Add(about corev1.ObjectReference, kind, reason, action, note string) {
	now := time.Now()
	namespace := about.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	event := &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: util.GenerateEventName(about.Name, now.UnixNano())},
		EventTime:  metav1.NewMicroTime(now), ReportingController: e.reporter, ReportingInstance: e.instance,
		Action: action, Reason: reason, Type: kind, Regarding: about, Note: clip(note, maxNote-len("...")),
	}
	select {
	case e.queue <- event:
	default:
		e.log.Warn("an Event is dropped: the API server is slow", "about", about.Name, "reason", reason, "note", note)
	}
}

// Run writes them until ctx is done.
func (e *Events) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case event := <-e.queue:
			request, cancel := context.WithTimeout(ctx, eventTimeout)
			_, err := e.client.EventsV1().Events(event.Namespace).Create(request, event, metav1.CreateOptions{})
			cancel()
			if err != nil && ctx.Err() == nil {
				e.log.Warn("an Event cannot be written", "about", event.Regarding.Name, "note", event.Note, "error",
					fmt.Errorf("create Event: %w", err))
			}
		}
	}
}

// clip cuts a text to a number of bytes, and says so.
func clip(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "..."
}
