package allocate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"sluice.dev/sluice/allocate/pools"
	"sluice.dev/sluice/internal/kubewatch"
)

// holding is a lease that is valid, or not.
type holding struct{ good, doubtful bool }

func (h *holding) valid() bool { return h.good }
func (h *holding) doubt()      { h.doubtful = true }

// bench is a controller with a map as its API server and caches that the test fills.
type bench struct {
	*testing.T
	*controller
	client *fake.Clientset
	lease  *holding
	fail   error // of the next writes
	writes int
	// afterWrite, unless nil, is called after each write.
	afterWrite func()
}

func newBench(t *testing.T, services ...*corev1.Service) *bench {
	t.Helper()
	b := &bench{T: t, client: fake.NewClientset(), lease: &holding{good: true}}
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	config := Config{Log: log, Identity: "me", Class: "sluice.dev/sluice", Default: true, Workers: 2}
	b.controller = newController(config, b.client, b.lease, kubewatch.NewEvents(b.client, log, reportingController,
		"me"))
	b.services, b.namespaces = cache.NewStore(cache.MetaNamespaceKeyFunc), cache.NewStore(cache.MetaNamespaceKeyFunc)
	for _, s := range services {
		if err := b.client.Tracker().Add(s); err != nil {
			t.Fatal(err)
		}
		b.cache(s)
	}
	b.client.PrependReactor("update", "services", func(clienttesting.Action) (bool, runtime.Object, error) {
		b.writes++
		if b.afterWrite != nil {
			b.afterWrite()
		}
		return b.fail != nil, nil, b.fail
	})
	return b
}

func (b *bench) cache(s *corev1.Service) {
	b.Helper()
	if err := b.services.Add(s); err != nil {
		b.Fatal(err)
	}
}

// look copies the state of the API server into the cache.
func (b *bench) look(name string) *corev1.Service {
	b.Helper()
	s, err := b.client.CoreV1().Services("default").Get(b.Context(), name, metav1.GetOptions{})
	if err != nil {
		b.Fatal(err)
	}
	b.cache(s)
	return s
}

func (b *bench) pools(specs ...pools.Spec) {
	b.Helper()
	var list []*pools.Pool
	for i, spec := range specs {
		p, err := pools.New(fmt.Sprint("p", i), spec)
		if err != nil {
			b.Fatal(err)
		}
		list = append(list, p)
	}
	b.setPools(list, nil, b.all())
}

func balancer(name string, annotations map[string]string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name),
		ResourceVersion: "10", Annotations: annotations}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer,
		ClusterIP: "10.0.0.1", ClusterIPs: []string{"10.0.0.1"}}}
}

// must processes Services of namespace default, one after another.
func (b *bench) must(names ...string) {
	b.Helper()
	for _, name := range names {
		if err := b.process(b.Context(), "default/"+name); err != nil {
			b.Fatal(err)
		}
	}
}

// queued empties the queue and reports whether a Service was in it.
func (b *bench) queued(wanted string) (was bool) {
	for b.queue.Len() > 0 {
		key, _ := b.queue.Get()
		was = was || key == wanted
		b.queue.Done(key)
	}
	return was
}

func (b *bench) has(name, want string) {
	b.Helper()
	if got := pools.Join(pools.StatusOf(b.look(name))); got != want {
		b.Errorf("%s has %q, want %q (%+v)", name, got, want, b.condition(name))
	}
}

func (b *bench) condition(name string) metav1.Condition {
	b.Helper()
	for _, c := range b.look(name).Status.Conditions {
		if c.Type == ConditionType {
			return c
		}
	}
	return metav1.Condition{}
}

