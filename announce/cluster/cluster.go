// Package cluster reads the objects of an announcer from an API server: the kinds of sluice.dev
// and, if they are installed, of metallb.io, the labels of Services, this Node, and Secrets of one
// namespace. It writes only Events.
package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"sluice.dev/sluice/announce"
	"sluice.dev/sluice/announce/kinds"
	"sluice.dev/sluice/internal/heartbeat"
	"sluice.dev/sluice/internal/kubewatch"
	"sluice.dev/sluice/internal/wake"
)

// Config configures a Source.
type Config struct {
	Client *rest.Config
	Log    *slog.Logger
	Node   string
	// NodeSeen: a previous process has read the Node. If it does not exist, it was deleted.
	NodeSeen bool
	// Namespace has the Secrets with passwords, and Secrets their names. No others are read, and no
	// right to read others is needed. Empty: none are read.
	Namespace string
	Secrets   []string
	// MetalLB is the namespace whose objects of metallb.io are also read, if they are installed;
	// empty: none. MetalLB itself reads only the ones in its own namespace.
	MetalLB string
	Beats   *heartbeat.Set // gets one heartbeat per kind; nil: none
}

// askEvery is the interval of queries for kinds that are not installed.
const askEvery = 10 * time.Second

// DeletionTaint is the cluster autoscaler's taint of a node that it is about to delete.
const DeletionTaint = "ToBeDeletedByClusterAutoscaler"

// resource is a kind, or one object of it, that the Source watches.
type resource struct {
	schema.GroupVersionResource
	optional bool   // it may not be installed
	name     string // of the one watched object; empty: all are watched
	store    cache.Store
	synced   func() bool // nil: there is no store yet
	informer *kubewatch.Informer
	// absent: Objects does not wait for its first list. The API server does not have the kind, or
	// it is MetalLB's and cannot be listed, for example because the right to do so was deleted with
	// MetalLB's namespace.
	absent bool
	// refused: the kind exists, and its last list failed.
	refused bool
}

// failing returns since when the objects cannot be read, and why.
func (r *resource) failing() (time.Time, error) {
	if r.informer == nil {
		return time.Time{}, nil
	}
	return r.informer.Failing()
}

// known reports whether the store has all its objects.
func (r *resource) known() bool { return r.synced != nil && r.synced() }

// Source is an API server. It implements announce.Source.
type Source struct {
	config   Config
	client   kubernetes.Interface
	dynamic  dynamic.Interface
	metadata metadata.Interface
	events   *kubewatch.Events

	mu           sync.Mutex // guards the fields below and the resources
	resources    []*resource
	services     *resource
	nodes        *resource
	secrets      map[string]*resource // by name
	metalLBPools *resource            // MetalLB's pools; nil if they are not read
	objects      *announce.Objects
	unread       []kinds.Problem // of objects: kinds that cannot be read
	lastNode     *announce.Node  // as it was read last; nil: it was never seen
}

// New returns a Source. It sends no request before Run.
func New(c Config) (*Source, error) {
	c.Client = rest.CopyConfig(c.Client)
	c.Client.UserAgent = "sluice-announcer"
	c.Client.WarningHandler = rest.NoWarnings{}
	s := &Source{config: c}
	if c.NodeSeen {
		s.lastNode = &announce.Node{Name: c.Node}
	}
	var errs [3]error
	s.client, errs[0] = kubernetes.NewForConfig(c.Client)
	s.dynamic, errs[1] = dynamic.NewForConfig(c.Client)
	s.metadata, errs[2] = metadata.NewForConfig(c.Client)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("API server %s: %w", c.Client.Host, err)
	}
	s.events = kubewatch.NewEvents(s.client, c.Log, "sluice.dev/announcer", c.Node)
	add := func(group, version, name string, optional bool) *resource {
		r := &resource{GroupVersionResource: schema.GroupVersionResource{Group: group, Version: version,
			Resource: name},
			optional: optional}
		s.resources = append(s.resources, r)
		return r
	}
	for _, name := range []string{"addresspools", "bgppeers", "bgpadvertisements", "bfdprofiles", "communities",
		"l2advertisements"} {
		add(kinds.Group, "v1alpha1", name, true)
	}
	if c.MetalLB != "" {
		add(kinds.MetalLB, "v1beta2", "bgppeers", true)
		for _, name := range []string{"ipaddresspools", "bgpadvertisements", "bfdprofiles", "communities",
			"l2advertisements"} {
			add(kinds.MetalLB, "v1beta1", name, true)
		}
		s.metalLBPools = s.resources[slices.IndexFunc(s.resources, func(r *resource) bool {
			return r.Resource == "ipaddresspools"
		})]
	}
	s.services = add("", "v1", "services", false)
	s.nodes = add("", "v1", "nodes", false)
	s.nodes.name = c.Node
	s.secrets = map[string]*resource{}
	for _, name := range c.Secrets {
		if c.Namespace != "" && s.secrets[name] == nil {
			s.secrets[name] = add("", "v1", "secrets", false)
			s.secrets[name].name = name
		}
	}
	return s, nil
}

