package allocate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"sluice.dev/sluice/allocate/pools"
	"sluice.dev/sluice/internal/kubewatch"
)

// controller is one term of a leader.
type controller struct {
	config Config
	log    *slog.Logger
	client kubernetes.Interface
	lease  holder
	events *kubewatch.Events

	patience time.Duration // fencePatience, or less in tests
	unfenced atomic.Bool   // the fence passed over a Service

	services, namespaces cache.Store
	queue                workqueue.TypedRateLimitingInterface[string]

	mu    sync.Mutex // guards what follows
	alloc pools.Allocator
	// waiting are Services that lack an address, or one of a family.
	waiting map[string]bool
	// written has what this process wrote, until the cache has that, too.
	written map[string]*corev1.Service
	// doubts has the version that writes were about of which nobody knows whether they happened.
	doubts map[string]string
	told   map[string]string // the last Event about a Service
	fights map[string]*fight // of Services that this process wrote
	nodes  map[string][]netip.Addr
	// nodesChanged, unless nil, is called when addresses of Nodes change that pools have.
	nodesChanged func()
	counts       counts
}

// holder is the lease, as far as writers need it.
type holder interface {
	valid() bool
	doubt()
}

// counts are for metrics.
type counts struct{ written, conflicts, failed int64 }

// reportingController is who writes our Events.
const reportingController = "sluice.dev/controller"

func serviceReference(s *corev1.Service) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: s.Namespace, Name: s.Name, UID: s.UID}
}

func newController(c Config, client kubernetes.Interface, l holder, e *kubewatch.Events) *controller {
	k := &controller{
		config: c, log: c.Log, client: client, lease: l, events: e, patience: fencePatience, queue: newQueue(),
		waiting: map[string]bool{}, written: map[string]*corev1.Service{}, doubts: map[string]string{},
		told: map[string]string{}, nodes: map[string][]netip.Addr{}, fights: map[string]*fight{},
	}
	k.alloc.FollowWaiting()
	return k
}

func newQueue() workqueue.TypedRateLimitingInterface[string] {
	fair := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[string]{Queue: &fairQueue{}})
	return workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[string](retryFirst, retryLast),
		workqueue.TypedRateLimitingQueueConfig[string]{DelayingQueue: workqueue.NewTypedDelayingQueueWithConfig(
			workqueue.TypedDelayingQueueConfig[string]{Queue: fair})})
}

// Pauses before a write is tried again.
const (
	retryFirst = 20 * time.Millisecond
	retryLast  = 30 * time.Second
)

// writeTimeout bounds one request.
const writeTimeout = 10 * time.Second

// ours reports whether a Service is to have its addresses from here.
func (c *controller) ours(s *corev1.Service) bool {
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return false
	}
	if s.Spec.LoadBalancerClass == nil {
		return c.config.Default
	}
	return *s.Spec.LoadBalancerClass == c.config.Class
}

// all returns the Services of the cache, the oldest first.
func (c *controller) all() []*corev1.Service {
	var list []*corev1.Service
	for _, o := range c.services.List() {
		if s, ok := o.(*corev1.Service); ok {
			list = append(list, s)
		}
	}
	pools.SortByAge(list)
	return list
}

// namespaceLabels returns nil while the namespace is not in the cache.
func (c *controller) namespaceLabels(s *corev1.Service) map[string]string {
	if o, there, err := c.namespaces.GetByKey(s.Namespace); err == nil && there {
		if n, ok := o.(*corev1.Namespace); ok {
			if n.Labels == nil {
				return map[string]string{}
			}
			return n.Labels
		}
	}
	return nil
}

// selectsNamespaces reports whether labels of namespaces decide about a pool.
func (c *controller) selectsNamespaces() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.alloc.Pools(), (*pools.Pool).SelectsNamespaces)
}