// The addresses of a write with an unknown result stay reserved until the Service has changed.
// Until then the Lease is not released.
func TestWriteInDoubt(t *testing.T) {
	t.Parallel()
	b := newBench(t, balancer("a", nil), balancer("b", nil))
	b.pools(pools.Spec{Addresses: []string{"192.0.2.1/32"}})
	b.fail = context.DeadlineExceeded
	if err := b.process(t.Context(), "default/a"); err == nil {
		t.Fatal("no error")
	}
	if !b.lease.doubtful {
		t.Error("the Lease may be given up")
	}
	// The Service asks for an address that no pool has: it loses its claim, but the write may
	// succeed.
	s := b.look("a").DeepCopy()
	s.Annotations = map[string]string{"metallb.io/address-pool": "nowhere"}
	b.cache(s)
	if err := b.process(t.Context(), "default/a"); err == nil {
		t.Fatal("no error")
	}
	b.fail = nil
	if err := b.process(t.Context(), "default/b"); err != nil {
		t.Fatal(err)
	}
	if c := b.condition("b"); c.Reason != string(pools.PoolEmpty) {
		t.Fatalf("b: %+v", c)
	}
	if err := b.process(t.Context(), "default/a"); err != nil { // a has a new version now
		t.Fatal(err)
	}
	if err := b.process(t.Context(), "default/b"); err != nil {
		t.Fatal(err)
	}
	if c := b.condition("b"); c.Reason != assigned {
		t.Errorf("b: %+v", c)
	}
}

// A write that the API server refused did not happen and leaves no doubt.
func TestRefusedWrites(t *testing.T) {
	t.Parallel()
	of := schema.GroupResource{Resource: "services"}
	for name, test := range map[string]struct {
		err   error
		doubt bool
	}{
		"conflict": {apierrors.NewConflict(of, "a", errors.New("changed")), false},
		"gone":     {apierrors.NewNotFound(of, "a"), false}, "forbidden": {apierrors.NewForbidden(of, "a", nil), false},
		"busy":    {apierrors.NewTooManyRequests("busy", 1), false},
		"timeout": {apierrors.NewTimeoutError("slow", 1), true}, "internal": {apierrors.NewInternalError(io.EOF), true},
		"network": {io.ErrUnexpectedEOF, true},
	} {
		b := newBench(t, balancer("a", nil))
		b.pools(pools.Spec{Addresses: []string{"192.0.2.1/32"}})
		b.fail = test.err
		if err := b.process(t.Context(), "default/a"); err == nil {
			t.Errorf("%s: no error", name)
		}
		if b.lease.doubtful != test.doubt {
			t.Errorf("%s: doubt is %v", name, b.lease.doubtful)
		}
	}
}

func TestNothingIsWrittenWithoutLease(t *testing.T) {
	t.Parallel()
	b := newBench(t, balancer("a", nil))
	b.pools(pools.Spec{Addresses: []string{"192.0.2.1/32"}})
	b.lease.good = false
	if err := b.process(t.Context(), "default/a"); !errors.Is(err, errNotLeading) || b.writes != 0 {
		t.Errorf("%d writes, %v", b.writes, err)
	}
	if _, err := b.fence(t.Context(), b.all()); !errors.Is(err, errNotLeading) || b.writes != 0 {
		t.Errorf("fence: %d writes, %v", b.writes, err)
	}
}

// A cache that is behind neither reverts a write nor frees its addresses.
func TestCacheIsBehind(t *testing.T) {
	t.Parallel()
	b := newBench(t, balancer("a", nil), balancer("b", nil))
	spec := pools.Spec{Addresses: []string{"192.0.2.1/32"}}
	b.pools(spec)
	if err := b.process(t.Context(), "default/a"); err != nil {
		t.Fatal(err)
	}
	b.written["default/a"].ResourceVersion = "11" // the fake API server does not count versions
	for range 3 {
		if err := b.process(t.Context(), "default/a"); err != nil || b.writes != 1 {
			t.Fatalf("%d writes, %v", b.writes, err)
		}
	}
	b.pools() // and the pools go and come back meanwhile
	b.pools(spec)
	if err := b.process(t.Context(), "default/b"); err != nil {
		t.Fatal(err)
	}
	if c := b.condition("b"); c.Reason != string(pools.PoolEmpty) {
		t.Errorf("b: %+v", c)
	}
}

