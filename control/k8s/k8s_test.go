package k8s_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/k8s"
	"sluice.dev/sluice/control/k8s/k8stest"
	"sluice.dev/sluice/control/loop"
	"sluice.dev/sluice/control/steer"
	"sluice.dev/sluice/control/tracker"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/fastpath/stats"
)

const nodeName = "gateway-1"

// patience is how long tests wait for what must come. client-go leaves up to 1.6 s
// between a watch that ended and the next list.
const patience = 20 * time.Second

// eventually waits for a condition.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%v later still not: %s", patience, what)
		}
	}
}

func service(name string, port int32) *corev1.Service {
	n := int(port)
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{"app": name}},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.96.0.1", ClusterIPs: []string{"10.96.0.1"},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports:      []corev1.ServicePort{{Name: "web", Protocol: corev1.ProtocolTCP, Port: port}},
		},
		Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{
			Ingress: []corev1.LoadBalancerIngress{{IP: fmt.Sprintf("198.51.%d.%d", n/200, n%200+1)}}}},
	}
}

func slice(of, name string, addresses ...string) *discoveryv1.EndpointSlice {
	port, portName, proto := int32(8080), "web", corev1.ProtocolTCP
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name,
			Labels: map[string]string{discoveryv1.LabelServiceName: of}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &portName, Protocol: &proto, Port: &port}},
	}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
	}
	return s
}

func node(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name,
		Labels: map[string]string{corev1.LabelTopologyZone: "a"}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP,
			Address: "192.0.2.10"}}}}
}

// world is a server, a Watcher and the Tracker behind it.
type world struct {
	*k8stest.Server
	tracker *tracker.Tracker
	watcher *k8s.Watcher
}

func debugHandler() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// start watches a server until the test ends.
func start(t testing.TB, s *k8stest.Server) *world {
	t.Helper()
	s.Set(markers()...)
	tracker := tracker.New()
	w, err := k8s.New(k8s.Config{Log: debugHandler(), Client: s.Config(), Tracker: tracker, NodeName: nodeName})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); w.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return &world{s, tracker, w}
}

// sync waits until everything has been listed, and takes it from the Tracker.
func (w *world) sync(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, f := range w.watcher.Feeds() {
		if err := f.Sync(ctx); err != nil {
			t.Fatalf("%v: %v", f.Source(), err)
		}
	}
	w.tracker.Changes()
}

// relisted waits until every kind has been listed once more than lists says.
func (w *world) relisted(t testing.TB, lists map[string]int) {
	t.Helper()
	for kind, n := range lists {
		eventually(t, kind+" listed anew", func() bool { return w.Lists(kind) > n })
	}
	w.settle(t)
}

// settle waits until all that the server has said so far is in the Tracker: it says
// something new of a marker of each kind, which is the same as ever.
func (w *world) settle(t testing.TB) {
	t.Helper()
	version := w.Set(markers()...)
	for i := range w.watcher.Status() {
		eventually(t, "the marker is heard of", func() bool { return w.watcher.Status()[i].Version > version-3 })
	}
}

func markers() []runtime.Object {
	return []runtime.Object{service("marker", 9), slice("marker", "marker"), node(nodeName)}
}

func (w *world) lists() map[string]int {
	n := map[string]int{}
	for _, kind := range []string{"services", "endpointslices", "nodes"} {
		n[kind] = w.Lists(kind)
	}
	return n
}

// problems of the Tracker that mention a text.
func (w *world) problems(text string) (n int) {
	for _, p := range w.tracker.Locate(nil) {
		if strings.Contains(p.String(), text) {
			n++
		}
	}
	return n
}

// steering is a kernel program that agrees to everything.
type steering struct{}

func (steering) Held() steer.Set          { return steer.Set{} }
func (steering) Replace(*steer.Set) error { return nil }
func (steering) Open(*steer.Set) error    { return nil }
func (steering) Close(*steer.Set) error   { return nil }

// loop runs a control loop behind the Watcher.
func (w *world) loop(t testing.TB) (*loop.Loop, *services.Handle) {
	t.Helper()
	handle := &services.Handle{}
	l := loop.New(loop.Config{
		Log: debugHandler(), Tracker: w.tracker, Compiler: compiler.New(compiler.Config{NodeName: nodeName}),
		Publisher: loop.NewPublisher(handle, []*stats.Block{}), Steering: steering{}, Feeds: w.watcher.Feeds(),
		Retry: 10 * time.Millisecond, Window: 2 * time.Millisecond, // the daemon's
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = l.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return l, handle
}
