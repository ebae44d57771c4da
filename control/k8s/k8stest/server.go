// Package k8stest is an API server for tests: real HTTP with the list and watch protocol
// of Kubernetes (streamed lists, chunked lists, bookmarks, selectors, 410 Gone) over
// Services, EndpointSlices, Nodes and DaemonSets in memory, and a place to write Events to.
//
//	s := k8stest.Start(tb)
//	s.Set(service, slice)          // created or updated, with a new resource version
//	s.Delete(service)
//	s.Expire()                     // watches end with 410, and all clients list again
//	s.Stop(); s.Start()            // it is away, and back at the same address
//	s.Send("ADDED", slice)         // an event that no real server would send
//
// Objects are encoded once, so that it keeps up with thousands of updates a second.
package k8stest

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
)

// Server is the API server. All methods are safe for any number of goroutines.
type Server struct {
	// Shuffle, if set, orders the n objects of every list by a permutation.
	Shuffle func(n int, swap func(i, j int))
	// Allow, if set, reports whether a request is allowed: RBAC's verb, group and resource.
	Allow func(verb, group, resource string) bool
	// Refuse, if set, returns why an Event is forbidden; "" if it is not.
	Refuse func(*eventsv1.Event) string
	// Pace, if set, is called before object i of n of every list is sent, and for i = n
	// before its end.
	Pace func(resource string, i, n int)
	// Listen is net.Listen where nil: a network namespace has its own.
	Listen func(network, address string) (net.Listener, error)
	// PlainLists: streamed lists are refused, as servers before 1.32 do.
	PlainLists bool

	address string

	mu       sync.Mutex
	http     *http.Server
	version  uint64
	kinds    map[string]*kind
	requests []Request
	events   []*eventsv1.Event
	patches  int
	lists    map[string]int
}

// Request is a request as an authorizer sees it.
type Request struct{ Verb, Group, Resource string }

// kind is one resource: its objects, and what happened to them.
type kind struct {
	resource, apiVersion, name string
	objects                    map[string]*object
	log                        []event
	oldest                     uint64        // watches from before it are too old
	epoch                      int           // counts Expire
	grown                      chan struct{} // closed when log grew
}

// object is an object as it is sent.
type object struct {
	key    string
	json   []byte
	labels labels.Set
	fields fields.Set
}

// event is one change. before is the former object, nil if it is new.
type event struct {
	version     uint64
	typ         string
	now, before *object
	forced      bool // sent to all watchers unchanged
}

// Start starts a server that ends with the test.
func Start(tb testing.TB) *Server {
	tb.Helper()
	s := New()
	if err := s.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Stop)
	return s
}

// New returns a server that listens after Start.
func New() *Server {
	s := &Server{address: "127.0.0.1:0", version: 1, kinds: map[string]*kind{}, lists: map[string]int{}}
	for _, k := range []*kind{
		{resource: "services", apiVersion: "v1", name: "Service"},
		{resource: "endpointslices", apiVersion: "discovery.k8s.io/v1", name: "EndpointSlice"},
		{resource: "nodes", apiVersion: "v1", name: "Node"},
		{resource: "daemonsets", apiVersion: "apps/v1", name: "DaemonSet"},
	} {
		k.objects, k.grown = map[string]*object{}, make(chan struct{})
		s.kinds[k.resource] = k
	}
	return s
}

// Start listens: at a free port of the loopback the first time, then at the same.
func (s *Server) Start() error {
	listen := net.Listen
	if s.Listen != nil {
		listen = s.Listen
	}
	l, err := listen("tcp", s.address)
	if err != nil {
		return fmt.Errorf("listen as API server: %w", err)
	}
	server := &http.Server{Handler: s}
	s.mu.Lock()
	s.http, s.address = server, l.Addr().String()
	s.mu.Unlock()
	go func() { _ = server.Serve(l) }() // ends with Stop
	return nil
}

// Stop closes the listener and every connection.
func (s *Server) Stop() {
	s.mu.Lock()
	server := s.http
	s.mu.Unlock()
	_ = server.Close()
}