// If a pool depends on labels of namespaces, a Service waits until the labels are known.
func TestNamespaceIsNotKnownYet(t *testing.T) {
	t.Parallel()
	b := newBench(t, balancer("a", nil))
	b.pools(pools.Spec{Addresses: []string{"192.0.2.1/32"}}, pools.Spec{Addresses: []string{"198.51.100.1/32"},
		ServiceAllocation: &pools.ServiceAllocation{NamespaceSelectors: []metav1.LabelSelector{
			{MatchLabels: map[string]string{"team": "x"}}}}})
	if err := b.process(t.Context(), "default/a"); err != nil || b.writes != 0 {
		t.Fatalf("%d writes, %v", b.writes, err)
	}
	if err := b.namespaces.Add(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default",
		Labels: map[string]string{"team": "x"}}}); err != nil {
		t.Fatal(err)
	}
	if err := b.process(t.Context(), "default/a"); err != nil {
		t.Fatal(err)
	}
	if got := pools.StatusOf(b.look("a")); len(got) != 1 || got[0].String() != "198.51.100.1" {
		t.Errorf("has %v", got)
	}
}

// Addresses of other controllers' Services are not given, and their status is not touched.
func TestOthersServices(t *testing.T) {
	t.Parallel()
	class := "example.org/lb"
	other := balancer("other", nil)
	other.Spec.LoadBalancerClass = &class
	other.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.0"}}
	b := newBench(t, other, balancer("a", nil))
	b.pools(pools.Spec{Addresses: []string{"192.0.2.0/31"}})
	for _, name := range []string{"a", "other"} {
		if err := b.process(t.Context(), "default/"+name); err != nil {
			t.Fatal(err)
		}
	}
	if got := pools.StatusOf(b.look("a")); len(got) != 1 || got[0].String() != "192.0.2.1" {
		t.Errorf("a has %v", got)
	}
	if got := b.look("other"); len(got.Status.Conditions) > 0 || len(got.Status.LoadBalancer.Ingress) != 1 {
		t.Errorf("other has %+v", got.Status)
	}
}

func TestReadingPools(t *testing.T) {
	t.Parallel()
	var reports []string
	s := poolSet{report: func(about corev1.ObjectReference, reason, note string) {
		reports = append(reports, about.Kind+" "+about.Name+" "+reason+" "+note)
	}}
	object := func(version, kind, namespace, name string, spec map[string]any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": version, "kind": kind, "spec": spec,
			"metadata": map[string]any{"namespace": namespace, "name": name, "uid": kind + namespace + name}}}
	}
	own := object("sluice.dev/v1alpha1", "AddressPool", "", "main", map[string]any{"addresses": []any{"192.0.2.0/28"}})
	same := object("metallb.io/v1beta1", "IPAddressPool", "metallb-system", "main",
		map[string]any{"addresses": []any{"198.51.100.0/28"}})
	overlapping := object("metallb.io/v1beta1", "IPAddressPool", "metallb-system", "other", map[string]any{
		"addresses": []any{"192.0.2.8/29"}, "colour": "red", "serviceAllocation": map[string]any{"size": int64(1)}})
	all := []*unstructured.Unstructured{overlapping, same, own}
	names := func() (list []string) {
		read, _ := s.read(all)
		for _, p := range read {
			list = append(list, p.Name)
		}
		return list
	}
	expect := func(what string, want ...string) {
		t.Helper()
		if len(reports) != len(want) {
			t.Errorf("%s: reported %q", what, reports)
		}
		for _, w := range want {
			if !slices.ContainsFunc(reports, func(s string) bool { return strings.HasPrefix(s, w) }) {
				t.Errorf("%s: no %q in %q", what, w, reports)
			}
		}
		reports = nil
	}
	if got := names(); !slices.Equal(got, []string{"main", "other"}) {
		t.Errorf("pools are %v", got)
	}
	expect("first", "IPAddressPool main PoolNameTaken", "IPAddressPool other PoolsOverlap 192.0.2.8",
		"IPAddressPool other FieldNotDone Sluice does not read spec.colour, spec.serviceAllocation.size")
	names()
	expect("again")
	own.Object["spec"] = map[string]any{"addresses": []any{"192.0.2"}}
	if got, unreadable := s.read(all); len(unreadable) > 0 || len(got) != 2 ||
		!got[0].Contains(netip.MustParseAddr("192.0.2.1")) {
		t.Errorf("a mistake took the pool away: %v", got)
	}
	expect("a mistake", "AddressPool main PoolInvalid pool main: addresses[0]")
	own.Object["spec"] = "x"
	names()
	expect("another", "AddressPool main PoolInvalid spec is missing; its previous version")
}

