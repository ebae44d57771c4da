package allocate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"

	"sluice.dev/sluice/allocate/pools"
	"sluice.dev/sluice/internal/heartbeat"
	"sluice.dev/sluice/internal/kubewatch"
	"sluice.dev/sluice/internal/wake"
)

// Config configures Run.
type Config struct {
	Client *rest.Config
	Log    *slog.Logger
	// Namespace and Lease name the Lease that the leader holds. Identity must be unique to the
	// process, also after a restart.
	Namespace, Lease, Identity string
	// LeaseDuration is how long other processes wait for a silent leader.
	LeaseDuration time.Duration
	// Class is the loadBalancerClass to serve. Default: also serve Services without a class.
	Class   string
	Default bool
	// MetalLB is the namespace whose IPAddressPools of metallb.io are also read, if the API server
	// has that kind; empty: none. MetalLB itself reads only the ones in its own namespace.
	MetalLB string
	// Workers is how many Services are written concurrently; 0 is DefaultWorkers.
	Workers int
	// Metrics, unless nil, shows the current term.
	Metrics *Metrics
	// Beats, unless nil, gets the heartbeats of the election, of the term and of its workers. A
	// leader does not renew the Lease while one of them requests a restart.
	Beats *heartbeat.Set
}

// DefaultWorkers is enough for an API server that answers within milliseconds.
const DefaultWorkers = 8

// Intervals.
const (
	// askEvery is the interval of queries for kinds that are not installed.
	askEvery = 10 * time.Second
	// gather is how long changes of pools are collected before the pools are read.
	gather = 100 * time.Millisecond
)

// UserAgent identifies this program to the API server; it is the manager of the fields it writes.
const UserAgent = "sluice-controller"

// Run leads whenever it holds the Lease, until ctx is done; then it returns nil. It returns
// ErrLeaseLost when it must stop leading; the process must end then.
func Run(ctx context.Context, c Config) error {
	if c.Workers == 0 {
		c.Workers = DefaultWorkers
	}
	c.Client = rest.CopyConfig(c.Client)
	c.Client.UserAgent = UserAgent
	c.Client.QPS = -1 // Workers is the bound
	c.Client.WarningHandler = rest.NoWarnings{}
	client, err := kubernetes.NewForConfig(c.Client)
	if err != nil {
		return fmt.Errorf("API server %s: %w", c.Client.Host, err)
	}
	dynamicClient, err := dynamic.NewForConfig(c.Client)
	if err != nil {
		return fmt.Errorf("API server %s: %w", c.Client.Host, err)
	}
	l := &lease{renewWithin: c.LeaseDuration * 2 / 3, now: time.Now, stalled: c.Beats.Dead,
		beat: c.Beats.Add("election", electionBounds(c.LeaseDuration)), Interface: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: c.Lease}, Client: client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: c.Identity},
		}}
	return elect(ctx, c, l, func(ctx context.Context) error { return lead(ctx, c, client, dynamicClient, l) })
}

// electionBounds returns the heartbeat bounds of the election. A leader that is silent for twice
// the Lease's duration has lost it. Between two requests for the Lease are at most 4/15 of the
// duration, and a request times out after 2/3 of it.
func electionBounds(d time.Duration) heartbeat.Bounds {
	return heartbeat.Bounds{Unready: 2 * d, Restart: 2*d + time.Minute}
}

// writerBounds: a worker sends at most two requests for a Service, with writeTimeout each.
var writerBounds = heartbeat.Bounds{Unready: 3 * writeTimeout, Restart: 3*writeTimeout + time.Minute}

