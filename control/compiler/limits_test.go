package compiler

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/tracker"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

var limitsSource = objects.Source{Kind: "limits"}

// wide is a Service with ports 1 to n and the address 10.96.0.last.
func wide(name string, last byte, ports int, created int64) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name,
		CreationTimestamp: metav1.NewTime(time.Unix(created, 0))}}
	s.Spec.ClusterIP = fmt.Sprintf("10.96.0.%d", last)
	for p := range ports {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: fmt.Sprintf("p%d", p+1), Port: int32(p + 1)})
	}
	return s
}

// wideSlice has the ports of a wide Service and n endpoints of the network 10.net.
func wideSlice(of string, net byte, ports, n int) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4}
	s.Namespace, s.Name, s.Labels = "n", fmt.Sprintf("%s-%d", of, net),
		map[string]string{discoveryv1.LabelServiceName: of}
	for p := range ports {
		name, number := fmt.Sprintf("p%d", p+1), int32(p+1)
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &name, Port: &number})
	}
	for i := range n {
		s.Endpoints = append(s.Endpoints,
			discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.%d.%d.%d", net, i>>8, i&255)}})
	}
	return s
}

// limited is a compiler with the tracker whose changes it compiles.
type limited struct {
	*Compiler
	t       *testing.T
	tracker *tracker.Tracker
}

func newLimited(t *testing.T, cfg Config) *limited {
	cfg.ClusterIPs = true
	return &limited{New(cfg), t, tracker.New()}
}

// compile compiles changes, and compares with a table from scratch and by the self check.
func (l *limited) compile() []objects.Problem {
	l.t.Helper()
	s, problems, _ := l.Compile(l.tracker.Changes())
	l.Release(s.Generation)
	fresh := l.full(l.tracker.State())
	if !slices.Equal(problems, fresh.Problems()) {
		l.t.Fatalf("incremental: %v\nfrom nothing: %v", problems, fresh.Problems())
	}
	if d := l.CheckAll(l.tracker); d != "" {
		l.t.Fatal(d)
	}
	return problems
}

// served counts the frontends at 10.96.0.last and the endpoints behind port 1.
func (l *limited) served(last byte) (frontends, endpoints int) {
	at := header.AddrFrom4([4]byte{10, 96, 0, last})
	l.snapshot.Frontends(func(f *services.Frontend) bool {
		if f.Key.Addr == at {
			frontends++
		}
		return true
	})
	if f, ok := l.snapshot.FrontendByKey(services.FrontendKey{Addr: at, Port: 1, Proto: header.ProtoTCP}); ok {
		endpoints = len(f.Outside.Set.Backends)
	}
	return frontends, endpoints
}

// TestFrontendsOfOneServiceAreBounded: ports are served in their order up to the bound.
func TestFrontendsOfOneServiceAreBounded(t *testing.T) {
	l := newLimited(t, Config{})
	s := wide("x", 1, maxServiceFrontends/2+10, 1)
	s.Spec.ExternalIPs = []string{"192.0.2.1"}
	l.tracker.Upsert(limitsSource, s)
	problems := l.compile()
	if n, _ := l.served(1); n != maxServiceFrontends/2 {
		t.Errorf("%d frontends at one of two addresses, want %d", n, maxServiceFrontends/2)
	}
	if len(problems) != 1 || problems[0].Field != fmt.Sprintf("spec.ports[%d]", maxServiceFrontends/2) {
		t.Errorf("problems %v", problems)
	}
	s.Spec.Ports = s.Spec.Ports[:maxServiceFrontends/2]
	l.tracker.Upsert(limitsSource, s)
	if problems := l.compile(); len(problems) != 0 {
		t.Errorf("at the bound: %v", problems)
	}
}

