package compiler_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/controltest"
	"sluice.dev/sluice/control/files"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/tracker"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// goods are Services of every kind, the oldest of all, in a namespace that no mutated object is in.
// Their addresses, ports and node ports are among the mutator's words, but for those that others
// may take: an external IP, which goes to the Service that has it as ClusterIP or VIP, and the
// endpoints', which are none while they are an address of a Service.
const goods = `{apiVersion: v1, kind: Service, metadata: {name: plain, namespace: good, creationTimestamp: "1970-01-01T00:00:01Z"},
  spec: {type: LoadBalancer, clusterIPs: [10.96.0.201, "2001:db8:96::201"], externalIPs: [198.18.200.77],
    ports: [{name: http, port: 80, nodePort: 32100}, {name: dns, port: 53, protocol: UDP, nodePort: 32100}]},
  status: {loadBalancer: {ingress: [{ip: 203.0.113.200}, {ip: "2001:db8:f::200"}]}}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: plain-4, namespace: good, labels: {kubernetes.io/service-name: plain}},
  addressType: IPv4, ports: [{name: http, port: 8080}, {name: dns, port: 5353, protocol: UDP}],
  endpoints: [{addresses: [100.64.77.1]}, {addresses: [100.64.77.2]}, {addresses: [100.64.77.3], conditions: {ready: false}}]}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: plain-6, namespace: good, labels: {kubernetes.io/service-name: plain}},
  addressType: IPv6, ports: [{name: http, port: 8080}], endpoints: [{addresses: ["2001:db8:600d::1"]}]}
---
{apiVersion: v1, kind: Service, metadata: {name: local, namespace: good, creationTimestamp: "1970-01-01T00:00:01Z"},
  spec: {type: LoadBalancer, externalTrafficPolicy: Local, internalTrafficPolicy: Local, healthCheckNodePort: 31100, clusterIPs: [10.96.0.202], ports: [{port: 80}]},
  status: {loadBalancer: {ingress: [{ip: 203.0.113.202}]}}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: local, namespace: good, labels: {kubernetes.io/service-name: local}},
  addressType: IPv4, ports: [{port: 8080}], endpoints: [{addresses: [100.64.77.11], nodeName: gw-1}, {addresses: [100.64.77.12], nodeName: gw-2}]}
---
{apiVersion: v1, kind: Service, metadata: {name: guarded, namespace: good, creationTimestamp: "1970-01-01T00:00:01Z",
    annotations: {sluice.dev/scheduler: wrr, sluice.dev/weights: "100.64.77.21=3"}},
  spec: {type: LoadBalancer, clusterIPs: [10.96.0.203], sessionAffinity: ClientIP, loadBalancerSourceRanges: [198.51.100.0/24], ports: [{port: 80, protocol: SCTP}]},
  status: {loadBalancer: {ingress: [{ip: 203.0.113.203}]}}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: guarded, namespace: good, labels: {kubernetes.io/service-name: guarded}},
  addressType: IPv4, ports: [{port: 8080, protocol: SCTP}], endpoints: [{addresses: [100.64.77.21]}, {addresses: [100.64.77.22]}]}
---
{apiVersion: v1, kind: Service, metadata: {name: empty, namespace: good, creationTimestamp: "1970-01-01T00:00:01Z"},
  spec: {type: LoadBalancer, clusterIPs: [10.96.0.204], ports: [{port: 80}]}, status: {loadBalancer: {ingress: [{ip: 203.0.113.204}]}}}
`

// mutatedObjects is a compiler with good objects, and the mutated ones beside them.
type mutatedObjects struct {
	t        *testing.T
	m        mutator
	tracker  *tracker.Tracker
	compiler *compiler.Compiler
	kernel   *controltest.Kernel
	live     []live // mutated objects, oldest first
	last     []runtime.Object
	good     map[services.FrontendKey]string // as the good objects alone are served
	health   []compiler.HealthCheck

	refused, frontends, backends int // the most that there were at a time
	kinds                        map[string]int
}

type live struct {
	from objects.Source
	id   objects.ObjectID
}

func newMutatedObjects(t *testing.T, seed uint64) *mutatedObjects {
	cfg := controltest.Config()
	cfg.ClusterIPs, cfg.ClusterCIDRs = true, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}
	cfg.LocalAddresses = cfg.NodeAddresses[:1]
	g := &mutatedObjects{
		t: t, m: mutator{world: world{rand.New(rand.NewPCG(seed, 0))}}, tracker: tracker.New(),
		compiler: compiler.New(cfg),
		kernel:   controltest.NewKernel(), good: map[services.FrontendKey]string{}, kinds: map[string]int{},
	}
	all := g.compiler.Steer()
	g.kernel.Must(t, &all.Open, g.kernel.Open)
	var batch tracker.Batch
	if _, err := files.Decode(objects.Source{Kind: "good"}, []byte(goods), &batch); err != nil {
		t.Fatal(err)
	}
	g.tracker.Apply(&batch)
	s, problems, steer := g.compiler.Compile(g.tracker.Changes())
	g.kernel.Must(t, &steer.Open, g.kernel.Open)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	s.Frontends(func(f *services.Frontend) bool {
		g.good[f.Key] = served(s, f)
		return true
	})
	if g.health = g.compiler.HealthChecks(); len(g.good) != 20 || len(g.health) != 1 {
		t.Fatalf("%d good frontends, health checks %v: %v", len(g.good), g.health, g.good)
	}
	return g
}