// URL is where it listens.
func (s *Server) URL() string { return "http://" + s.address }

// Config is how clients reach it.
func (s *Server) Config() *rest.Config { return &rest.Config{Host: s.URL()} }

// Set creates or replaces objects, each with the next resource version, and returns the
// last. The objects' own resource versions are set, so they must not be shared.
func (s *Server) Set(objects ...runtime.Object) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range objects {
		s.version++
		k, now := s.encode(o, s.version)
		e := event{version: s.version, typ: "ADDED", now: now, before: k.objects[now.key]}
		if e.before != nil {
			e.typ = "MODIFIED"
		}
		k.objects[now.key] = now
		k.append(e)
	}
	return s.version
}

// Delete removes objects.
func (s *Server) Delete(objects ...runtime.Object) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range objects {
		s.version++
		k, now := s.encode(o, s.version)
		if before := k.objects[now.key]; before != nil {
			delete(k.objects, now.key)
			k.append(event{version: s.version, typ: "DELETED", now: now, before: before})
		}
	}
	return s.version
}

// Forget removes objects without an event, as if the event was lost.
func (s *Server) Forget(objects ...runtime.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range objects {
		s.version++
		k, now := s.encode(o, s.version)
		delete(k.objects, now.key)
	}
}

// Send sends an event to every watch, unchanged, with the object's own version.
func (s *Server) Send(typ string, o runtime.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	version, _ := strconv.ParseUint(o.(metav1.Object).GetResourceVersion(), 10, 64) // 0 where it is none
	k, now := s.encode(o, version)
	k.append(event{version: s.version, typ: typ, now: now, forced: true})
}

// Expire makes every watch too old, including watches that are resumed later.
func (s *Server) Expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	for _, k := range s.kinds {
		k.log, k.oldest = nil, s.version
		k.epoch++
		k.wake()
	}
}

// Lists counts the complete lists of a resource that were sent.
func (s *Server) Lists(resource string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lists[resource]
}

// Requests returns the requests so far, each one once.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Request(nil), s.requests...)
}

// Events returns the Events that were written, and the number of patches.
func (s *Server) Events() ([]*eventsv1.Event, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*eventsv1.Event(nil), s.events...), s.patches
}

func (k *kind) append(e event) {
	k.log = append(k.log, e)
	k.wake()
}

func (k *kind) wake() {
	close(k.grown)
	k.grown = make(chan struct{})
}

// encode finds an object's kind and encodes it.
func (s *Server) encode(o runtime.Object, version uint64) (*kind, *object) {
	var k *kind
	set := fields.Set{}
	var meta *metav1.ObjectMeta
	switch o := o.(type) {
	case *corev1.Service:
		k, meta = s.kinds["services"], &o.ObjectMeta
		set["spec.clusterIP"] = o.Spec.ClusterIP
	case *discoveryv1.EndpointSlice:
		k, meta = s.kinds["endpointslices"], &o.ObjectMeta
	case *corev1.Node:
		k, meta = s.kinds["nodes"], &o.ObjectMeta
	case *appsv1.DaemonSet:
		k, meta = s.kinds["daemonsets"], &o.ObjectMeta
	default:
		panic(fmt.Sprintf("k8stest: %T is not served; give it a Service, EndpointSlice, Node or DaemonSet", o))
	}
	meta.ResourceVersion = strconv.FormatUint(version, 10)
	if meta.UID == "" {
		meta.UID = typesUID(k.name, meta)
	}
	o.GetObjectKind().SetGroupVersionKind(gvk(k))
	text, err := json.Marshal(o)
	if err != nil {
		panic(fmt.Sprintf("k8stest: encode %T: %v", o, err))
	}
	set["metadata.name"], set["metadata.namespace"] = meta.Name, meta.Namespace
	l := labels.Set{}
	for key, v := range meta.Labels {
		l[key] = v
	}
	return k, &object{key: meta.Namespace + "/" + meta.Name, json: text, labels: l, fields: set}
}
