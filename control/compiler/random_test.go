package compiler_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/controltest"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/steer"
	"sluice.dev/sluice/control/tracker"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

var seedFlag = flag.Uint64("seed", 0, "of random tests; 0 draws one")

// world makes random objects out of so few names, addresses and ports that they
// meet in every way: frontends are contested, endpoints are VIPs, slices change
// their Service.
type world struct{ *rand.Rand }

func (w world) one(n int) int           { return w.IntN(n) }
func (w world) chance(percent int) bool { return w.IntN(100) < percent }

func (w world) addr() string {
	if w.chance(3) {
		return []string{"127.0.0.1", "224.0.0.1", "192.0.2.20", "not an address"}[w.one(4)]
	}
	return fmt.Sprintf("10.0.0.%d", 1+w.one(24))
}

// namespace is that of a Service or slice.
func (w world) namespace() string {
	return []string{"default", "default", "default", "other"}[w.one(4)]
}

// vip is now and then an endpoint's address.
func (w world) vip() string {
	if w.chance(30) {
		return w.addr()
	}
	return fmt.Sprintf("203.0.113.%d", 1+w.one(8))
}

func (w world) service(namespace, name string) *corev1.Service {
	s := &corev1.Service{}
	s.Name, s.Namespace = name, namespace
	if w.chance(50) {
		s.CreationTimestamp = metav1.NewTime(time.Unix(int64(1+w.one(3)), 0))
	}
	s.Spec.Type = []corev1.ServiceType{corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort,
		corev1.ServiceTypeLoadBalancer}[w.one(3)]
	s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}[:1+w.one(2)]
	if w.chance(30) {
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		s.Spec.HealthCheckNodePort = int32(31000 + w.one(3))
	}
	if w.chance(30) {
		p := []corev1.ServiceInternalTrafficPolicy{corev1.ServiceInternalTrafficPolicyLocal,
			corev1.ServiceInternalTrafficPolicyCluster, "bad"}[w.one(3)]
		s.Spec.InternalTrafficPolicy = &p
	}
	if w.chance(20) {
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		if w.chance(50) {
			seconds := int32(w.one(3) * 100)
			s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
				ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds},
			}
		}
	}
	for range w.one(3) * w.one(2) {
		s.Spec.LoadBalancerSourceRanges = append(s.Spec.LoadBalancerSourceRanges,
			[]string{"192.0.2.0/24", " 198.51.100.0/24", "0.0.0.0/0", "2001:db8::/32", "::/0", "bad",
				"bad::x/1"}[w.one(7)])
	}
	s.Annotations = w.annotations()
	switch w.one(12) {
	case 0:
		s.Spec.ClusterIP = corev1.ClusterIPNone
	case 1:
		s.UID = "seen"
	case 2, 3, 4:
		s.Spec.ClusterIPs = []string{fmt.Sprintf("10.96.0.%d", 1+w.one(6)), fmt.Sprintf("fd00::%d", 1+w.one(6))}[:1+
			w.one(2)]
	case 5:
		s.Spec.ClusterIPs = []string{w.vip()}
	}
	for i := range 1 + w.one(3) {
		p := corev1.ServicePort{Name: string(rune('a' + i)), Port: int32(80 + w.one(3)),
			Protocol: []corev1.Protocol{"TCP", "UDP", "SCTP"}[w.one(3)]}
		if w.chance(40) {
			p.NodePort = int32(30000 + w.one(3))
		}
		s.Spec.Ports = append(s.Spec.Ports, p)
	}
	for range w.one(3) {
		s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, w.vip())
	}
	for range w.one(3) {
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: w.vip()})
	}
	return s
}