// served is all that a frontend's clients can notice.
func served(s *services.Snapshot, f *services.Frontend) string {
	return fmt.Sprint(key(f.Key), f.Kind, serviceName(f.Service), renderService(f), f.Allowed.List(),
		renderRule(s, &f.Outside, true), renderRule(s, &f.Pod, true), f.Service.Identity)
}

// TestMutatedObjects puts mutated Services, EndpointSlices and Nodes beside good ones: 20,000 of
// them (a tenth with -short), or the number in SLUICE_OBJECTS. With any content nothing panics, no
// address is in the table that packets must not be sent to, the good ones are served exactly as if
// they were alone, the kernel program is told each difference once, and the table is what a compile
// from nothing makes.
func TestMutatedObjects(t *testing.T) {
	const usual, fullEvery = 20_000, 500
	count := usual
	if testing.Short() {
		count /= 10
	}
	if text := os.Getenv("SLUICE_OBJECTS"); text != "" {
		var err error
		if count, err = strconv.Atoi(text); err != nil {
			t.Fatalf("SLUICE_OBJECTS: %v", err)
		}
	}
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d: SLUICE_OBJECTS=%d go test -run TestMutatedObjects -seed %[1]d ./control/compiler", seed, count)
	g := newMutatedObjects(t, seed)
	start, compiles, fulls := time.Now(), 0, 0
	for n := 0; n < count; {
		before := n / fullEvery
		n += g.step(min(1+g.m.one(8), count-n))
		compiles++
		if n/fullEvery != before {
			g.full()
			fulls++
		}
	}
	took := time.Since(start)
	t.Logf("%d mutated objects in %v (%.0f/s): %v; %d compiles, %d of them compared with one from nothing; %d long "+
		"lists; "+
		"%d tables; at most %d problems, %d frontends, %d backends at a time", count, took.Round(time.Millisecond),
		float64(count)/took.Seconds(), g.kinds, compiles, fulls,
		g.m.huge, g.compiler.Snapshot().Generation, g.refused, g.frontends, g.backends)
	if count >= usual && (g.frontends < 2*len(g.good) || g.refused < 20 || g.m.huge == 0 || len(g.kinds) != 3 ||
		fulls == 0) {
		t.Error("the mutated objects try too little")
	}
}

// step reads n mutated objects at once and compiles.
func (g *mutatedObjects) step(n int) int {
	g.last = g.last[:0]
	defer func() {
		if r := recover(); r != nil {
			g.show()
			panic(r)
		}
	}()
	var batch tracker.Batch
	for range n {
		o := g.object()
		g.last = append(g.last, o)
		from := objects.Source{Kind: "mutated", Path: string(rune('a' + g.m.one(2)*g.m.one(2)))}
		batch.Upsert(from, o)
		g.live = append(g.live, live{from, idOf(o)})
	}
	for len(g.live) > 60 {
		batch.Delete(g.live[0].from, g.live[0].id)
		g.live = g.live[1:]
	}
	g.tracker.Apply(&batch)
	s, problems, steer := g.compiler.Compile(g.tracker.Changes())
	g.kernel.Must(g.t, &steer.Open, g.kernel.Open)
	g.kernel.Must(g.t, &steer.Close, g.kernel.Close)
	g.compiler.Release(s.Generation)
	g.check(s, g.tracker.Locate(problems))
	if g.t.Failed() {
		g.show()
		g.t.FailNow()
	}
	return n
}

// object is one that is good but for what the mutator did to it.
func (g *mutatedObjects) object() runtime.Object {
	var o runtime.Object
	switch n := g.m.one(20); {
	case n < 8:
		svc := g.m.service("default", fmt.Sprintf("svc-%d", g.m.one(8)))
		if svc.CreationTimestamp.Unix() == 1 {
			svc.CreationTimestamp = metav1.NewTime(time.Unix(2, 0)) // age decides who has a frontend
		}
		o = svc
	case n < 19:
		o = g.m.slice("default", fmt.Sprintf("slice-%d", g.m.one(12)))
	default:
		o = g.m.node(fmt.Sprintf("gw-%d", 1+g.m.one(2)))
	}
	g.m.mutate(o)
	id := idOf(o)
	if g.kinds[id.Kind]++; id.Namespace == "good" {
		g.t.Fatalf("%v is among the good ones", id)
	}
	return o
}

func idOf(o runtime.Object) objects.ObjectID {
	switch o := o.(type) {
	case *corev1.Service:
		return objects.ObjectID{Kind: objects.KindService, Namespace: o.Namespace, Name: o.Name}
	case *discoveryv1.EndpointSlice:
		return objects.ObjectID{Kind: objects.KindEndpointSlice, Namespace: o.Namespace, Name: o.Name}
	default:
		return objects.ObjectID{Kind: objects.KindNode, Name: o.(*corev1.Node).Name}
	}
}

