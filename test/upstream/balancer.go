package upstream

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// finalizer is the finalizer that a cloud's controller puts on a Service, to learn of its end
// (k8s.io/cloud-provider, service/helpers, LoadBalancerCleanupFinalizer).
const finalizer = "service.kubernetes.io/load-balancer-cleanup"

// Balancer writes the status of Services of type LoadBalancer, as the controller of a cloud does
// (k8s.io/cloud-provider, controllers/service): an address of a pool and the finalizer, and takes
// both back when the Service is of another type or is deleted. The addresses themselves are
// announced by nobody: the network that the tests run in sends them to the gateway.
type Balancer struct {
	client kubernetes.Interface
	pool   netip.Prefix
	store  cache.Store // of Services; the informer's

	mu    sync.Mutex
	taken map[netip.Addr]string // by namespace/name
}

// newBalancer makes a balancer that reads Services from the store of an informer.
func newBalancer(client kubernetes.Interface, pool netip.Prefix, store cache.Store) *Balancer {
	return &Balancer{client: client, pool: pool.Masked(), store: store, taken: map[netip.Addr]string{}}
}

// retryAfter is how long a Service waits after an error, which is a conflict with another writer.
const retryAfter = 200 * time.Millisecond

// run brings each Service whose key is in the queue to its desired state, until the queue is shut
// down.
func (b *Balancer) run(ctx context.Context, queue workqueue.TypedDelayingInterface[string]) {
	for {
		key, down := queue.Get()
		if down {
			return
		}
		if err := b.sync(ctx, key); err != nil && ctx.Err() == nil {
			queue.AddAfter(key, retryAfter)
		}
		queue.Done(key)
	}
}

// sync brings one Service to its desired state. After an error it must be tried again.
func (b *Balancer) sync(ctx context.Context, key string) error {
	o, exists, err := b.store.GetByKey(key)
	if err != nil {
		return err
	}
	if !exists {
		b.release(key)
		return nil
	}
	s := o.(*corev1.Service).DeepCopy() // the store's is shared
	if wanted(s) {
		return b.provide(ctx, key, s)
	}
	return b.withdraw(ctx, key, s)
}

// wanted reports whether a Service asks the default controller for a load balancer.
func wanted(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeLoadBalancer && s.Spec.LoadBalancerClass == nil &&
		s.DeletionTimestamp == nil
}

// provide writes the finalizer first, so that no address is lost with a Service.
func (b *Balancer) provide(ctx context.Context, key string, s *corev1.Service) error {
	services := b.client.CoreV1().Services(s.Namespace)
	if !slices.Contains(s.Finalizers, finalizer) {
		s.Finalizers = append(s.Finalizers, finalizer)
		next, err := services.Update(ctx, s, metav1.UpdateOptions{})
		if err != nil {
			return ignoreGone(err)
		}
		s = next
	}
	if len(s.Status.LoadBalancer.Ingress) > 0 {
		return nil
	}
	address, err := b.take(key)
	if err != nil {
		return err
	}
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: address.String()}}
	_, err = services.UpdateStatus(ctx, s, metav1.UpdateOptions{})
	return ignoreGone(err)
}

// withdraw takes the address away before the finalizer, because the Service may be waiting for the
// finalizer's removal.
func (b *Balancer) withdraw(ctx context.Context, key string, s *corev1.Service) error {
	services := b.client.CoreV1().Services(s.Namespace)
	if len(s.Status.LoadBalancer.Ingress) > 0 {
		s.Status.LoadBalancer = corev1.LoadBalancerStatus{}
		next, err := services.UpdateStatus(ctx, s, metav1.UpdateOptions{})
		if err != nil {
			return ignoreGone(err)
		}
		s = next
	}
	if i := slices.Index(s.Finalizers, finalizer); i >= 0 {
		s.Finalizers = slices.Delete(s.Finalizers, i, i+1)
		if _, err := services.Update(ctx, s, metav1.UpdateOptions{}); err != nil {
			return ignoreGone(err)
		}
	}
	b.release(key)
	return nil
}

// ignoreGone drops the error that means that a Service is deleted: there is nothing to do for it.
func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// take returns the address that a Service has, or the first of the pool that nobody has.
func (b *Balancer) take(key string) (netip.Addr, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for a, k := range b.taken {
		if k == key {
			return a, nil
		}
	}
	for a := b.pool.Addr().Next(); b.pool.Contains(a); a = a.Next() {
		if _, taken := b.taken[a]; !taken {
			b.taken[a] = key
			return a, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("no address of %s is left for %s", b.pool, key)
}

func (b *Balancer) release(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for a, k := range b.taken {
		if k == key {
			delete(b.taken, a)
		}
	}
}