// elect waits for the Lease and runs a term while it is held. It releases the Lease only after the
// term has ended, and so after the last write.
func elect(ctx context.Context, c Config, l *lease, term func(context.Context) error) error {
	election, stopElection := context.WithCancel(context.WithoutCancel(ctx))
	defer stopElection()
	ended := make(chan error, 1)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: l, LeaseDuration: c.LeaseDuration, RenewDeadline: l.renewWithin, RetryPeriod: c.LeaseDuration * 2 / 15,
		ReleaseOnCancel: true, Name: c.Lease,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(held context.Context) {
				held, cancel := context.WithCancel(held)
				defer cancel()
				defer context.AfterFunc(ctx, cancel)()
				err := term(held)
				l.end()
				ended <- err
				stopElection()
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("lease: %w", err)
	}
	defer context.AfterFunc(ctx, func() {
		if !l.hasLed() {
			stopElection()
		}
	})()
	elector.Run(klog.NewContext(election, logr.FromSlogHandler(c.Log.Handler())))
	if !l.hasLed() {
		return nil // ctx is done
	}
	if stalled := l.dead(); len(stalled) > 0 && len(ended) == 0 {
		// The term may never end. It cannot write any more, and the Lease was not released.
		return fmt.Errorf("%w, as this one has stalled: %s", ErrLeaseLost, strings.Join(stalled, "; "))
	}
	if err := <-ended; ctx.Err() == nil {
		if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, errNotLeading) {
			err = ErrLeaseLost
		}
		return err
	}
	return nil
}

// lead runs a term: it returns when ctx is done and no more writes can follow.
func lead(ctx context.Context, c Config, client kubernetes.Interface, other dynamic.Interface, l *lease) error {
	c.Log.Info("this process leads", "lease", c.Namespace+"/"+c.Lease, "identity", c.Identity, "handed over",
		l.handedOver())
	e := kubewatch.NewEvents(client, c.Log, reportingController, c.Identity)
	k := newController(c, client, l, e)
	p := &poolSource{config: c, client: client, dynamic: other, changed: wake.NewFlag(),
		set: poolSet{report: func(about corev1.ObjectReference, reason, note string) {
			e.Add(about, corev1.EventTypeWarning, reason, "ReadPool", note)
		}, nodesIn: k.nodesIn}}
	k.nodesChanged = p.changed.Raise
	defer c.Metrics.leads(nil)
	c.Metrics.waitsFor("Services and Namespaces are not listed")
	var running sync.WaitGroup
	defer running.Wait()
	defer k.queue.ShutDown()
	running.Go(func() { e.Run(ctx) })
	labelsChanged := func() {
		if k.selectsNamespaces() {
			p.changed.Raise()
		}
	}
	if err := k.start(ctx, &running, labelsChanged); err != nil {
		return err
	}
	c.Metrics.waitsFor("Nodes are not listed")
	if err := k.followNodes(ctx, &running); err != nil {
		return err
	}
	c.Metrics.waitsFor("pools are not listed")
	if err := p.start(ctx, &running); err != nil {
		return err
	}
	services := k.all()
	if !l.handedOver() {
		var err error
		begin := time.Now()
		c.Metrics.waitsFor("each Service is written once, so that no write of a previous leader can succeed")
		l.doubt()
		if services, err = k.fence(ctx, services); err != nil {
			return err
		}
		if !k.unfenced.Load() {
			l.trust()
			c.Log.Info("every Service is written: no write of a previous leader can succeed", "services", len(services),
				"took", time.Since(begin))
		}
	}
	term := c.Beats.Add("term of the leader", heartbeat.DefaultBounds)
	defer c.Beats.Remove(term)
	term.Beat()
	pools.SortByAge(services)
	list, unreadable := p.read()
	k.setPools(list, unreadable, services)
	c.Metrics.leads(k)
	k.enqueue()
	for i := range c.Workers {
		running.Go(func() { k.work(ctx, fmt.Sprintf("writer %d of Services", i)) })
	}
	for {
		term.Rest()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.changed:
			term.Beat()
			wake.After(ctx, gather)
			list, unreadable = p.read()
			k.setPools(list, unreadable, k.all())
			k.enqueue()
		}
	}
}

// beating adds the heartbeat of the reader of some objects to handlers.
func (c *controller) beating(objects string, h cache.ResourceEventHandlerFuncs) cache.ResourceEventHandler {
	return kubewatch.Beating(c.config.Beats.Add("reader of "+objects, heartbeat.DefaultBounds), h)
}