// show prints what was read last.
func (g *mutatedObjects) show() {
	for _, o := range g.last {
		text, err := json.Marshal(o)
		g.t.Logf("%T %s %v", o, text[:min(len(text), 4000)], err)
	}
}

// check holds a table to what must be true of every table.
func (g *mutatedObjects) check(s *services.Snapshot, problems []objects.Problem) {
	t := g.t
	for k, want := range g.good {
		if f, ok := s.FrontendByKey(k); !ok {
			t.Errorf("%s is not served", key(k))
		} else if got := served(s, f); got != want {
			t.Errorf("%s\n%s", key(k), cmp.Diff(want, got))
		}
	}
	backends, frontends := 0, 0
	s.Backends(func(b *services.Backend) bool {
		backends++
		if illegal(b.Addr) || b.Port == 0 || atGateway(s, b) {
			t.Errorf("backend %+v", *b)
		}
		return true
	})
	s.Frontends(func(f *services.Frontend) bool {
		frontends++
		g.checkFrontend(s, f)
		return true
	})
	s.Addrs(func(a header.Addr, flags services.AddrFlags) bool {
		if illegal(a) || flags == 0 {
			t.Errorf("address %v: %v", a, flags)
		}
		return true
	})
	refused := 0
	for _, p := range problems {
		if strings.ContainsFunc(p.String(), func(r rune) bool { return r < ' ' || r == 0x7f || r == '\u2028' }) ||
			p.Message == "" {
			t.Errorf("problem %q", p.String())
		}
		if p.Object.Namespace == "good" {
			t.Errorf("of a good object: %v", p)
		}
		refused++
	}
	for _, h := range g.health {
		if !slices.Contains(g.compiler.HealthChecks(), h) {
			t.Errorf("health check %+v is gone", h)
		}
	}
	g.refused, g.frontends, g.backends = max(g.refused, refused), max(g.frontends, frontends), max(g.backends, backends)
}

// atGateway reports whether packets to a backend come to the gateway itself. Of external IPs
// only those of its own namespace count: nobody takes others' endpoints by one.
func atGateway(s *services.Snapshot, b *services.Backend) bool {
	own := s.Owned(b.Addr)
	f, ok := s.FrontendByKey(services.FrontendKey{Addr: b.Addr, Port: b.Port, Proto: b.Proto})
	return own&services.AddrLocal == 0 &&
		(own&services.AddrSNAT != 0 || ok && (f.Kind != services.ExternalIP ||
			f.Service.Namespace == s.Service(b.Service).Namespace))
}

// checkFrontend: it can be sent to, belongs to its service, and chooses among backends
// that serve, of its protocol and family, in order and each once.
func (g *mutatedObjects) checkFrontend(s *services.Snapshot, f *services.Frontend) {
	anyAddr := f.Key.Addr == services.AnyIPv4 || f.Key.Addr == services.AnyIPv6
	if f.Key.Port == 0 || anyAddr != (f.Kind == services.NodePort) || !anyAddr && illegal(f.Key.Addr) ||
		s.Service(f.Service.ID) != f.Service {
		g.t.Errorf("frontend %+v", *f)
	}
	for _, r := range f.Service.Backends {
		if b := s.Backend(r); b == nil || f.Service.Find(s, b.Addr, b.Port) != r {
			g.t.Errorf("frontend %+v: the Service's endpoints are not in order, each once", *f)
		}
	}
	for _, set := range []*services.EndpointSet{f.Outside.Set, f.Pod.Set} {
		for i, r := range set.Backends {
			b := s.Backend(r)
			if b == nil || b.Flags&services.BackendServing == 0 || b.Proto != f.Key.Proto ||
				b.Addr.Is4() != f.Key.Addr.Is4() ||
				b.Service != f.Service.ID || b.Weight == 0 {
				g.t.Fatalf("frontend %+v sends new flows to %+v", *f, b)
			}
			if i > 0 && set.Find(s, b.Addr, b.Port) != r {
				g.t.Errorf("frontend %+v: backends are not in order, each once", *f)
			}
		}
		for _, at := range set.Table {
			if int(at) >= len(set.Backends) {
				g.t.Errorf("frontend %+v: a slot is beyond the backends", *f)
			}
		}
	}
}

// full holds the table to one compiled from nothing.
func (g *mutatedObjects) full() {
	s, problems, steer := g.compiler.Full(g.tracker.State())
	if got, want := describe(g.compiler.Snapshot(), g.compiler.Problems()), describe(s, problems); got != want {
		g.show()
		g.t.Fatalf("incremental (+) against full (-):\n%s", cmp.Diff(strings.Split(want, "\n"),
			strings.Split(got, "\n")))
	}
	if got, want := g.compiler.HealthChecks(), g.compiler.FullHealthChecks(g.tracker.State()); !slices.Equal(got,
		want) {
		g.t.Fatalf("health checks are %+v, and full %+v", got, want)
	}
	g.kernel.Equal(g.t, &steer.Open)
}
