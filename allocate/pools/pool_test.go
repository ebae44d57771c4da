package pools_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/allocate/pools"
	"sluice.dev/sluice/test/bed/machine"
)

func TestBadSpecs(t *testing.T) {
	t.Parallel()
	bad := metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near"}}}
	for _, test := range []struct {
		name string
		spec pools.Spec
		want []string
	}{
		{"nothing", pools.Spec{}, []string{"addresses is empty"}},
		{"an address", pools.Spec{Addresses: []string{"192.0.2.1"}}, []string{"addresses[0]", "192.0.2.0/24"}},
		{"a name", pools.Spec{Addresses: []string{"web"}}, []string{`"web"`}},
		{"backwards", pools.Spec{Addresses: []string{"192.0.2.9-192.0.2.1"}}, []string{"after the last"}},
		{"two families", pools.Spec{Addresses: []string{"192.0.2.1-2001:db8::"}}, []string{"another family"}},
		{"half a range", pools.Spec{Addresses: []string{"192.0.2.9-"}}, []string{`"" is no IPv4`}},
		{"IPv4 within IPv6", pools.Spec{Addresses: []string{"::ffff:192.0.2.0/120"}}, []string{"no prefix"}},
		{"a zone", pools.Spec{Addresses: []string{"fe80::1%eth0-fe80::2%eth0"}}, []string{"no IPv4 or IPv6"}},
		{"all at once", pools.Spec{Addresses: []string{"x", "192.0.2.0/24", "y"},
			ServiceAllocation: &pools.ServiceAllocation{Priority: -1, NamespaceSelectors: []metav1.LabelSelector{bad},
				ServiceSelectors: []metav1.LabelSelector{bad}}},
			[]string{"pool p", "addresses[0]", "addresses[2]", "priority is -1", "namespaceSelectors[0]",
				"serviceSelectors[0]"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p, err := pools.New("p", test.spec)
			if err == nil {
				t.Fatalf("is %+v", p)
			}
			for _, w := range test.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q is not in: %v", w, err)
				}
			}
		})
	}
}

// TestSizes counts addresses one by one, and compares.
func TestSizes(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		from := netip.AddrFrom4([4]byte{192, 0, 2, byte(random.IntN(256))})
		to, n := from, random.IntN(1000)
		for range n {
			to = to.Next()
		}
		for _, avoid := range []bool{false, true} {
			spec := pools.Spec{Addresses: []string{fmt.Sprintf("%s-%s", from, to)}, AvoidBuggyIPs: avoid}
			p, err := pools.New("p", spec)
			if err != nil {
				t.Fatal(err)
			}
			want := int64(0)
			for a := from; a.Compare(to) <= 0; a = a.Next() {
				if p.Contains(a) {
					want++
				}
			}
			if got, _ := p.Size(); got != want {
				t.Errorf("%s-%s, avoid %v: %d, want %d", from, to, avoid, got, want)
			}
		}
	}
}

func TestOverlaps(t *testing.T) {
	t.Parallel()
	pool := func(addresses ...string) *pools.Pool {
		p, err := pools.New("p", pools.Spec{Addresses: addresses})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	a := pool("192.0.2.0/28", "2001:db8::/64")
	for text, want := range map[string]string{
		"192.0.2.15-192.0.2.20": "192.0.2.15", "192.0.2.16/28": "", "2001:db8::5/128": "2001:db8::5",
		"192.0.0.0/8": "192.0.2.0",
	} {
		if at, is := a.Overlaps(pool(text)); is != (want != "") || is && at.String() != want {
			t.Errorf("%s: %v at %v, want %q", text, is, at, want)
		}
	}
}

// TestRandom changes Services and pools at random and checks all claims after each change: two
// Services have one address only if they may share it. The same changes give the same results
// again.
func TestRandom(t *testing.T) {
	t.Parallel()
	for seed := range uint64(40) {
		if first, second := changes(t, seed), changes(t, seed); !slices.Equal(first, second) {
			t.Errorf("seed %d: the second run differs", seed)
		}
	}
}

func changes(t *testing.T, seed uint64) (results []string) {
	random := rand.New(rand.NewPCG(seed, 0))
	a := &pools.Allocator{}
	all := []pools.Spec{{Addresses: []string{"192.0.2.0/29"}}, {Addresses: []string{"192.0.2.4/29", "2001:db8::/125"}},
		{Addresses: []string{"2001:db8::4-2001:db8::8"}}}
	services := map[string]*corev1.Service{}
	for step := range 400 {
		if step == 0 || random.IntN(20) == 0 {
			list, unreadable := somePools(t, random, all)
			a.SetPools(list, unreadable...)
			for _, name := range sorted(services) {
				a.Adopt(services[name], nil)
			}
		}
		name := fmt.Sprint("s", random.IntN(12))
		if random.IntN(6) == 0 {
			delete(services, name)
			a.Forget("/" + name)
			continue
		}
		s := randomService(t, random, name, services[name])
		services[name] = s
		result := a.Converge(s, nil)
		s.Status.LoadBalancer.Ingress = nil
		for _, address := range result.Addresses {
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress,
				corev1.LoadBalancerIngress{IP: address.String()})
		}
		results = append(results, fmt.Sprint(name, result.Addresses, result.Pool, result.Refusal))
		checkClaims(t, a, services)
	}
	return results
}