// Run implements announce.Source.
func (s *Source) Run(ctx context.Context, changed func()) {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { s.events.Run(ctx) })
	for _, r := range s.resources {
		running.Go(func() { s.follow(ctx, r, func() { s.forget(); changed() }) })
	}
}

// forget drops the collected objects, so that Objects reads the stores again.
func (s *Source) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.objects = nil
}

// follow fills the store of a resource as soon as the API server has the kind.
func (s *Source) follow(ctx context.Context, r *resource, changed func()) {
	for lastError := ""; r.optional; {
		there, err := kubewatch.Served(ctx, s.client.Discovery(), r.GroupVersionResource)
		if there || ctx.Err() != nil {
			break
		}
		if err != nil && err.Error() != lastError {
			lastError = err.Error()
			s.config.Log.Warn("cannot find out whether a kind is installed", "kind", r.GroupResource(), "error",
				err)
		}
		s.mu.Lock()
		first := err == nil && !r.absent
		r.absent = r.absent || first
		s.mu.Unlock()
		if first {
			s.config.Log.Info("the API server does not have a kind", "kind", r.GroupResource())
			changed()
		}
		if !wake.After(ctx, askEvery) {
			return
		}
	}
	informer, err := s.informer(r)
	if err == nil {
		err = kubewatch.OnListError(informer, s.notListed(r, changed))
	}
	if err == nil {
		note := func(o any) {
			s.remember(o)
			changed()
		}
		beat := s.config.Beats.Add("reader of "+r.GroupResource().String(), heartbeat.DefaultBounds)
		_, err = informer.AddEventHandler(kubewatch.Beating(beat, cache.ResourceEventHandlerFuncs{AddFunc: note,
			UpdateFunc: func(before, now any) {
				if !sameContent(before, now) {
					note(now)
				}
			}, DeleteFunc: func(any) { changed() }}))
	}
	if err != nil {
		s.config.Log.Error("objects of a kind cannot be read", "kind", r.GroupResource(), "error", err)
		return
	}
	s.mu.Lock()
	r.informer, r.store, r.synced = informer, informer.GetStore(), informer.HasSynced
	s.mu.Unlock()
	go func() {
		if cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
			changed() // even if there are no objects
		}
	}()
	informer.RunWithContext(ctx)
}

// remember keeps the own Node for the time after its deletion. It may be deleted while Objects
// waits for another kind, before it was ever collected.
func (s *Source) remember(o any) {
	n, is := o.(*corev1.Node)
	if !is {
		return
	}
	node := nodeOf(n)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastNode = &node
}

// sameContent reports whether two versions of a Service or a Node differ only in parts that are not
// read, such as a status: each change makes the loop read all objects again.
func sameContent(before, now any) bool {
	switch now := now.(type) {
	case *metav1.PartialObjectMetadata:
		before, is := before.(*metav1.PartialObjectMetadata)
		return is && before.UID == now.UID && maps.Equal(before.Labels, now.Labels)
	case *corev1.Node:
		before, is := before.(*corev1.Node)
		return is && reflect.DeepEqual(nodeOf(before), nodeOf(now))
	}
	return false
}

// notListed returns the handler of failed lists of a resource. If the failure persists and the kind
// is MetalLB's, Objects no longer waits for it: its objects are used as soon as a list succeeds.
func (s *Source) notListed(r *resource, changed func()) func(err error, persistent, errorChanged bool) {
	return func(err error, persistent, errorChanged bool) {
		s.mu.Lock()
		gaveUp := !r.absent && r.Group == kinds.MetalLB && persistent
		refused := !apierrors.IsNotFound(err) // not found: the kind was removed
		turned := gaveUp || r.absent && refused != r.refused
		r.absent, r.refused = r.absent || gaveUp, refused
		state := "nothing is announced until they can"
		if r.absent || r.Group == kinds.MetalLB {
			state = "they are not used until they can"
		}
		s.mu.Unlock()
		if errorChanged {
			s.config.Log.Warn("objects of a kind cannot be listed; "+state, "kind", r.GroupResource(), "error", err)
		}
		if turned {
			changed()
		}
	}
}

func (s *Source) informer(r *resource) (*kubewatch.Informer, error) {
	switch r {
	case s.services: // only their metadata
		api := s.metadata.Resource(r.GroupVersionResource)
		return kubewatch.NewInformer(&metav1.PartialObjectMetadata{}, r.name, api.List, api.Watch)
	case s.nodes:
		api := s.client.CoreV1().Nodes()
		return kubewatch.NewInformer(&corev1.Node{}, r.name, api.List, api.Watch)
	case s.secrets[r.name]:
		api := s.client.CoreV1().Secrets(s.config.Namespace)
		return kubewatch.NewInformer(&corev1.Secret{}, r.name, api.List, api.Watch)
	}
	namespace := "" // kinds of sluice.dev are cluster-scoped
	if r.Group == kinds.MetalLB {
		namespace = s.config.MetalLB
	}
	api := s.dynamic.Resource(r.GroupVersionResource).Namespace(namespace)
	return kubewatch.NewInformer(&unstructured.Unstructured{}, r.name, api.List, api.Watch)
}