// setPools takes over pools, and those that cannot be read (poolSet), and claims what the Services
// have before anything is given.
func (c *controller) setPools(list, unreadable []*pools.Pool, services []*corev1.Service) {
	// Nobody gets an address while this holds the lock: Services are read before.
	readings := make([]reading, len(services))
	for i, s := range services {
		if c.ours(s) {
			readings[i] = c.read(s)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.alloc.SetPools(list, unreadable...)
	for i, s := range services {
		of := readings[i]
		if newer := c.newer(s); newer != nil {
			s, of = newer, c.read(newer)
		}
		if c.ours(s) {
			c.alloc.Release(othersKey(pools.KeyOf(s)))
			c.alloc.AdoptRequest(of.request, of.refusal, of.has)
			c.keepListed(s)
		} else {
			c.occupy(s)
		}
	}
}

// reading is what a Service asks for, and has.
type reading struct {
	request *pools.Request
	refusal *pools.Refusal
	has     []netip.Addr
}

func (c *controller) read(s *corev1.Service) reading {
	r, refusal := pools.RequestOf(s, c.namespaceLabels(s))
	return reading{r, refusal, pools.StatusOf(s)}
}

// keepListed keeps from all others what the status of a Service of ours lists and what it must not
// have any more: gateways serve that until the status is written.
func (c *controller) keepListed(s *corev1.Service) {
	key := pools.KeyOf(s)
	claimed, _ := c.alloc.Claimed(key)
	lost := slices.DeleteFunc(pools.StatusOf(s), func(a netip.Addr) bool { return slices.Contains(claimed, a) })
	if len(lost) == 0 { // nearly always: no texts are made
		c.alloc.Release(listedKey(key))
		return
	}
	c.alloc.Occupy(listedKey(key), "Service "+key+", whose status still lists it,", key, lost)
}

// listedKey is of the claim for what a status still lists.
func listedKey(key string) string { return "listed: " + key }

// occupy keeps the addresses of a Service that is not ours from all others.
func (c *controller) occupy(s *corev1.Service) {
	var has []netip.Addr
	if s.Spec.Type == corev1.ServiceTypeLoadBalancer {
		has = pools.StatusOf(s)
	}
	key := pools.KeyOf(s)
	c.alloc.Occupy(othersKey(key), fmt.Sprintf("Service %s, which another controller serves,", key), "", has)
}

// othersKey is of the claim for a Service that is not ours.
func othersKey(key string) string { return "not ours: " + key }

// newer returns what this process wrote of a Service, if the cache does not have that yet.
func (c *controller) newer(s *corev1.Service) *corev1.Service {
	written := c.written[pools.KeyOf(s)]
	if written == nil || written.UID != s.UID {
		return nil
	}
	n, err := resourceversion.CompareResourceVersion(s.ResourceVersion, written.ResourceVersion)
	if err == nil && n < 0 {
		return written
	}
	return nil
}

// work brings Services of the queue to what they must be, until ctx is done. name is of its
// heartbeat.
func (c *controller) work(ctx context.Context, name string) {
	beat := c.config.Beats.Add(name, writerBounds)
	defer c.config.Beats.Remove(beat)
	for {
		beat.Rest()
		key, shutdown := c.queue.Get()
		if shutdown || ctx.Err() != nil {
			return
		}
		beat.Beat()
		if err := c.process(ctx, key); err != nil && ctx.Err() == nil {
			c.log.Debug("a Service is tried again", "service", key, "error", err)
			c.queue.AddRateLimited(key)
		} else {
			c.queue.Forget(key)
		}
		c.queue.Done(key)
	}
}

// process brings one Service to what it must be.
func (c *controller) process(ctx context.Context, key string) error {
	o, there, err := c.services.GetByKey(key)
	if err != nil {
		return fmt.Errorf("cache: %w", err)
	}
	s, _ := o.(*corev1.Service)
	if !there || s == nil {
		c.gone(key)
		return nil
	}
	next, changed := c.decide(s)
	if !changed {
		return nil
	}
	wait, tell := c.mayWrite(s, time.Now())
	if wait > 0 {
		c.queue.AddAfter(key, wait)
		return nil
	}
	if tell {
		c.tellOfFight(ctx, s)
	}
	return c.write(ctx, next)
}

// gone forgets a Service that was deleted.
func (c *controller) gone(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.alloc.Forget(key)
	c.alloc.Release(othersKey(key))
	c.alloc.Release(listedKey(key))
	c.doubtsEnd(key)
	delete(c.waiting, key)
	delete(c.written, key)
	delete(c.told, key)
	delete(c.fights, key)
	c.wake()
}

// wake has the Services looked at again that may get what they lacked.
func (c *controller) wake() {
	for _, key := range c.alloc.Woken() {
		c.queue.Add(key)
	}
}

// decide returns what must be written.
func (c *controller) decide(s *corev1.Service) (next *corev1.Service, changed bool) {
	// A Service may have thousands of ports: all that needs no claims is done without the lock.
	labels := c.namespaceLabels(s)
	r, refusal := pools.RequestOf(s, labels)
	result, todo := c.allocate(s, r, refusal, labels != nil)
	switch todo {
	case write:
		return withResult(s, result, c.config.Identity)
	case clean:
		return withoutResult(s)
	}
	return s, false
}

// todo is what becomes of a status.
type todo int

const (
	leave todo = iota
	clean      // take out what was written
	write      // what was decided
)

// allocate decides what a Service has.
func (c *controller) allocate(
	s *corev1.Service, r *pools.Request, refusal *pools.Refusal, known bool,
) (result pools.Result, what todo) {
	key := r.Key
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.wake()
	if c.newer(s) != nil {
		return result, leave // the cache has it soon, and then it is looked at
	}
	delete(c.written, key)
	if version, there := c.doubts[key]; there && version != s.ResourceVersion {
		c.doubtsEnd(key) // a write about another version has happened, or cannot any more
	}
	if !c.ours(s) {
		c.alloc.Forget(key)
		c.alloc.Release(listedKey(key))
		c.occupy(s)
		if s.Spec.Type != corev1.ServiceTypeLoadBalancer {
			what = clean
		}
		delete(c.waiting, key)
		return result, what
	}
	c.alloc.Release(othersKey(key))
	if !known && slices.ContainsFunc(c.alloc.Pools(), (*pools.Pool).SelectsNamespaces) {
		c.alloc.Pass(key)
		return result, leave // looked at again when the namespace is known
	}
	result = c.alloc.ConvergeRequest(r, refusal, pools.StatusOf(s))
	if result.Keep {
		return result, leave
	}
	delete(c.waiting, key)
	c.keepListed(s)
	if result.Lacks {
		c.waiting[key] = true
	}
	c.noteNodes(&result)
	c.tell(s, result)
	return result, write
}

// tell writes an Event about what was decided, if that is new.
func (c *controller) tell(s *corev1.Service, r pools.Result) {
	key, text := pools.KeyOf(s), said(condition(r, "").Message)
	before, known := c.told[key]
	if before == text && known || c.fought(key, time.Now()) {
		return
	}
	c.told[key] = text
	about := serviceReference(s)
	for _, n := range r.Notes {
		c.events.Add(about, corev1.EventTypeWarning, string(n.Reason), "Allocate", n.Message)
	}
	switch {
	case r.Refusal != nil:
		c.events.Add(about, corev1.EventTypeWarning, string(r.Refusal.Reason), "Allocate", r.Refusal.Message)
	case len(r.Addresses) > 0 && !slices.Equal(r.Addresses, pools.StatusOf(s)):
		c.events.Add(about, corev1.EventTypeNormal, assigned, "Allocate", text)
	}
}

// unknownKey is of the claim that stands while nobody knows whether a write has happened.
func unknownKey(key string) string { return "unknown: " + key }

var errNotLeading = errors.New("the Lease is not good any more: nothing is written")

// write writes the status of a Service, if it is still the version that was decided about.
func (c *controller) write(ctx context.Context, s *corev1.Service) error {
	_, err := c.update(ctx, s)
	return err
}

// update returns the Service as written.
func (c *controller) update(ctx context.Context, s *corev1.Service) (*corev1.Service, error) {
	if s.ResourceVersion == "" {
		panic("allocate: a write without resourceVersion overwrites what is there: pass an object of the API server")
	}
	// A request that was sent is waited for, so that its result is known.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	// After this nothing but the request: what decides is that s was read before.
	if !c.lease.valid() {
		return nil, errNotLeading
	}
	after, err := c.client.CoreV1().Services(s.Namespace).UpdateStatus(ctx, s, metav1.UpdateOptions{})
	return after, c.account(s, after, err)
}

// account keeps what a write changed.
func (c *controller) account(s, after *corev1.Service, err error) error {
	key := pools.KeyOf(s)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil:
		c.counts.written++
		c.wrote(s)
		c.written[key] = after
		c.doubtsEnd(key)
		if after != nil && c.ours(after) {
			c.keepListed(after)
		}
		c.wake()
		return nil
	case apierrors.IsConflict(err):
		c.counts.conflicts++ // earlier doubts end when the cache shows what is there now
	case refused(err):
		c.counts.failed++
		c.log.Warn("a Service's status cannot be written", "service", key, "error", err)
	default:
		c.counts.failed++
		c.lease.doubt()
		// It may have happened, or may yet: its addresses are nobody else's until the Service
		// changes.
		c.isDoubtful(s)
		c.log.Warn("a Service's status was perhaps not written; it is tried again", "service", key, "error", err)
	}
	return fmt.Errorf("write the status of Service %s: %w", key, err)
}

// isDoubtful keeps what may have been written, beside what earlier writes about the same version
// may have.
func (c *controller) isDoubtful(s *corev1.Service) {
	key, has := pools.KeyOf(s), pools.StatusOf(s)
	if c.doubts[key] == s.ResourceVersion {
		has = append(has, c.alloc.Occupied(unknownKey(key))...)
	}
	c.doubts[key] = s.ResourceVersion
	slices.SortFunc(has, netip.Addr.Compare)
	c.alloc.Occupy(unknownKey(key), "Service "+key+", to whose status it was perhaps written,", key,
		slices.Compact(has))
	c.wake()
}

func (c *controller) doubtsEnd(key string) {
	delete(c.doubts, key)
	c.alloc.Release(unknownKey(key))
}

// refused reports whether an API server has said that it did not write.
func refused(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code >= http.StatusBadRequest && code < http.StatusInternalServerError && code != http.StatusRequestTimeout
}