// annotations are those that the compiler reads.
func (w world) annotations() map[string]string {
	a := map[string]string{}
	if w.chance(30) {
		a["sluice.dev/scheduler"] = append(services.SchedulerNames(), "bad")[w.Uint64N(uint64(services.NumSchedulers)+
			1)]
	}
	if w.chance(20) {
		a["sluice.dev/weights"] = []string{"10.0.0.0/29=3", "node:gw-1=0", "zone:a=2,zone:b=5",
			"10.0.0.3=65535,10.0.0.4=0", "bad=1", "10.0.0.0/8=x, 0.0.0.0/0=7"}[w.one(6)]
	}
	if w.chance(30) {
		a["sluice.dev/proxy-protocol"] = []string{"v2", "v2+udp", "none"}[w.one(3)]
	}
	if w.chance(20) {
		a["sluice.dev/forwarding"] = []string{"direct", "nat"}[w.one(2)]
	}
	return a
}

// node is one of two gateways, in a zone or not.
func (w world) node(name string) *corev1.Node {
	n := &corev1.Node{}
	n.Name = name
	if w.chance(70) {
		n.Labels = map[string]string{corev1.LabelTopologyZone: []string{"a", "b"}[w.one(2)]}
	}
	if w.chance(70) {
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: w.addr()}}
	}
	return n
}

func (w world) hints() *discoveryv1.EndpointHints {
	h := &discoveryv1.EndpointHints{}
	for range w.one(3) {
		h.ForZones = append(h.ForZones, discoveryv1.ForZone{Name: []string{"a", "b", "c"}[w.one(3)]})
	}
	for range w.one(2) {
		h.ForNodes = append(h.ForNodes, discoveryv1.ForNode{Name: []string{"gw-1", "gw-2"}[w.one(2)]})
	}
	return h
}