// TestOlderServicesGetTheRoom: if Services exceed the kernel program's room, the youngest get
// nothing; they are served when an older one is deleted.
func TestOlderServicesGetTheRoom(t *testing.T) {
	pods := Config{NodeName: "gw"}
	pods.ClusterCIDRs = append(pods.ClusterCIDRs, netip.MustParsePrefix("10.244.0.0/16"))
	for name, cfg := range map[string]Config{
		"frontends": {MaxFrontends: 10},
		"addresses": func(c Config) Config { c.MaxAddrs = 8; return c }(pods),
		"sources":   func(c Config) Config { c.MaxSources = 18; return c }(pods),
	} {
		t.Run(name, func(t *testing.T) {
			l := newLimited(t, cfg)
			for i, age := range []int64{3, 1, 2} {
				name := fmt.Sprintf("s%d", i+1)
				l.tracker.Upsert(limitsSource, wide(name, byte(i+1), 3, age))
				l.tracker.Upsert(limitsSource, wideSlice(name, byte(i+1), 3, 2))
			}
			if problems := l.compile(); name == "frontends" && len(problems) != 0 {
				t.Fatal(problems)
			}
			big := wide("big", 9, 5, 0)
			l.tracker.Upsert(limitsSource, big) // the oldest, and no endpoints yet
			l.tracker.Upsert(limitsSource, wideSlice("big", 9, 3, 4))
			problems := l.compile()
			for last, want := range map[byte]int{9: 5, 2: 3, 3: 0, 1: 0} {
				if n, _ := l.served(last); n != want {
					t.Errorf("10.96.0.%d has %d frontends, want %d; %v", last, n, want, problems)
				}
			}
			for _, p := range problems {
				if p.Severity == objects.Warning {
					continue // two ports of the oldest are in no slice
				}
				if p.Reason != objects.ReasonNoRoom || p.Object.Name == "big" || p.Object.Name == "s2" {
					t.Errorf("problem %+v", p)
				}
			}
			l.tracker.Delete(limitsSource, objects.ObjectID{Kind: objects.KindService, Namespace: "n", Name: "big"})
			l.compile()
			l.tracker.Delete(limitsSource, objects.ObjectID{Kind: objects.KindService, Namespace: "n", Name: "s2"})
			l.compile()
			for _, last := range []byte{3, 1} {
				if n, endpoints := l.served(last); n != 3 || endpoints != 2 {
					t.Errorf("after the older ones went 10.96.0.%d has %d frontends and %d endpoints", last, n,
						endpoints)
				}
			}
		})
	}
}

// TestBackendsOfOneServiceAreBounded: a Service whose ports all have all endpoints takes an
// eighth of the numbers, and others have theirs.
func TestBackendsOfOneServiceAreBounded(t *testing.T) {
	l := newLimited(t, Config{})
	l.cfg.Scheduler = services.RoundRobin // no tables
	const slicesOf, maxSliceEndpoints = 3, 1000
	ports := maxServiceBackends/(slicesOf*maxSliceEndpoints) + 5
	l.tracker.Upsert(limitsSource, wide("x", 1, ports, 1))
	for i := range slicesOf {
		l.tracker.Upsert(limitsSource, wideSlice("x", byte(i+1), ports, maxSliceEndpoints))
	}
	s, problems, _ := l.Compile(l.tracker.Changes())
	n := 0
	s.Backends(func(*services.Backend) bool { n++; return true })
	if n != maxServiceBackends {
		t.Errorf("%d backends, want %d", n, maxServiceBackends)
	}
	if at := maxServiceBackends / (slicesOf * maxSliceEndpoints); len(problems) != 1 ||
		problems[0].Field != fmt.Sprintf("spec.ports[%d]", at) {
		t.Errorf("problems %v", problems)
	}
}

// directWide is a wide Service with direct return, of type NodePort: it has no frontend.
func directWide(name string, ports int, created int64) *corev1.Service {
	s := wide(name, 1, ports, created)
	s.Annotations = map[string]string{"sluice.dev/forwarding": "direct"}
	s.Spec.Type, s.Spec.ExternalTrafficPolicy = corev1.ServiceTypeNodePort, corev1.ServiceExternalTrafficPolicyLocal
	return s
}

// upsertNodes makes n Nodes with an address.
func (l *limited) upsertNodes(n int) {
	for i := range n {
		l.tracker.Upsert(limitsSource, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("node-", i)},
			Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP,
				Address: fmt.Sprintf("172.16.%d.%d", i>>8, i&255)}}}})
	}
}

func (l *limited) backends() (n int) {
	l.snapshot.Backends(func(*services.Backend) bool { n++; return true })
	return n
}

// TestNodesOfDirectServicesAreShared: each Node is a backend of each port of a direct Service, also
// without endpoints. A namespace gets its share of backends. Services beyond the share are served
// when there are fewer Nodes.
func TestNodesOfDirectServicesAreShared(t *testing.T) {
	const ports, nodes = 60, 100
	l := newLimited(t, Config{TunnelPort: 4789, NamespaceShare: 1})
	l.upsertNodes(nodes)
	fit := maxBackends / 100 / (ports * nodes)
	for i := range fit + 2 {
		l.tracker.Upsert(limitsSource, directWide(fmt.Sprint("d", i), ports, int64(i)))
	}
	problems := l.compile()
	if n := l.backends(); n != fit*ports*nodes || len(problems) != 2 {
		t.Errorf("%d backends of one namespace, want %d; %v", n, fit*ports*nodes, problems)
	}
	for _, p := range problems {
		if p.Reason != objects.ReasonNoRoom {
			t.Errorf("problem %v", p)
		}
	}
	for i := range nodes - 1 {
		l.tracker.Delete(limitsSource, objects.MakeObjectID(objects.KindNode, "", fmt.Sprint("node-", i)))
	}
	if problems := l.compile(); l.backends() != (fit+2)*ports || len(problems) != 0 {
		t.Errorf("%d backends at one node, want %d; %v", l.backends(), (fit+2)*ports, problems)
	}
}

