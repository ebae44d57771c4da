package allocate

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record/util"
)

// reportingController is who writes our Events.
const reportingController = "sluice.dev/controller"

const (
	maxNote = 1024 // bytes (events.k8s.io/v1 Event.note)
	// maxInstance is the bound of Event.reportingInstance, in bytes.
	maxInstance = 128
	// waitingEvents are kept while the API server is slow. Beyond that Events are dropped: the
	// conditions say the same.
	waitingEvents = 4096
	eventTimeout  = 10 * time.Second
)

// events writes Events, one after another, so that nobody waits for them.
type events struct {
	client   kubernetes.Interface
	log      *slog.Logger
	instance string
	queue    chan *eventsv1.Event
}

func newEvents(client kubernetes.Interface, log *slog.Logger, instance string) *events {
	return &events{client: client, log: log, instance: clip(instance, maxInstance-len("...")),
		queue: make(chan *eventsv1.Event, waitingEvents)}
}

// add queues an Event.
func (e *events) add(about corev1.ObjectReference, kind, reason, action, note string) {
	now := time.Now()
	namespace := about.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	event := &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: util.GenerateEventName(about.Name, now.UnixNano())},
		EventTime:  metav1.NewMicroTime(now), ReportingController: reportingController, ReportingInstance: e.instance,
		Action: action, Reason: reason, Type: kind, Regarding: about, Note: clip(note, maxNote-len("...")),
	}
	select {
	case e.queue <- event:
	default:
		e.log.Warn("an Event is dropped: the API server is slow", "about", about.Name, "reason", reason, "note", note)
	}
}

func (e *events) run(ctx context.Context) {
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

func serviceReference(s *corev1.Service) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: s.Namespace, Name: s.Name, UID: s.UID}
}