func (w world) slice(namespace, name string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4}
	s.Name, s.Namespace = name, namespace
	s.Labels = map[string]string{discoveryv1.LabelServiceName: fmt.Sprintf("svc-%d", w.one(8))}
	for i := range w.one(3) {
		name, number, protocol := string(rune('a'+i)), []int32{8080, 8081, 80}[w.one(3)],
			[]corev1.Protocol{"TCP", "UDP", "SCTP"}[w.one(3)]
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &name, Port: &number, Protocol: &protocol})
	}
	hinted := w.chance(50)
	if w.chance(30) {
		s.Annotations = w.annotations()
	}
	for range w.one(6) {
		e := discoveryv1.Endpoint{Addresses: []string{w.addr()}}
		for _, c := range []**bool{&e.Conditions.Ready, &e.Conditions.Serving, &e.Conditions.Terminating} {
			if w.chance(60) {
				b := w.chance(50)
				*c = &b
			}
		}
		if w.chance(60) {
			node := []string{"gw-1", "gw-2"}[w.one(2)]
			e.NodeName = &node
		}
		if hinted || w.chance(10) {
			e.Hints = w.hints()
		}
		if w.chance(30) {
			e.Zone = &[]string{"a", "b"}[w.one(2)]
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

// step makes one random change.
func (w world) step(t *tracker.Tracker) {
	from := objects.Source{Kind: "test", Path: string(rune('a' + w.one(2)*w.one(2)*w.one(2)))}
	kind, name := objects.KindEndpointSlice, fmt.Sprintf("slice-%d", w.one(12))
	if w.chance(30) {
		kind, name = objects.KindService, fmt.Sprintf("svc-%d", w.one(8))
	}
	if w.chance(3) {
		kind, name = objects.KindNode, fmt.Sprintf("gw-%d", 1+w.one(2))
	}
	namespace := w.namespace()
	switch {
	case w.chance(25):
		t.Delete(from, objects.ObjectID{Kind: kind,
			Namespace: map[bool]string{false: namespace}[kind == objects.KindNode], Name: name})
	case kind == objects.KindNode:
		t.Upsert(from, w.node(name))
	case kind == objects.KindService:
		t.Upsert(from, w.service(namespace, name))
	default:
		t.Upsert(from, w.slice(namespace, name))
	}
}

// TestIncrementalEqualsFull makes random changes, drains and reconfigurations: 20,000 of
// them, a million with SLUICE_E2E=full.
// Each so often, the compiler that saw them all must agree with one that sees
// only what they led to; and the kernel program, given only differences, must have
// open what the full set says.
func TestIncrementalEqualsFull(t *testing.T) {
	t.Run("at once", func(t *testing.T) { incrementalEqualsFull(t, false) })
	t.Run("tables deferred", func(t *testing.T) { incrementalEqualsFull(t, true) })
}

// incrementalEqualsFull, deferred: each table is built while more changes come, endpoints are
// merged as for large Services, and problems become stale.
func incrementalEqualsFull(t *testing.T, deferred bool) {
	changes, checkEvery := 20_000, 50
	if os.Getenv("SLUICE_E2E") == "full" {
		changes, checkEvery = 1_000_000, 1_000
	}
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d: go test -run TestIncrementalEqualsFull -seed %[1]d", seed)
	w := world{rand.New(rand.NewPCG(seed, 0))}
	tracker, c := tracker.New(), compiler.New(controltest.Config())
	if deferred {
		c.TreatAllAsLarge()
		c.DeferProblems(true)
	}
	owners := controltest.NewOwners(t)
	c.Watch(owners)
	kernel := controltest.NewKernel()
	all := c.Steer()
	kernel.Must(t, &all.Open, kernel.Open)

	var snapshot *services.Snapshot
	var problems []objects.Problem
	turns := 0
	apply := func(s *services.Snapshot, p []objects.Problem, steer *steer.Change) {
		snapshot, problems = s, p
		if c.StaleEndpoints() {
			turns++
		}
		kernel.Must(t, &steer.Open, kernel.Open)
		kernel.Must(t, &steer.Close, kernel.Close)
		owners.Published(s)
		if !onlyTheirOwn(s) {
			t.Fatal("a set has a slot for a backend that is not in it")
		}
		if w.chance(20) {
			owners.Oldest += w.Uint64N(s.Generation - owners.Oldest + 1)
			c.Release(owners.Oldest)
		}
	}
	var building *compiler.TableJob
	install := func() {
		building.Build()
		apply(c.Install(building))
		building = nil
	}
	built, refreshed := 0, 0
	checked, answers, cfg := 0, 0, controltest.Config()
	for n := 1; n <= changes; n++ {
		w.step(tracker)
		switch {
		case w.chance(1) && w.chance(20):
			cfg.NodeName = []string{"gw-1", "gw-2"}[w.one(2)]
			cfg.SelectKey[0] = uint64(w.one(2))
			cfg.SNAT4 = controltest.Config().NodeAddresses[w.one(2):][:1]
			cfg.NodeAddresses = controltest.Config().NodeAddresses[:w.one(3)]
			cfg.LocalAddresses = controltest.Config().NodeAddresses[:w.one(3)]
			cfg.ClusterIPs, cfg.MasqueradeAll, cfg.StrictSourceRanges = w.chance(70), w.chance(30), w.chance(50)
			cfg.ClusterCIDRs = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16"),
				netip.MustParsePrefix("fd01::/64")}[:w.one(3)]
			cfg.TunnelPort = uint16(8081 * w.one(2))
			cfg.Scheduler = services.Scheduler(w.Uint64N(uint64(services.NumSchedulers)))
			cfg.Checks = [...]objects.Checks{nil, {{Check: objects.Check{Kind: objects.CheckTCP}}}}[w.one(2)]
			cfg.MaxFrontends, cfg.MaxAddrs, cfg.MaxSources, cfg.NamespaceShare = 0, 0, 0, 0 // no bound
			if w.chance(25) {
				cfg.MaxFrontends, cfg.MaxAddrs, cfg.MaxSources = 10*w.one(6), 10*w.one(6), 10*w.one(6)
				cfg.NamespaceShare = 50 * w.one(2)
			}
			apply(c.Configure(cfg))
		case w.chance(2):
			d := compiler.Drain{Addr: header.AddrFrom4([4]byte{10, 0, 0, byte(1 + w.one(24))}),
				Port: uint16(8080*w.one(2) + w.one(2))}
			if w.chance(50) {
				_ = c.Drain(d)
			} else {
				_ = c.Undrain(d)
			}
		}
		if snapshot != nil && w.chance(10) {
			c.SetHealth(randomHealth(w, snapshot))
		}
		if w.chance(60) { // else several changes meet in one compile
			apply(c.Compile(tracker.Changes()))
		}
		if building == nil && w.chance(50) {
			building = c.NextTable()
		} else if building != nil && w.chance(20) {
			install()
			built++
		}
		if n%checkEvery != 0 {
			continue
		}
		apply(c.Compile(tracker.Changes()))
		for building != nil || c.Pending() {
			if building == nil {
				building = c.NextTable()
			}
			install()
		}
		for c.StaleEndpoints() {
			apply(c.Compile(&objects.Changes{}))
		}
		for c.StaleProblems() {
			c.RefreshProblems()
			refreshed++
		}
		if deferred {
			problems = c.Problems()
		}
		full, fullProblems, steer := c.Full(tracker.State())
		if got, want := describe(snapshot, problems), describe(full, fullProblems); got != want {
			t.Fatalf("after %d changes, full against incremental:\n%s", n, cmp.Diff(strings.Split(want, "\n"),
				strings.Split(got, "\n")))
		}
		if got, want := c.HealthChecks(), c.FullHealthChecks(tracker.State()); !slices.Equal(got, want) {
			t.Fatalf("after %d changes, health checks are %+v, and full %+v", n, got, want)
		} else {
			answers += len(got)
		}
		if got, want := c.CheckedPorts(), c.FullCheckedPorts(tracker.State()); !reflect.DeepEqual(got, want) {
			t.Fatalf("after %d changes, checked ports are %v, and full %v", n, got, want)
		} else {
			checked += len(got)
		}
		kernel.Equal(t, &steer.Open)
	}
	if checked == 0 {
		t.Error("there never was a checked port")
	}
	if deferred != (turns > 0) {
		t.Errorf("endpoints were stale after %d compiles", turns)
	}
	if deferred != (refreshed > 0) {
		t.Errorf("stale problems were brought up to date %d times", refreshed)
	}
	if deferred != (built > 0) {
		t.Errorf("%d tables were built while more changes came", built)
	}
	if answers == 0 {
		t.Error("there never was a health check node port")
	}
	t.Logf("%d changes compared with a full compile %d times: %d generations, %d backend refs, %d health checks",
		changes, changes/checkEvery, snapshot.Generation, owners.Opened, answers)
}

// onlyTheirOwn reports whether the slots of each set's table are of backends of that set: so what
// is not in the set gets no new flow.
func onlyTheirOwn(s *services.Snapshot) bool {
	right := true
	s.Frontends(func(f *services.Frontend) bool {
		for _, set := range []*services.EndpointSet{f.Outside.Set, f.Pod.Set} {
			named := set.Named
			if named == nil {
				named = set.Backends
			}
			for _, position := range set.Table {
				right = right && int(position) < len(named)
			}
			for _, ref := range set.Named {
				right = right && slices.Contains(set.Backends, ref)
			}
		}
		return right
	})
	return right
}

// describe is render with the contents of Maglev tables.
func describe(s *services.Snapshot, problems []objects.Problem) string {
	return render(s, problems) + strings.Join(renderFrontends(s, true), "\n")
}

// randomHealth says of a few endpoints that they are down, start slowly or are up.
func randomHealth(w world, s *services.Snapshot) (list []compiler.EndpointHealth) {
	s.Backends(func(b *services.Backend) bool {
		p := s.Service(b.Service)
		if p == nil || !w.chance(10) {
			return true
		}
		h := compiler.EndpointHealth{Endpoint: compiler.Endpoint{Namespace: p.Namespace, Service: p.Name,
			PortName: p.PortName, Proto: p.Proto, Addr: b.Addr, Port: b.Port}}
		switch w.one(3) {
		case 0:
			h.Down = true
		case 1:
			h.SlowStart = uint8(1 + w.one(9))
		}
		list = append(list, h)
		return true
	})
	return list
}