// Objects implements announce.Source.
func (s *Source) Objects() (*announce.Objects, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.resources {
		if !r.absent && !r.known() {
			waiting := "objects of the API server " + s.config.Client.Host + ": " + r.GroupResource().String()
			if _, err := r.failing(); err != nil {
				waiting += ": " + err.Error()
			}
			return nil, waiting
		}
	}
	if unread := s.unreadKinds(); s.objects == nil || !slices.Equal(unread, s.unread) {
		s.objects, s.unread = s.collect(), unread
		s.objects.Problems = append(s.objects.Problems, unread...)
	}
	return s.objects, ""
}

// unreadKinds returns a Problem for each kind whose objects cannot be read. A kind that was removed
// has no objects to read. MetalLB's kinds may be left without the right to list them, as it was.
func (s *Source) unreadKinds() (problems []kinds.Problem) {
	for _, r := range s.resources {
		since, err := r.failing()
		if err == nil || r.optional && apierrors.IsNotFound(err) || r.absent && !r.known() {
			continue
		}
		state := "the last known objects stay in force"
		if !r.known() {
			state = "they are not used until they can"
		}
		problems = append(problems, kinds.Problem{About: kinds.OfNode(s.config.Node), Reason: kinds.Unread,
			Note: kubewatch.Unread(r.GroupResource().String(), since, err) + "; " + state})
	}
	return problems
}

func (s *Source) collect() *announce.Objects {
	o := &announce.Objects{Services: map[string]labels.Set{}, UIDs: map[string]string{},
		Node: announce.Node{Name: s.config.Node}, Password: s.password,
		Unlisted: s.metalLBPools != nil && s.metalLBPools.refused && !s.metalLBPools.known()}
	switch absent := s.nodes.known() && len(s.nodes.store.List()) == 0; {
	case absent && s.lastNode != nil:
		o.Node = *s.lastNode // its labels still select objects while its routes leave
		o.Node.Deleted = true
	case absent:
		o.Problems = append(o.Problems, kinds.Problem{
			About: kinds.OfNode(s.config.Node), Reason: kinds.NotFound,
			Note: "does not exist: it has no labels that objects could select it by; set --node-name to the name of " +
				"this node's Node object",
		})
	}
	for _, r := range s.resources {
		if !r.known() { // with some of its objects, the others would seem deleted
			continue
		}
		for _, item := range r.store.List() {
			switch v := item.(type) {
			case *unstructured.Unstructured:
				o.Kinds = append(o.Kinds, v)
			case *metav1.PartialObjectMetadata:
				key := v.Namespace + "/" + v.Name
				o.Services[key], o.UIDs[key] = v.Labels, string(v.UID)
			case *corev1.Node:
				o.Node = nodeOf(v)
				s.lastNode = &o.Node
			}
		}
	}
	o.NodeSeen = s.lastNode != nil
	return o
}

func nodeOf(n *corev1.Node) announce.Node {
	out := announce.Node{Name: n.Name, Labels: n.Labels, Cordoned: n.Spec.Unschedulable,
		Deleted: n.DeletionTimestamp != nil}
	for _, a := range n.Status.Addresses {
		ip, err := netip.ParseAddr(a.Address)
		if err == nil && a.Type == corev1.NodeInternalIP && ip.Unmap().Is4() && !out.Address.IsValid() {
			out.Address = ip.Unmap()
		}
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeNetworkUnavailable && c.Status == corev1.ConditionTrue {
			out.NetworkUnavailable = "node " + n.Name + " has the condition NetworkUnavailable: " +
				cmp.Or(c.Message, c.Reason, "no reason is given")
		}
	}
	for _, t := range n.Spec.Taints {
		out.Deleted = out.Deleted || t.Key == DeletionTaint
	}
	return out
}

// password implements Objects.Password.
func (s *Source) password(namespace, name string) (string, error) {
	own := namespace == "" || namespace == s.config.Namespace
	if s.config.Namespace != "" && own && s.secrets[name] == nil {
		return "", fmt.Errorf("the announcer has no right to read the Secret %s: add the name to "+
			"announcer.passwordSecrets of the chart (--password-secrets)", name)
	}
	return kinds.PasswordIn(s.config.Namespace, s.secret)(namespace, name)
}

// secret returns a Secret from the store, without a request.
func (s *Source) secret(name string) *corev1.Secret {
	r := s.secrets[name]
	if r == nil {
		return nil
	}
	s.mu.Lock()
	store := r.store
	s.mu.Unlock()
	item, _, _ := store.GetByKey(s.config.Namespace + "/" + name) // a store in memory has no errors
	secret, _ := item.(*corev1.Secret)
	return secret
}

// Report writes an Event about an object.
func (s *Source) Report(p kinds.Problem, normal bool) {
	kind := corev1.EventTypeWarning
	if normal {
		kind = corev1.EventTypeNormal
	}
	s.events.Add(corev1.ObjectReference{APIVersion: p.About.APIVersion, Kind: p.About.Kind,
		Namespace: p.About.Namespace,
		Name:      p.About.Name, UID: types.UID(p.About.UID)}, kind, p.Reason, "Announce", p.Note)
}