// start fills the caches of Services and namespaces.
func (c *controller) start(ctx context.Context, running *sync.WaitGroup, labelsChanged func()) error {
	services, err := newServices(c.client)
	if err != nil {
		return err
	}
	namespaces, err := newNamespaces(c.client)
	if err != nil {
		return err
	}
	c.config.Metrics.reads("Services", services)
	c.config.Metrics.reads("Namespaces", namespaces)
	c.services, c.namespaces = services.GetStore(), namespaces.GetStore()
	enqueue := func(o any) {
		if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(o); err == nil {
			c.queue.Add(key)
		}
	}
	served, err := services.AddEventHandler(c.beating("Services", cache.ResourceEventHandlerFuncs{
		AddFunc: enqueue, UpdateFunc: func(_, o any) { enqueue(o) }, DeleteFunc: enqueue,
	}))
	if err != nil {
		return fmt.Errorf("follow Services: %w", err)
	}
	if _, err = namespaces.AddEventHandler(c.beating("Namespaces", cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { labelsChanged() }, DeleteFunc: func(any) {}, UpdateFunc: func(before, after any) {
			b, _ := before.(*corev1.Namespace)
			a, _ := after.(*corev1.Namespace)
			if b == nil || a == nil || !maps.Equal(a.Labels, b.Labels) {
				labelsChanged()
			}
		},
	})); err != nil {
		return fmt.Errorf("follow namespaces: %w", err)
	}
	running.Go(func() { services.RunWithContext(ctx) })
	running.Go(func() { namespaces.RunWithContext(ctx) })
	if !cache.WaitForCacheSync(ctx.Done(), served.HasSynced, namespaces.HasSynced) {
		return ctx.Err()
	}
	return nil
}

// enqueue enqueues all Services, the oldest first.
func (c *controller) enqueue() {
	for _, s := range c.all() {
		c.queue.Add(pools.KeyOf(s))
	}
}

// poolSource reads the objects of pools.
type poolSource struct {
	config  Config
	client  kubernetes.Interface
	dynamic dynamic.Interface
	changed wake.Flag

	mu     sync.Mutex // guards stores and unlisted
	stores []cache.Store
	// unlisted: the API server may have pools of MetalLB, but they cannot be listed.
	unlisted bool
	set      poolSet // used only by the term's goroutine
}

func (p *poolSource) read() (list, unreadable []*pools.Pool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var objects []*unstructured.Unstructured
	for _, s := range p.stores {
		for _, o := range s.List() {
			if u, ok := o.(*unstructured.Unstructured); ok {
				objects = append(objects, u)
			}
		}
	}
	list, unreadable = p.set.read(objects)
	if p.unlisted {
		unreadable = append(unreadable, pools.Unlisted(p.config.MetalLB))
	}
	return list, unreadable
}

// start returns when all pools are known, except pools of MetalLB that cannot be listed. MetalLB's
// kind may also be installed later.
func (p *poolSource) start(ctx context.Context, running *sync.WaitGroup) error {
	for first := true; ; first = false {
		there, err := kubewatch.Served(ctx, p.client.Discovery(), addressPools)
		if there {
			break
		}
		p.waits(addressPools, "the API server does not have the kind", err)
		if first || err != nil {
			p.config.Log.Warn("the API server has no AddressPools; no address is given until it does: install the "+
				"CustomResourceDefinition of the chart", "kind", addressPools.GroupResource(), "error", err)
		}
		if !wake.After(ctx, askEvery) {
			return ctx.Err()
		}
	}
	if err := p.follow(ctx, running, addressPools, ""); err != nil || p.config.MetalLB == "" {
		return err
	}
	there, err := kubewatch.Served(ctx, p.client.Discovery(), ipAddressPools)
	for ; err != nil; there, err = kubewatch.Served(ctx, p.client.Discovery(), ipAddressPools) {
		p.waits(ipAddressPools, "", err)
		p.config.Log.Warn("cannot find out whether pools of MetalLB exist; no address is given until that succeeds",
			"error", err)
		if !wake.After(ctx, askEvery) {
			return ctx.Err()
		}
	}
	if there {
		return p.follow(ctx, running, ipAddressPools, p.config.MetalLB)
	}
	running.Go(func() { p.expect(ctx, running) })
	return nil
}

// waits reports that the leader gives no addresses until a kind can be listed: why, or an error.
func (p *poolSource) waits(kind schema.GroupVersionResource, why string, err error) {
	if err != nil {
		why = err.Error()
	}
	p.config.Metrics.waitsFor(kind.GroupResource().String() + " are not listed: " + why)
}

