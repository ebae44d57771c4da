package k8s

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/tracker"
	"sluice.dev/sluice/internal/heartbeat"
	"sluice.dev/sluice/internal/wake"
)

// resource is the list and watch of one kind of objects, and their health.
type resource struct {
	health
	w      *Watcher
	client rest.Interface
	kind   runtime.Object // an example
	labels string
	fields string
	store  *store
	again  wake.Flag // relist
	// only, if not "", is the name of the one object that should exist.
	only string

	updating sync.Mutex
	reported []objects.Problem // the last report about the kind as a whole
}

// watched are the three kinds, with kube-proxy's selectors.
func (w *Watcher) watched() []*resource {
	return []*resource{
		w.resource("services", w.clients.core, &corev1.Service{}, "!service.kubernetes.io/service-proxy-name",
			fields.OneTermNotEqualSelector("spec.clusterIP", corev1.ClusterIPNone)),
		w.resource("endpointslices", w.clients.discovery, &discoveryv1.EndpointSlice{}, "!"+corev1.IsHeadlessService,
			fields.Everything()),
		w.resource("nodes", w.clients.core, &corev1.Node{}, "", w.nodeFields()),
	}
}

func (w *Watcher) nodeFields() fields.Selector {
	if w.AllNodes {
		return fields.Everything()
	}
	return fields.OneTermEqualSelector(metav1.ObjectNameField, w.NodeName)
}

func (w *Watcher) resource(
	name string, client rest.Interface, kind runtime.Object, labels string, fields fields.Selector,
) *resource {
	r := &resource{w: w, client: client, kind: kind, labels: labels, fields: fields.String(),
		again: wake.NewFlag()}
	r.now.Source, r.changed = objects.Source{Kind: Kind, Path: name}, make(chan struct{})
	if _, node := kind.(*corev1.Node); node {
		r.only = w.NodeName
	}
	r.store = newStore(r.now.Source)
	beat := w.Beats.Add("reader of "+name+" from the API server", heartbeat.DefaultBounds)
	r.store.apply = func(from objects.Source, list []change) {
		beat.Beat()
		defer beat.Rest()
		w.hold.apply(from, list)
	}
	r.store.changed = func(objects int, version uint64, listed bool) {
		beat.Beat()
		defer beat.Rest()
		r.storeChanged(objects, version, listed)
	}
	return r
}

// restartAfter is the pause after a panic in client-go.
const restartAfter = time.Second

// run lists and watches until ctx is done. It replaces a Reflector that panicked, or that must list
// again.
func (r *resource) run(ctx context.Context) {
	defer r.end()
	for ctx.Err() == nil {
		life, cancel := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() { done <- r.reflect(life) }()
		var err error
		select {
		case err = <-done:
		case <-r.again:
			cancel()
			err = <-done
			r.store.forgetVersions()
		}
		cancel()
		if err != nil {
			r.failed(err)
			wake.After(ctx, restartAfter)
		}
	}
}

// relist makes run list all objects again and pass all on.
func (r *resource) relist() { r.again.Raise() }

// retryBackoff returns the waits between requests while the API server does not answer: from 0.8 s
// on, and at most between 5 and 10 s. With client-go's own, up to 60 s, a gateway sends connections
// to pods that have ended for a minute after the API server is back.
func retryBackoff() *wait.Backoff {
	return &wait.Backoff{Duration: 800 * time.Millisecond, Cap: 5 * time.Second, Steps: 10, Factor: 2, Jitter: 1}
}

// reflect runs client-go's Reflector until ctx is done, or until it panics, which is logged. The
// Reflector handles backoff, expired watches and bookmarks.
func (w *Watcher) reflect(
	ctx context.Context, name string, lw cache.ListerWatcher, kind runtime.Object, store cache.ReflectorStore,
) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v, at %s", p, firstFrame(debug.Stack()))
			w.Log.Error("watching failed; it is started anew", "source", name, "panic", p, "stack",
				string(debug.Stack()))
		}
	}()
	// Log client-go's messages at level debug: the status has what matters.
	log := logr.FromSlogHandler(debugHandler{w.Log.Handler()})
	cache.NewReflectorWithOptions(lw, kind, store, cache.ReflectorOptions{
		Name: "sluice/" + name, Logger: &log, Backoff: retryBackoff(),
	}).RunWithContext(logr.NewContext(ctx, log))
	return nil
}

// reflect runs a Reflector whose requests the status follows.
func (r *resource) reflect(ctx context.Context) error {
	lw := cache.NewFilteredListWatchFromClient(r.client, r.now.Source.Path, metav1.NamespaceAll,
		func(o *metav1.ListOptions) {
			o.LabelSelector, o.FieldSelector = r.labels, r.fields
		})
	return r.w.reflect(ctx, r.now.Source.Path, noting(lw, r.note), r.kind, r.store)
}