// A process that starts while a pool cannot be read neither clears nor moves Services whose
// addresses may be from it, and reports that. After a repair the state is as before.
func TestUnreadablePoolAtStart(t *testing.T) {
	t.Parallel()
	a, other := balancer("a", nil), balancer("other", nil)
	for _, s := range []*corev1.Service{a, other} {
		s.Spec.ClusterIP, s.Spec.ClusterIPs = "fd00::1", []string{"fd00::1"}
	}
	a.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "2001:db8::1a"}}
	b := newBench(t, a, other)
	var reports []string
	s := poolSet{report: func(about corev1.ObjectReference, reason, note string) {
		reports = append(reports, about.Name+" "+reason+" "+note)
	}}
	object := func(name, addresses string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "sluice.dev/v1alpha1",
			"kind": "AddressPool", "spec": map[string]any{"addresses": []any{addresses}},
			"metadata": map[string]any{"name": name, "uid": name}}}
	}
	good, public := object("good", "2001:db8:1::/64"), object("public", "2001:db8::1f-2001:db8::10")
	read := func() {
		list, unreadable := s.read([]*unstructured.Unstructured{good, public})
		b.setPools(list, unreadable, b.all())
		b.must("a", "other")
	}
	read()
	b.has("a", "2001:db8::1a")
	b.has("other", "2001:db8:1::")
	if c := b.condition("a"); c.Status != metav1.ConditionTrue || c.Reason != "Assigned" ||
		!strings.HasPrefix(c.Message, "2001:db8::1a; PoolInvalid: 2001:db8::1a: no pool that can be read has it") {
		t.Errorf("%+v", c)
	}
	if len(reports) != 1 || !strings.HasSuffix(reports[0], "Services keep their addresses that are in no other pool") {
		t.Errorf("reported %q", reports)
	}
	if note := b.reported["default/a"]; !strings.Contains(note, "it stays until pool public can be read") {
		t.Errorf("the Event is %q", note)
	}
	public.Object["spec"] = map[string]any{"addresses": []any{"2001:db8::10-2001:db8::1f"}}
	read()
	b.has("a", "2001:db8::1a")
	if c := b.condition("a"); withoutLeader(c.Message) != "2001:db8::1a of pool public" {
		t.Errorf("repaired: %+v", c)
	}
	public.Object["spec"] = "x" // now the process knows the previous version
	read()
	if c := b.condition("a"); withoutLeader(c.Message) != "2001:db8::1a of pool public" {
		t.Errorf("and mistaken again: %+v", c)
	}
}

// TestFreedForWhoWaits: a freed address wakes only the Services that may get it: not a hundred that
// keep addresses of an unreadable pool, nor one that waits for that pool, nor Services that lack
// the other family.
func TestFreedForWhoWaits(t *testing.T) {
	t.Parallel()
	var all []*corev1.Service
	add := func(name, has string, annotations map[string]string) *corev1.Service {
		s := balancer(name, annotations)
		if has != "" {
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: has}}
		}
		all = append(all, s)
		return s
	}
	for i := range 100 {
		add(fmt.Sprint("kept", i), fmt.Sprint("198.51.100.", i), nil)
	}
	add("asks", "", map[string]string{"metallb.io/address-pool": "bad"})
	add("ends", "192.0.2.0", nil)
	prefer := corev1.IPFamilyPolicyPreferDualStack
	for name, has := range map[string]string{"four": "192.0.2.1", "both": "203.0.113.0"} {
		s := add(name, has, nil)
		s.Spec.ClusterIPs, s.Spec.IPFamilyPolicy = []string{"10.0.0.1", "fd00::1"}, &prefer
	}
	six := add("six", "2001:db8::", nil)
	six.Spec.ClusterIP, six.Spec.ClusterIPs = "fd00::1", []string{"fd00::1"}
	add("waits", "", nil)
	b := newBench(t, all...)
	var list []*pools.Pool
	for name, addresses := range map[string][]string{"four": {"192.0.2.0/31"},
		"both": {"203.0.113.0/32", "2001:db8::/128"}} {
		p, err := pools.New(name, pools.Spec{Addresses: addresses})
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, p)
	}
	b.setPools(list, []*pools.Pool{pools.Remains("bad", pools.Spec{})}, b.all())
	for _, s := range all {
		b.must(s.Name)
	}
	b.queued("")
	if _, waiting, _ := b.figures(); waiting != 4 {
		t.Errorf("%d Services lack something, want asks, four, both and waits", waiting)
	}
	if err := b.services.Delete(all[101]); err != nil {
		t.Fatal(err)
	}
	b.must("ends")
	var again []string
	for b.queue.Len() > 0 {
		key, _ := b.queue.Get()
		again = append(again, key)
		b.queue.Done(key)
	}
	if want := []string{"default/waits"}; !slices.Equal(again, want) {
		t.Errorf("%d are looked at again: %v, want %v", len(again), again, want)
	}
	b.must("waits")
	b.has("waits", "192.0.2.0")
	b.has("kept7", "198.51.100.7")
}