// expect waits until the API server has MetalLB's pools, and follows them.
func (p *poolSource) expect(ctx context.Context, running *sync.WaitGroup) {
	for ctx.Err() == nil {
		wake.After(ctx, askEvery)
		if there, err := kubewatch.Served(ctx, p.client.Discovery(), ipAddressPools); !there || err != nil {
			continue
		}
		if err := p.follow(ctx, running, ipAddressPools, p.config.MetalLB); err != nil && ctx.Err() == nil {
			p.config.Log.Warn("pools of MetalLB cannot be read", "error", err)
		}
		p.changed.Raise()
		return
	}
}

// follow fills a cache with the objects of a kind in a namespace; "" for a cluster-scoped kind. It
// returns when they are known. For MetalLB's pools it also returns when lists have failed for a
// while, for example without the right to list them: a leader must not wait for that. They are used
// as soon as a list succeeds.
func (p *poolSource) follow(
	ctx context.Context, running *sync.WaitGroup, kind schema.GroupVersionResource, namespace string,
) error {
	i, err := newPools(p.dynamic, kind, namespace)
	if err != nil {
		return err
	}
	if kind != ipAddressPools { // the right to list them goes with MetalLB
		p.config.Metrics.reads(kind.GroupResource().String(), i)
	}
	beat := p.config.Beats.Add("reader of "+kind.GroupResource().String(), heartbeat.DefaultBounds)
	if _, err := i.AddEventHandler(kubewatch.Beating(beat, cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { p.changed.Raise() },
		UpdateFunc: func(any, any) { p.changed.Raise() },
		DeleteFunc: func(any) { p.changed.Raise() },
	})); err != nil {
		return fmt.Errorf("follow %s: %w", kind.GroupResource(), err)
	}
	refused := wake.NewFlag()
	if err := kubewatch.OnListError(i, p.notListed(kind, refused)); err != nil {
		return fmt.Errorf("follow %s: %w", kind.GroupResource(), err)
	}
	return listed(ctx, running, i, i.HasSynced, refused, func() { p.add(kind, i.GetStore()) })
}

// listed runs an informer until ctx is done. It returns when the informer has synced and synced was
// called, or when lists are refused; then synced is called as soon as a list succeeds.
func listed(
	ctx context.Context, running *sync.WaitGroup, i cache.SharedIndexInformer, hasSynced cache.InformerSynced,
	refused wake.Flag, synced func(),
) error {
	known := make(chan struct{})
	running.Go(func() { i.RunWithContext(ctx) })
	running.Go(func() {
		if cache.WaitForCacheSync(ctx.Done(), hasSynced) {
			synced()
			close(known)
		}
	})
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-known:
	case <-refused:
	}
	return nil
}

// add adds the cache of a kind, which has synced.
func (p *poolSource) add(kind schema.GroupVersionResource, store cache.Store) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stores = append(p.stores, store)
	if kind == ipAddressPools && p.unlisted {
		p.unlisted = false
		p.changed.Raise() // also if there is none
	}
}

// notListed returns the handler of failed lists of a kind. If the failure persists and the kind is
// MetalLB's, which start does not wait for, it raises refused.
func (p *poolSource) notListed(
	kind schema.GroupVersionResource, refused wake.Flag,
) func(err error, persistent, changed bool) {
	state := "no address is given until they can"
	if kind == ipAddressPools {
		state = "until then they assign no addresses, and Services keep their addresses that are in no other pool"
	}
	return func(err error, persistent, changed bool) {
		if kind == addressPools {
			p.waits(kind, "", err)
		}
		if kind == ipAddressPools && persistent {
			p.mu.Lock()
			before := p.unlisted
			p.unlisted = !apierrors.IsNotFound(err) // not found: the kind was removed, so no pool exists
			changed := p.unlisted != before
			p.mu.Unlock()
			if changed {
				p.changed.Raise()
			}
			refused.Raise()
		}
		if changed {
			p.config.Log.Warn("pools cannot be listed; "+state, "kind", kind.GroupResource(), "error", err)
		}
	}
}
