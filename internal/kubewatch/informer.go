// Package kubewatch has the code that controllers with client-go informers share: listing and
// watching, queries for kinds that may not be installed, and Events.
package kubewatch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/tools/cache"

	"sluice.dev/sluice/internal/heartbeat"
)

// NewInformer returns an informer of the objects that list and follow return. If name is not empty,
// it watches only the object with that name: the API server authorizes such a request by the name
// (resourceNames of a Role). The informer reads its first list from the API server's storage, not
// from its watch cache: the cache may be older, and an address whose claim is missing in it would
// be given to a second Service. Stored objects have no managedFields.
func NewInformer[L runtime.Object](
	example runtime.Object, name string,
	list func(context.Context, metav1.ListOptions) (L, error),
	follow func(context.Context, metav1.ListOptions) (watch.Interface, error),
) (*Informer, error) {
	only := ""
	if name != "" {
		only = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	}
	i := &Informer{}
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			if o.ResourceVersion == "0" {
				o.ResourceVersion = ""
			}
			o.FieldSelector = only
			i.begin()
			objects, err := list(ctx, o)
			return objects, i.note(ctx, err, false)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = only
			i.begin()
			events, err := follow(ctx, o)
			return events, i.note(ctx, err, true)
		},
	}
	i.SharedIndexInformer = cache.NewSharedIndexInformer(lw, example, 0, cache.Indexers{})
	return i, i.SetTransform(withoutManagedFields)
}

// Informer is an informer that knows since when its objects cannot be read.
type Informer struct {
	cache.SharedIndexInformer

	mu    sync.Mutex // guards the fields below
	err   error      // why there is no watch; nil: the last request succeeded, or none has ended
	since time.Time  // of err
	begun time.Time  // when the request began that has no answer yet; zero: none
}

// tolerated is how long objects may be unread before that counts: an API server that restarts
// refuses requests for some seconds.
const tolerated = 5 * time.Second

var errNoAnswer = errors.New("the API server does not answer")

// Failing returns since when objects cannot be read, and why; nil: they can, or could until a few
// seconds ago. Any goroutine may call it.
func (i *Informer) Failing() (since time.Time, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if since, err = i.since, i.err; err == nil && !i.begun.IsZero() {
		since, err = i.begun, errNoAnswer
	}
	if err == nil || time.Since(since) < tolerated {
		return time.Time{}, nil
	}
	return since, err
}

// Unread describes objects for which Failing returned an error.
func Unread(objects string, since time.Time, err error) string {
	return fmt.Sprintf("%s cannot be read since %s: %v", objects, since.UTC().Format(time.RFC3339), err)
}

// begin records that a request begins: an informer sends one after the other.
func (i *Informer) begin() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.begun = time.Now()
}

// note records the result of a request. Only an open watch shows that no event is missed. Two
// errors make client-go list instead and are no failures: an expired watch, and Invalid where lists
// are not streamed (servers before 1.32).
func (i *Informer) note(ctx context.Context, err error, watching bool) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.begun = time.Time{}
	switch {
	case err == nil:
		if watching {
			i.err, i.since = nil, time.Time{}
		}
	case ctx.Err() != nil || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) ||
		watching && apierrors.IsInvalid(err):
	default:
		if i.err == nil {
			i.since = time.Now()
		}
		i.err = err
	}
	return err
}

// Beating returns handlers that call h's handlers and report a heartbeat. An informer calls its
// handlers one after another, so one that does not return blocks all later events.
func Beating(b *heartbeat.Beat, h cache.ResourceEventHandlerFuncs) cache.ResourceEventHandlerFuncs {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) {
			defer beat(b)()
			h.AddFunc(o)
		},
		UpdateFunc: func(before, now any) {
			defer beat(b)()
			h.UpdateFunc(before, now)
		},
		DeleteFunc: func(o any) {
			defer beat(b)()
			h.DeleteFunc(o)
		},
	}
}

func beat(b *heartbeat.Beat) (rest func()) {
	b.Beat()
	return b.Rest
}

// Patience is how long lists must fail before the failure counts as persistent: an API server that
// starts rejects all requests until it has read its roles.
const Patience = 2 * time.Second

// OnListError calls failed, from one goroutine, whenever the first list of an informer fails.
// persistent: lists have failed for Patience. changed: the error differs from the previous one. The
// informer retries for ever, at first after 0.8 s, later once a minute, and HasSynced does not
// report the failure. failed must log the error: client-go's own log of it, one line per attempt,
// is off until the first list has succeeded. Call OnListError before the informer runs.
func OnListError(i cache.SharedIndexInformer, failed func(err error, persistent, changed bool)) error {
	var since time.Time
	lastError := ""
	return i.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		if ctx.Err() != nil || i.HasSynced() {
			cache.DefaultWatchErrorHandler(ctx, r, err)
			return
		}
		if since.IsZero() {
			since = time.Now()
		}
		changed := err.Error() != lastError
		lastError = err.Error()
		failed(err, time.Since(since) >= Patience, changed)
	})
}

// withoutManagedFields halves the memory that an object takes.
func withoutManagedFields(o any) (any, error) {
	if m, ok := o.(metav1.Object); ok {
		m.SetManagedFields(nil)
	}
	return o, nil
}

// Served reports whether the API server serves a kind. It does not use the discovery client's own
// methods: they cannot be cancelled and block for half a minute.
func Served(ctx context.Context, client discovery.DiscoveryInterface, kind schema.GroupVersionResource) (bool, error) {
	path := "/apis/" + kind.GroupVersion().String()
	var list metav1.APIResourceList
	err := client.RESTClient().Get().AbsPath(path).Do(ctx).Into(&list)
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("ask the API server for %s: %w", kind.GroupResource(), err)
	}
	is := func(r metav1.APIResource) bool { return r.Name == kind.Resource }
	return slices.ContainsFunc(list.APIResources, is), nil
}