// A waiting Service is processed again when the other one permits sharing.
func TestSharingIsPermittedLater(t *testing.T) {
	t.Parallel()
	key := func(more ...string) map[string]string {
		m := map[string]string{"lbipam.cilium.io/sharing-key": "k"}
		for _, list := range more {
			m["lbipam.cilium.io/sharing-cross-namespace"] = list
		}
		return m
	}
	waiting := balancer("b", key("default"))
	waiting.Namespace = "other"
	b := newBench(t, balancer("a", key()), waiting)
	b.pools(pools.Spec{Addresses: []string{"192.0.2.1/32"}})
	b.must("a")
	if err := b.process(t.Context(), "other/b"); err != nil {
		t.Fatal(err)
	}
	b.queued("")
	a := b.look("a").DeepCopy()
	a.Annotations = key("other")
	b.cache(a)
	b.must("a")
	if !b.queued("other/b") {
		t.Error("other/b is not looked at again")
	}
}

// A status that lists an address twice counts as different from the wanted one.
func TestTwiceTheSame(t *testing.T) {
	t.Parallel()
	s := balancer("a", nil)
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}, {IP: "192.0.2.1"}}
	want := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
	if !setIngress(&s.Status, want) {
		t.Errorf("%v is taken for %v", s.Status.LoadBalancer.Ingress, want)
	}
}

// A Service of another controller gives up an address: a waiting Service gets it.
func TestOthersGiveUpAddresses(t *testing.T) {
	t.Parallel()
	class := "example.org/lb"
	other := balancer("other", nil)
	other.Spec.LoadBalancerClass = &class
	other.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.0"}}
	for name, change := range map[string]func(*corev1.Service){
		"another address": func(s *corev1.Service) { s.Status.LoadBalancer.Ingress[0].IP = "198.51.100.1" },
		"no address":      func(s *corev1.Service) { s.Status.LoadBalancer.Ingress = nil },
		"ours, and asks for nothing that is there": func(s *corev1.Service) {
			s.Spec.LoadBalancerClass, s.Status.LoadBalancer.Ingress = nil, nil
			s.Annotations = map[string]string{"metallb.io/address-pool": "nowhere"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, other.DeepCopy(), balancer("a", nil))
			b.pools(pools.Spec{Addresses: []string{"192.0.2.0/32"}})
			b.must("other", "a")
			b.has("a", "")
			b.queued("")
			next := other.DeepCopy()
			change(next)
			b.cache(next)
			b.must("other")
			if !b.queued("default/a") {
				t.Error("a is not looked at again")
			}
			b.must("a")
			b.has("a", "192.0.2.0")
		})
	}
}

