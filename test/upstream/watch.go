package upstream

import (
	"context"
	"fmt"
	"net/netip"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// Watch is the tests' view of Services: one informer for the Balancer and for Names.
type Watch struct {
	Balancer *Balancer

	services cache.Store
	cancel   context.CancelFunc
	factory  informers.SharedInformerFactory
	done     chan struct{}
}

// StartWatch returns when all Services that there are have been read. VIPs are given out of the
// pool.
func StartWatch(ctx context.Context, client kubernetes.Interface, pool netip.Prefix) (*Watch, error) {
	ctx, cancel := context.WithCancel(ctx)
	w := &Watch{cancel: cancel, done: make(chan struct{}), factory: informers.NewSharedInformerFactory(client, 0)}
	services := w.factory.Core().V1().Services().Informer()
	w.services = services.GetStore()
	queue := workqueue.NewTypedDelayingQueue[string]()
	add := func(o any) {
		if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(o); err == nil {
			queue.Add(key)
		}
	}
	if _, err := services.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: add, DeleteFunc: add, UpdateFunc: func(_, o any) { add(o) },
	}); err != nil {
		cancel()
		return nil, fmt.Errorf("upstream: %w", err)
	}
	w.Balancer = newBalancer(client, pool, w.services)
	w.factory.StartWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), services.HasSynced) {
		cancel()
		return nil, fmt.Errorf("upstream: read the Services: %w", ctx.Err())
	}
	go func() {
		defer close(w.done)
		w.Balancer.run(ctx, queue)
	}()
	context.AfterFunc(ctx, queue.ShutDown)
	return w, nil
}

// Close ends it and waits for it.
func (w *Watch) Close() {
	w.cancel()
	<-w.done
	w.factory.Shutdown()
}
