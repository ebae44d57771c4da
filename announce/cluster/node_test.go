package cluster

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"sluice.dev/sluice/internal/kubewatch"
)

// A Node's address is its first internal IPv4 address.
func TestNodeAddress(t *testing.T) {
	t.Parallel()
	n := &corev1.Node{Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: "n"}, {Type: corev1.NodeExternalIP, Address: "192.0.2.1"},
		{Type: corev1.NodeInternalIP, Address: "2001:db8::1"}, {Type: corev1.NodeInternalIP, Address: "10.0.0.1"},
		{Type: corev1.NodeInternalIP, Address: "10.0.0.2"},
	}}}
	if got := nodeOf(n).Address; got != netip.MustParseAddr("10.0.0.1") {
		t.Errorf("%v", got)
	}
}

// A Node's network is unavailable only while its condition of that name is true.
func TestNetworkUnavailable(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind   corev1.NodeConditionType
		status corev1.ConditionStatus
		want   string
	}{
		{corev1.NodeNetworkUnavailable, corev1.ConditionTrue, "node n has the condition NetworkUnavailable: no route"},
		{corev1.NodeNetworkUnavailable, corev1.ConditionFalse, ""},
		{corev1.NodeNetworkUnavailable, corev1.ConditionUnknown, ""},
		{corev1.NodeDiskPressure, corev1.ConditionTrue, ""},
	} {
		n := &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: c.kind, Status: c.status,
			Reason: "NoRouteCreated", Message: "no route"}}}}
		n.Name = "n"
		if got := nodeOf(n).NetworkUnavailable; got != c.want {
			t.Errorf("%s %s: %q, want %q", c.kind, c.status, got, c.want)
		}
	}
}

// TestNoSuchNode: a node name without a Node is a problem, once Nodes are listed. A Node that was
// seen, by this process or a previous one, is deleted when it is gone, and keeps its labels.
func TestNoSuchNode(t *testing.T) {
	t.Parallel()
	listed := false
	store := cache.NewStore(cache.MetaNamespaceKeyFunc)
	s := &Source{config: Config{Node: "n"}, nodes: &resource{store: store, synced: func() bool { return listed }}}
	s.resources = []*resource{s.nodes}
	check := func(when string, want int) {
		t.Helper()
		if got := s.collect().Problems; len(got) != want {
			t.Errorf("%s: %v", when, got)
		}
	}
	check("before Nodes are listed", 0)
	listed = true
	check("no Node", 1)
	n := &corev1.Node{}
	n.Name = "n"
	if err := store.Add(n); err != nil {
		t.Fatal(err)
	}
	check("it is there", 0)
	deleted := func(when string, want bool) {
		t.Helper()
		if got := s.collect(); got.Node.Deleted != want || !got.NodeSeen || len(got.Problems) > 0 ||
			want && got.Node.Labels["rack"] != n.Labels["rack"] {
			t.Errorf("%s: %+v, want deleted %v", when, got, want)
		}
	}
	remove := func() {
		t.Helper()
		if err := store.Delete(n); err != nil {
			t.Fatal(err)
		}
	}
	deleted("it is there, and was seen", false)
	remove()
	deleted("it is gone", true)
	if err := store.Add(n); err != nil {
		t.Fatal(err)
	}
	deleted("it is made anew", false)
	remove()
	s.lastNode = nil
	n.Labels = map[string]string{"rack": "a"}
	s.remember(n)
	deleted("it is gone, and was never collected", true)
	n.Labels = nil
	next, err := New(Config{Client: &rest.Config{}, Node: "n", NodeSeen: true})
	if err != nil {
		t.Fatal(err)
	}
	next.nodes.store, next.nodes.synced = store, func() bool { return true }
	s = next
	deleted("it is gone, and the previous process has seen it", true)
}

// TestUnreadKind: a kind that was read, and that cannot be read any more, is a problem with its
// time and error, and its objects stay.
func TestUnreadKind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		forbidden := apierrors.NewForbidden(schema.GroupResource{}, "", errors.New("no right"))
		var refuse atomic.Bool
		informer, err := kubewatch.NewInformer(&corev1.Node{}, "n",
			func(context.Context, metav1.ListOptions) (*corev1.NodeList, error) {
				if refuse.Load() {
					return nil, forbidden
				}
				return &corev1.NodeList{Items: []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n"}}}}, nil
			}, func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
				if o.SendInitialEvents != nil {
					return nil, apierrors.NewInvalid(schema.GroupKind{}, "", nil)
				}
				if refuse.Load() {
					return nil, forbidden
				}
				w := watch.NewFake()
				time.AfterFunc(time.Minute, w.Stop)
				return w, nil
			})
		if err != nil {
			t.Fatal(err)
		}
		// The default handler sleeps until the time by the clock outside of the bubble.
		err = informer.SetWatchErrorHandlerWithContext(func(context.Context, *cache.Reflector, error) {})
		if err != nil {
			t.Fatal(err)
		}
		r := &resource{informer: informer, store: informer.GetStore(), synced: informer.HasSynced}
		r.Resource = "nodes"
		s := &Source{config: Config{Client: &rest.Config{}, Node: "n"}, nodes: r, resources: []*resource{r}}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); informer.RunWithContext(ctx) }()
		time.Sleep(30 * time.Second)
		if o, waiting := s.Objects(); waiting != "" || len(o.Problems) > 0 || !o.NodeSeen {
			t.Errorf("%q, %+v", waiting, o)
		}
		refuse.Store(true)
		time.Sleep(2 * time.Minute)
		if o, _ := s.Objects(); len(o.Problems) != 1 || !o.NodeSeen || o.Node.Deleted ||
			!strings.Contains(o.Problems[0].Note, "nodes cannot be read since ") ||
			!strings.Contains(o.Problems[0].Note, "no right; the last known objects stay in force") {
			t.Errorf("%+v", o)
		}
		refuse.Store(false)
		time.Sleep(5 * time.Minute)
		if o, _ := s.Objects(); len(o.Problems) > 0 {
			t.Errorf("%+v", o)
		}
		cancel()
		<-ended
	})
}

// TestSameContent: a new version of an object counts only if a part that is read has changed.
func TestSameContent(t *testing.T) {
	t.Parallel()
	service := func(edit func(*metav1.ObjectMeta)) *metav1.PartialObjectMetadata {
		o := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "1",
			Labels: map[string]string{"app": "web"}}}
		edit(&o.ObjectMeta)
		return o
	}
	node := func(edit func(*corev1.Node)) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
		edit(n)
		return n
	}
	none := func(*metav1.ObjectMeta) {}
	for name, c := range map[string]struct {
		before, now any
		want        bool
	}{
		"annotation": {service(none), service(func(m *metav1.ObjectMeta) {
			m.Annotations = map[string]string{"a": "b"}
		}), true},
		"label":    {service(none), service(func(m *metav1.ObjectMeta) { m.Labels["app"] = "b" }), false},
		"made new": {service(none), service(func(m *metav1.ObjectMeta) { m.UID = "2" }), false},
		"heartbeat": {node(func(*corev1.Node) {}), node(func(n *corev1.Node) {
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, LastHeartbeatTime: metav1.Now()}}
		}), true},
		"cordoned": {node(func(*corev1.Node) {}), node(func(n *corev1.Node) {
			n.Spec.Unschedulable = true
		}), false},
		"another kind": {&corev1.Secret{}, &corev1.Secret{}, false},
	} {
		if got := sameContent(c.before, c.now); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