// The addresses of an unknown write are released when the Service has a new version.
func TestDoubtEnds(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*corev1.Service){
		"it was written": func(s *corev1.Service) {
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
			s.Status.Conditions = append(s.Status.Conditions,
				condition(pools.Result{Addresses: pools.StatusOf(s), Pool: "p0"}, "me"))
		},
		"its type is another": func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			share := map[string]string{"metallb.io/allow-shared-ip": "k"}
			b := newBench(t, balancer("a", share), balancer("b", share))
			b.pools(pools.Spec{Addresses: []string{"192.0.2.1/32"}})
			b.fail = context.DeadlineExceeded
			if err := b.process(t.Context(), "default/a"); err == nil {
				t.Fatal("no error")
			}
			b.fail = nil
			b.must("b")
			b.has("b", "")
			b.queued("")
			a := balancer("a", share)
			a.ResourceVersion = "12"
			change(a)
			b.cache(a)
			b.must("a")
			if !b.queued("default/b") {
				t.Error("b is not looked at again")
			}
			b.must("b")
			b.has("b", "192.0.2.1")
		})
	}
}

// Several writes of one version have unknown results: any of them may have succeeded.
func TestSeveralDoubts(t *testing.T) {
	t.Parallel()
	b := newBench(t, balancer("a", nil), balancer("b", nil))
	one, two := pools.Spec{Addresses: []string{"192.0.2.1/32"}}, pools.Spec{Addresses: []string{"192.0.2.2/32"}}
	b.fail = context.DeadlineExceeded
	for _, spec := range []pools.Spec{one, two} {
		b.pools(spec)
		if err := b.process(t.Context(), "default/a"); err == nil {
			t.Fatal("no error")
		}
	}
	b.fail = nil
	b.pools(one)
	b.must("b")
	b.has("b", "")
}

// An address that a status lists is given to no other Service, even if its own lost it, until the
// status is written without it.
func TestStatusListsWhatWasLost(t *testing.T) {
	t.Parallel()
	denied := apierrors.NewForbidden(schema.GroupResource{Resource: "services"}, "a", nil)
	for name, lose := range map[string]func(*bench, *corev1.Service){
		"told": func(b *bench, a *corev1.Service) {
			b.pools(pools.Spec{Addresses: []string{"192.0.2.1/32"}})
			a.Annotations = map[string]string{"metallb.io/address-pool": "nowhere"}
			b.cache(a)
			b.fail = denied
			if err := b.process(b.Context(), "default/a"); err == nil {
				b.Error("no error")
			}
		},
		"from the start": func(b *bench, a *corev1.Service) {
			a.Annotations = map[string]string{"metallb.io/address-pool": "nowhere"}
			b.cache(a)
			b.pools(pools.Spec{Addresses: []string{"192.0.2.1/32"}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := balancer("a", nil)
			a.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
			b := newBench(t, a, balancer("b", nil))
			lose(b, a.DeepCopy())
			b.fail = nil
			b.must("b")
			b.has("b", "")
			b.queued("")
			b.must("a")
			if !b.queued("default/b") {
				t.Error("b is not looked at again")
			}
			b.must("b")
			b.has("b", "192.0.2.1")
		})
	}
}

// A Service that cannot be written does not keep all others without an address for ever.
func TestFenceAndOneThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	of := schema.GroupResource{Resource: "services"}
	for name, test := range map[string]struct {
		err  error
		over bool
	}{
		"policy":  {apierrors.NewForbidden(of, "a", errors.New("a policy says no")), true},
		"size":    {apierrors.NewInternalError(errors.New("etcdserver: request is too large")), true},
		"busy":    {apierrors.NewTooManyRequests("busy", 1), false},
		"timeout": {apierrors.NewTimeoutError("slow", 1), false},
		"away":    {apierrors.NewServiceUnavailable("away"), false}, "network": {io.ErrUnexpectedEOF, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, balancer("a", nil))
			b.fail, b.fenceTimeout = test.err, 0
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			b.afterWrite = func() {
				if b.writes == 3 {
					cancel()
				}
			}
			list, err := b.fence(ctx, b.all())
			if over := err == nil && len(list) == 1; over != test.over || b.unfenced.Load() != test.over {
				t.Errorf("%d Services, %v, unfenced %v", len(list), err, b.unfenced.Load())
			}
		})
	}
	b := newBench(t, balancer("a", nil))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	b.fail, b.afterWrite = apierrors.NewForbidden(of, "a", nil), func() {
		if b.writes == 3 {
			cancel()
		}
	}
	if _, err := b.fence(ctx, b.all()); err == nil || b.unfenced.Load() {
		t.Error("it is passed over at once")
	}
}
