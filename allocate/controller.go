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

// controller allocates addresses for one term of a leader.
type controller struct {
	config Config
	log    *slog.Logger
	client kubernetes.Interface
	lease  holder
	events *kubewatch.Events

	fenceTimeout time.Duration // the constant, or less in tests
	unfenced     atomic.Bool   // the fence skipped a Service

	services, namespaces cache.Store
	queue                workqueue.TypedRateLimitingInterface[string]

	mu    sync.Mutex // guards the fields below
	alloc pools.Allocator
	// waiting are Services that have no address, or none of one family.
	waiting map[string]bool
	// written has each status that this process wrote, until the cache has it.
	written map[string]*corev1.Service
	// unknownWrites has, by Service, the resourceVersion that writes with unknown results named.
	unknownWrites map[string]string
	reported      map[string]string    // text of the last Event about a Service
	conflicts     map[string]*conflict // by Service that this process wrote
	nodes         map[string][]netip.Addr
	// nodesChanged, unless nil, is called when addresses of Nodes inside of pools change.
	nodesChanged func()
	counts       counts
}

// holder is the part of the lease that writers need.
type holder interface {
	valid() bool
	doubt()
}

// counts are for metrics.
type counts struct{ written, conflicts, failed int64 }

// reportingController is the reporter of the controller's Events.
const reportingController = "sluice.dev/controller"

func serviceReference(s *corev1.Service) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: s.Namespace, Name: s.Name, UID: s.UID}
}

func newController(c Config, client kubernetes.Interface, l holder, e *kubewatch.Events) *controller {
	k := &controller{
		config: c, log: c.Log, client: client, lease: l, events: e, fenceTimeout: fenceTimeout, queue: newQueue(),
		waiting: map[string]bool{}, written: map[string]*corev1.Service{}, unknownWrites: map[string]string{},
		reported: map[string]string{}, nodes: map[string][]netip.Addr{}, conflicts: map[string]*conflict{},
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

// Bounds of the pause before a failed write is retried.
const (
	retryFirst = 20 * time.Millisecond
	retryLast  = 30 * time.Second
)

// writeTimeout bounds one request.
const writeTimeout = 10 * time.Second

// ours reports whether this controller allocates addresses for a Service.
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

// namespaceLabels returns the labels of a Service's namespace; nil if the cache does not have it.
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

// selectsNamespaces reports whether a pool depends on labels of namespaces.
func (c *controller) selectsNamespaces() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.alloc.Pools(), (*pools.Pool).SelectsNamespaces)
}

// setPools replaces the pools, readable and unreadable ones (poolSet), and claims the addresses
// that Services have before any is given.
func (c *controller) setPools(list, unreadable []*pools.Pool, services []*corev1.Service) {
	// Parse the Services before locking: no address is given while the lock is held.
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
			c.reserveOther(s)
		}
	}
}

// reading is a parsed Service: its request and the addresses in its status.
type reading struct {
	request *pools.Request
	refusal *pools.Refusal
	has     []netip.Addr
}

func (c *controller) read(s *corev1.Service) reading {
	r, refusal := pools.RequestOf(s, c.namespaceLabels(s))
	return reading{r, refusal, pools.StatusOf(s)}
}

// keepListed reserves addresses that the status of a Service still lists although the Service may
// no longer have them: gateways serve them until the status is written.
func (c *controller) keepListed(s *corev1.Service) {
	key := pools.KeyOf(s)
	claimed, _ := c.alloc.Claimed(key)
	lost := slices.DeleteFunc(pools.StatusOf(s), func(a netip.Addr) bool { return slices.Contains(claimed, a) })
	if len(lost) == 0 { // the usual case: do not format a message
		c.alloc.Release(listedKey(key))
		return
	}
	c.alloc.Reserve(listedKey(key), "Service "+key+", whose status still lists it,", key, lost)
}

// listedKey is the key of reservations by keepListed.
func listedKey(key string) string { return "listed: " + key }

// reserveOther reserves the addresses of a Service that another controller serves.
func (c *controller) reserveOther(s *corev1.Service) {
	var has []netip.Addr
	if s.Spec.Type == corev1.ServiceTypeLoadBalancer {
		has = pools.StatusOf(s)
	}
	key := pools.KeyOf(s)
	c.alloc.Reserve(othersKey(key), fmt.Sprintf("Service %s, which another controller serves,", key), "", has)
}

// othersKey is the key of reservations by reserveOther.
func othersKey(key string) string { return "not ours: " + key }

// newer returns the Service as this process wrote it, if the cache still has an older version.
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

// work processes Services from the queue until ctx is done. name is the name of its heartbeat.
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

// process allocates addresses for one Service and writes its status if it changed.
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
	wait, report := c.mayWrite(s, time.Now())
	if wait > 0 {
		c.queue.AddAfter(key, wait)
		return nil
	}
	if report {
		c.reportConflict(ctx, s)
	}
	return c.write(ctx, next)
}

// gone drops the state of a deleted Service.
func (c *controller) gone(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.alloc.Forget(key)
	c.alloc.Release(othersKey(key))
	c.alloc.Release(listedKey(key))
	c.releaseUnknown(key)
	delete(c.waiting, key)
	delete(c.written, key)
	delete(c.reported, key)
	delete(c.conflicts, key)
	c.wake()
}