func somePools(t *testing.T, random *rand.Rand, all []pools.Spec) (list, unreadable []*pools.Pool) {
	if random.IntN(8) == 0 {
		unreadable = append(unreadable, pools.Unlisted("metallb-system"))
	}
	for i, spec := range all {
		switch random.IntN(8) {
		case 0:
			continue
		case 1:
			unreadable = append(unreadable, pools.Remains(fmt.Sprint("p", i), pools.Spec{}))
			continue
		}
		p, err := pools.New(fmt.Sprint("p", i), spec)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, p)
	}
	return list, unreadable
}

func sorted(services map[string]*corev1.Service) (names []string) {
	for name := range services {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func randomService(t *testing.T, random *rand.Rand, name string, before *corev1.Service) *corev1.Service {
	words := []string{"name=" + name, fmt.Sprint("port=tcp/", 1+random.IntN(3))}
	words = append(words, [][]string{{"ips=10.0.0.1"}, {"ips=fd00::1"}, {"ips=10.0.0.1,fd00::1", "families=prefer"},
		{"ips=fd00::1,10.0.0.1", "families=require"}}[random.IntN(4)]...)
	words = append(words, [][]string{nil, {"share=k"}, {"share=k"}, {"share=m"}}[random.IntN(4)]...)
	words = append(words, [][]string{nil, nil, {"wish=192.0.2.5"}, {"pool=p1"}}[random.IntN(4)]...)
	s, _ := newService(t, "random", words)
	if before != nil {
		s.Status = before.Status
	}
	return s
}

// checkClaims compares every pair of Services by an independent copy of the sharing rules.
func checkClaims(t *testing.T, a *pools.Allocator, services map[string]*corev1.Service) {
	t.Helper()
	names := sorted(services)
	for i, name := range names {
		has, _ := a.Claimed("/" + name)
		for _, other := range names[:i] {
			otherHas, _ := a.Claimed("/" + other)
			for _, address := range has {
				if !slices.Contains(otherHas, address) {
					continue
				}
				s, o := services[name], services[other]
				key := s.Annotations["metallb.io/allow-shared-ip"]
				if key == "" || key != o.Annotations["metallb.io/allow-shared-ip"] ||
					s.Spec.Ports[0] == o.Spec.Ports[0] {
					t.Fatalf("%s and %s have %v", name, other, address)
				}
			}
		}
	}
}

// A message must not contain the key: another namespace needs only the key to share the address.
func TestKeysAreNotTold(t *testing.T) {
	t.Parallel()
	a := onePool(t)
	s, _ := newService(t, "", []string{"name=a", "ips=10.0.0.1", "share=secret"})
	a.Converge(s, nil)
	s, _ = newService(t, "", []string{"name=b", "ips=10.0.0.1", "share=guess", "wish=192.0.2.1"})
	got := a.Converge(s, nil)
	if why := got.Refusal; why == nil || why.Reason != pools.BadSharingKey || strings.Contains(why.Message, "secret") {
		t.Error(why)
	}
}

// onePool is an allocator that can give 192.0.2.1.
func onePool(t *testing.T) *pools.Allocator {
	t.Helper()
	p, err := pools.New("p", pools.Spec{Addresses: []string{"192.0.2.1/32"}})
	if err != nil {
		t.Fatal(err)
	}
	a := &pools.Allocator{}
	a.SetPools([]*pools.Pool{p})
	return a
}

// The time for many ports is linear, so that such a Service does not block all others.
func TestManyPorts(t *testing.T) {
	t.Parallel()
	const ports = 60000
	a := onePool(t)
	took := machine.CPUTime(func() {
		for i, protocol := range []corev1.Protocol{"TCP", "UDP", "SCTP", "TCP"} {
			s, _ := newService(t, "", []string{fmt.Sprint("name=", i), "ips=10.0.0.1", "share=k"})
			for n := range ports {
				number := int32(1 + i/3*ports + n)
				s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Protocol: protocol, Port: number})
			}
			if got := a.Converge(s, nil); got.Refusal != nil {
				t.Fatal(got.Refusal)
			}
		}
	})
	if bound := machine.Slower(15 * time.Second); took > bound {
		t.Errorf("took %v, more than %v", took, bound)
	}
}