// TestNodesOfOneServiceAreBounded: a direct Service has as many backends at most as another one has
// endpoints.
func TestNodesOfOneServiceAreBounded(t *testing.T) {
	const nodes = 2000
	l := newLimited(t, Config{TunnelPort: 4789})
	l.upsertNodes(nodes)
	l.tracker.Upsert(limitsSource, directWide("d", maxServiceBackends/nodes+5, 1))
	_, problems, _ := l.Compile(l.tracker.Changes())
	if n := l.backends(); n != maxServiceBackends {
		t.Errorf("%d backends, want %d", n, maxServiceBackends)
	}
	if len(problems) != 1 || problems[0].Field != fmt.Sprintf("spec.ports[%d]", maxServiceBackends/nodes) {
		t.Errorf("problems %v", problems)
	}
}

// TestShortUnitsAreBuiltAgain: endpoints that found no number get one as soon as there is one,
// and meanwhile the self check leaves only their Service out.
func TestShortUnitsAreBuiltAgain(t *testing.T) {
	l := newLimited(t, Config{})
	l.tracker.Upsert(limitsSource, wide("a", 1, 1, 1))
	l.tracker.Upsert(limitsSource, wideSlice("a", 1, 1, 3))
	s, _, _ := l.Compile(l.tracker.Changes())
	l.Release(s.Generation)
	l.ids.backends.next = services.MaxBackends - 1 // one is left
	l.tracker.Upsert(limitsSource, wide("b", 2, 1, 2))
	l.tracker.Upsert(limitsSource, wideSlice("b", 2, 1, 3))
	s, problems, _ := l.Compile(l.tracker.Changes())
	l.Release(s.Generation)
	if _, n := l.served(2); n != 1 || len(problems) != 1 || l.Starved() {
		t.Fatalf("%d endpoints, want 1; %v", n, problems)
	}
	checked := l.sample()
	if len(checked) != 1 || checked[0].key.name != "a" {
		t.Errorf("the self check takes %d units, want a alone", len(checked))
	}
	l.tracker.Delete(limitsSource, objects.ObjectID{Kind: objects.KindEndpointSlice, Namespace: "n", Name: "a-1"})
	s, _, _ = l.Compile(l.tracker.Changes())
	if l.Starved() {
		t.Error("numbers that snapshots in use know are free")
	}
	l.Release(s.Generation)
	if !l.Starved() {
		t.Fatal("the freed numbers are not assigned again")
	}
	_, problems, _ = l.Compile(&objects.Changes{})
	if _, n := l.served(2); n != 3 || len(problems) != 0 || len(l.ids.short) != 0 {
		t.Errorf("%d endpoints, want 3; %v", n, problems)
	}
	if d := l.CheckAll(l.tracker); d != "" {
		t.Error(d)
	}
}

// TestWeightsAreMatchedOncePerSlice: rules are matched with endpoints once for a version of a slice
// and of the rules, with any number of ports.
func TestWeightsAreMatchedOncePerSlice(t *testing.T) {
	l := newLimited(t, Config{})
	s := wide("x", 1, 3, 1)
	s.Annotations = map[string]string{"sluice.dev/weights": "10.1.0.0=5"}
	first := wideSlice("x", 1, 3, 2)
	l.tracker.Upsert(limitsSource, s)
	l.tracker.Upsert(limitsSource, first)
	l.compile()
	u := l.units.byKey[unitKey{"n", "x"}]
	list := func() []uint16 { return u.shares.of[u.slices[0]] }
	before := list()
	if !slices.Equal(before, []uint16{5, 1}) {
		t.Fatalf("weights %v", before)
	}
	l.tracker.Upsert(limitsSource, wideSlice("x", 2, 3, 2)) // another slice
	l.compile()
	if now := list(); &now[0] != &before[0] || len(u.shares.of) != 2 {
		t.Error("the weights of a slice that did not change were found again")
	}
	l.tracker.Delete(limitsSource, objects.ObjectID{Kind: objects.KindEndpointSlice, Namespace: "n", Name: "x-2"})
	l.compile()
	if len(u.shares.of) != 1 {
		t.Error("the weights of a slice that went are kept")
	}
	s.Annotations["sluice.dev/weights"] = "10.1.0.0=6"
	l.tracker.Upsert(limitsSource, s)
	first.Endpoints = first.Endpoints[:1]
	l.tracker.Upsert(limitsSource, first)
	l.compile()
	if now := list(); !slices.Equal(now, []uint16{6}) || len(u.shares.of) != 1 ||
		u.ports[2].families[0].members[0].weight != 6 {
		t.Errorf("weights %v of %d slices, want the new version alone", now, len(u.shares.of))
	}
}