// noting returns lw with requests whose results note gets; watching is false for a list. A request
// returns the error that note returns.
func noting(
	lw *cache.ListWatch, note func(ctx context.Context, err error, watching bool) error,
) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := lw.ListWithContext(ctx, o)
			return list, note(ctx, err, false)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			watching, err := lw.WatchWithContext(ctx, o)
			return watching, note(ctx, err, true)
		},
	}
}

// note records the result of a request. Only an open watch shows that no event is missed. Two
// errors make client-go list instead and are no failures: an expired watch, and Invalid where lists
// are not streamed (servers before 1.32).
func (r *resource) note(ctx context.Context, err error, watching bool) error {
	switch {
	case err == nil:
		if watching {
			r.works()
		}
	case ctx.Err() != nil || retried(err, watching):
	default:
		r.failed(err)
	}
	return err
}

// retried reports whether client-go lists after an error of a request, so that it is no failure.
func retried(err error, watching bool) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) || watching && apierrors.IsInvalid(err)
}

// storeChanged is called by the store.
func (r *resource) storeChanged(objects int, version uint64, listed bool) {
	r.update(func(s *Status) {
		s.Objects, s.Version, s.Heard = objects, version, time.Now()
		if listed {
			s.Synced, s.Err, s.Since = true, nil, time.Time{}
		}
	})
}

// works is called when a watch was opened.
func (r *resource) works() {
	if r.status().Err == nil {
		return
	}
	r.update(func(s *Status) { s.Err, s.Since = nil, time.Time{} })
	r.w.Log.Info("the API server is watched again", "source", r.Source().Path)
}

// failed is called when nothing can be listed or watched.
func (r *resource) failed(err error) {
	r.update(func(s *Status) {
		s.Err = err
		if s.Since.IsZero() {
			s.Since = time.Now()
		}
	})
}

// update changes the status. The Tracker has the problems of the new status before Sync or
// Status returns it.
func (r *resource) update(change func(*Status)) {
	r.updating.Lock()
	defer r.updating.Unlock()
	s := r.status()
	change(&s)
	r.report(&s)
	r.set(s)
}

// report reports to the Tracker a problem with the kind of objects as a whole, if that changed.
func (r *resource) report(s *Status) {
	var problems []objects.Problem
	add := func(object objects.ObjectID, format string, args ...any) {
		problems = append(problems, objects.Problem{Source: s.Source, Object: object, Severity: objects.Warning,
			Message: fmt.Sprintf(format, args...)})
	}
	if s.Err != nil {
		what := "nothing is served before they are listed once"
		if s.Synced {
			what = "the last versions stay in use"
		}
		add(objects.ObjectID{}, "cannot be read from the API server since %s; %s: %v",
			s.Since.UTC().Format(time.RFC3339), what, s.Err)
	}
	if s.Synced && s.Objects == 0 && r.only != "" {
		add(objects.ObjectID{Kind: objects.KindNode, Name: r.only},
			"does not exist: no endpoint is local, this node's zone is not known, and nodeAddresses: primary takes "+
				"the interfaces' addresses; "+
				"set nodeName to the name of this node's Node object")
	}
	if slices.Equal(problems, r.reported) {
		return
	}
	r.reported = problems
	var b tracker.Batch
	b.Report(s.Source, problems)
	r.w.Tracker.Apply(&b)
}

// debugHandler logs every message of a library at level debug.
type debugHandler struct{ slog.Handler }

func (q debugHandler) Enabled(ctx context.Context, _ slog.Level) bool {
	return q.Handler.Enabled(ctx, slog.LevelDebug)
}

func (q debugHandler) Handle(ctx context.Context, r slog.Record) error {
	r.Level = slog.LevelDebug
	return q.Handler.Handle(ctx, r)
}

func (q debugHandler) WithAttrs(a []slog.Attr) slog.Handler {
	return debugHandler{q.Handler.WithAttrs(a)}
}

func (q debugHandler) WithGroup(name string) slog.Handler {
	return debugHandler{q.Handler.WithGroup(name)}
}

// firstFrame returns the line of a stack trace with the code that panicked.
func firstFrame(stack []byte) string {
	_, after, found := bytes.Cut(stack, []byte("panic("))
	if !found {
		after = stack
	}
	lines := bytes.Split(after, []byte("\n"))
	if len(lines) < 4 {
		return "an unknown place"
	}
	return string(bytes.TrimSpace(lines[3]))
}