// wake enqueues the Services that may now get an address that they lacked.
func (c *controller) wake() {
	for _, key := range c.alloc.Woken() {
		c.queue.Add(key)
	}
}

// decide returns the Service with the status that must be written, and whether it differs.
func (c *controller) decide(s *corev1.Service) (next *corev1.Service, changed bool) {
	// A Service may have thousands of ports: parse it without the lock.
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

// todo is the change that a status needs.
type todo int

const (
	leave todo = iota
	clean      // remove the addresses and the condition
	write      // write the decision
)

// allocate decides which addresses a Service has.
func (c *controller) allocate(
	s *corev1.Service, r *pools.Request, refusal *pools.Refusal, known bool,
) (result pools.Result, what todo) {
	key := r.Key
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.wake()
	if c.newer(s) != nil {
		return result, leave // the next event of the cache enqueues the Service again
	}
	delete(c.written, key)
	if version, there := c.unknownWrites[key]; there && version != s.ResourceVersion {
		c.releaseUnknown(key) // no pending write can succeed: they name the older version
	}
	if !c.ours(s) {
		c.alloc.Forget(key)
		c.alloc.Release(listedKey(key))
		c.reserveOther(s)
		if s.Spec.Type != corev1.ServiceTypeLoadBalancer {
			what = clean
		}
		delete(c.waiting, key)
		return result, what
	}
	c.alloc.Release(othersKey(key))
	if !known && slices.ContainsFunc(c.alloc.Pools(), (*pools.Pool).SelectsNamespaces) {
		c.alloc.Pass(key)
		return result, leave // enqueued again when the namespace is in the cache
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
	c.report(s, result)
	return result, write
}

// report adds an Event about a decision that differs from the last reported one.
func (c *controller) report(s *corev1.Service, r pools.Result) {
	key, text := pools.KeyOf(s), withoutLeader(condition(r, "").Message)
	before, known := c.reported[key]
	if before == text && known || c.inConflict(key, time.Now()) {
		return
	}
	c.reported[key] = text
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

// unknownKey is the key of reservations for writes whose result is unknown.
func unknownKey(key string) string { return "unknown: " + key }

var errNotLeading = errors.New("the Lease is no longer valid: nothing is written")

// write writes the status of a Service unless the Service has changed since the decision.
func (c *controller) write(ctx context.Context, s *corev1.Service) error {
	_, err := c.update(ctx, s)
	return err
}

// update is write, and returns the Service as written.
func (c *controller) update(ctx context.Context, s *corev1.Service) (*corev1.Service, error) {
	if s.ResourceVersion == "" {
		panic("allocate: a write without resourceVersion overwrites what is there: pass an object of the API server")
	}
	// Wait for a request that was sent, even if ctx ends: its result must be known.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	// No code but the request may follow: the fence relies on s having been read before this check.
	if !c.lease.valid() {
		return nil, errNotLeading
	}
	after, err := c.client.CoreV1().Services(s.Namespace).UpdateStatus(ctx, s, metav1.UpdateOptions{})
	return after, c.account(s, after, err)
}

// account records the result of a write.
func (c *controller) account(s, after *corev1.Service, err error) error {
	key := pools.KeyOf(s)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil:
		c.counts.written++
		c.wrote(s)
		c.written[key] = after
		c.releaseUnknown(key)
		if after != nil && c.ours(after) {
			c.keepListed(after)
		}
		c.wake()
		return nil
	case apierrors.IsConflict(err):
		c.counts.conflicts++ // allocate releases the unknown writes when the cache has the new version
	case refused(err):
		c.counts.failed++
		c.log.Warn("a Service's status cannot be written", "service", key, "error", err)
	default:
		c.counts.failed++
		c.lease.doubt()
		// The write may have succeeded or may still succeed: reserve its addresses until the
		// Service changes.
		c.reserveUnknown(s)
		c.log.Warn("a Service's status was perhaps not written; it is tried again", "service", key, "error", err)
	}
	return fmt.Errorf("write the status of Service %s: %w", key, err)
}

// reserveUnknown reserves the addresses of a write whose result is unknown. It keeps the addresses
// of earlier such writes of the same version.
func (c *controller) reserveUnknown(s *corev1.Service) {
	key, has := pools.KeyOf(s), pools.StatusOf(s)
	if c.unknownWrites[key] == s.ResourceVersion {
		has = append(has, c.alloc.Reserved(unknownKey(key))...)
	}
	c.unknownWrites[key] = s.ResourceVersion
	slices.SortFunc(has, netip.Addr.Compare)
	c.alloc.Reserve(unknownKey(key), "Service "+key+", to whose status it was perhaps written,", key,
		slices.Compact(has))
	c.wake()
}

func (c *controller) releaseUnknown(key string) {
	delete(c.unknownWrites, key)
	c.alloc.Release(unknownKey(key))
}

// refused reports whether the API server answered that it did not write (4xx, except a timeout).
func refused(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code >= http.StatusBadRequest && code < http.StatusInternalServerError && code != http.StatusRequestTimeout
}
