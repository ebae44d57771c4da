package pools

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

func mustPool(t *testing.T, name string, s Spec) *Pool {
	t.Helper()
	p, err := New(name, s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// firstByWalk is the oracle of first for Services without a key of lbipam.cilium.io: it tries each
// address in turn.
func (a *Allocator) firstByWalk(r *Request, p *Pool) (v4, v6 []netip.Addr) {
	for _, i := range p.ranges {
		to := &v4
		if i.From().Is6() {
			to = &v6
		}
		if *to != nil || i.From().Is4() && !r.V4 || i.From().Is6() && !r.V6 {
			continue
		}
		for address := i.From(); ; address = address.Next() {
			if !(p.avoidBuggyIPs && buggy(address)) && a.free(r, address, false) == nil {
				*to = []netip.Addr{address}
				break
			}
			if address == i.To() {
				break
			}
		}
	}
	return v4, v6
}

func someService(random *rand.Rand, name string) *Request {
	r := &Request{Key: "default/" + name, Namespace: "default", V4: true, Policy: corev1.IPFamilyPolicySingleStack,
		Ports: []Port{{corev1.ProtocolTCP, int32(1 + random.IntN(3))}}}
	switch random.IntN(6) {
	case 0:
		r.V4, r.V6 = false, true
	case 1:
		r.V6, r.Policy = true, corev1.IPFamilyPolicyPreferDualStack
	case 2:
		r.V6, r.Policy = true, corev1.IPFamilyPolicyRequireDualStack
	}
	r.Sharing = Sharing{Key: []string{"", "", "k", "m"}[random.IntN(4)], Namespace: "default",
		Cilium: random.IntN(3) == 0}
	if r.V4 != r.V6 && r.V4 && random.IntN(5) == 0 {
		r.Addresses = []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(random.IntN(4))})}
	}
	if random.IntN(4) == 0 {
		r.Pool = []string{"a", "b"}[random.IntN(2)]
	}
	return r
}

// TestNobodyWaitsForWhatIsFree changes Services at random and processes only those that Woken
// returns. After that no waiting Service could have more, and firstByWalk gives the same addresses.
func TestNobodyWaitsForWhatIsFree(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 7))
		a := &Allocator{}
		a.FollowWaiting()
		list := []*Pool{
			mustPool(t, "a", Spec{Addresses: []string{"192.0.2.0/30", "2001:db8::/127"}, AvoidBuggyIPs: seed%2 == 0}),
			mustPool(t, "b", Spec{Addresses: []string{"192.0.2.2/31", "192.0.2.8/31", "2001:db8::2/128"}})}
		a.SetPools(list)
		a.Woken()
		services, has := map[string]*Request{}, map[string]Result{}
		look := func(key string) {
			if r := services[key]; r == nil {
				a.Forget(key)
			} else {
				has[key] = a.ConvergeRequest(r, nil, has[key].Addresses)
			}
		}
		for step := range 500 {
			name := fmt.Sprint("s", random.IntN(20))
			key := "default/" + name
			switch random.IntN(8) {
			case 0, 1, 2:
				delete(services, key)
				delete(has, key)
			case 3:
				other := netip.AddrFrom4([4]byte{192, 0, 2, byte(random.IntN(4))})
				a.Reserve("other", "somebody", key, []netip.Addr{other}[:random.IntN(2)])
			default:
				services[key] = someService(random, name)
			}
			look(key)
			for looked := 0; ; looked++ {
				woken := a.Woken()
				if len(woken) == 0 {
					break
				}
				if looked > 1000 {
					t.Fatalf("seed %d, step %d: no end", seed, step)
				}
				for _, key := range woken {
					look(key)
				}
			}
			for key, r := range services {
				checkWaiter(t, a, list, r, has[key], fmt.Sprintf("seed %d, step %d, %s", seed, step, key))
			}
		}
		for key := range services {
			a.Forget(key)
		}
		a.Reserve("other", "", "", nil)
		if n := len(a.waits.waiters) + len(a.waits.queues) + len(a.waits.pools); n != 0 {
			t.Errorf("seed %d: %d things are left of nobody", seed, n)
		}
	}
}

func checkWaiter(t *testing.T, a *Allocator, list []*Pool, r *Request, has Result, what string) {
	t.Helper()
	if !has.Lacks {
		return
	}
	b := *r
	if len(has.Addresses) == 0 {
		if got, refusal := a.Allocate(&b); refusal == nil {
			t.Fatalf("%s: waits (%v), and could have %v", what, has.Refusal, got)
		}
	} else if a.claims[r.Key] != nil {
		if got, refusal := a.extend(&b); refusal == nil {
			t.Fatalf("%s: has %v alone, and could have %v", what, has.Addresses, got)
		}
		return // its own address is free for it
	}
	b.probes = 0
	for _, p := range list {
		got4, got6 := a.firstBy(&b, p, nil, nil, a.firstIn)
		want4, want6 := a.firstByWalk(&b, p)
		if !slices.Equal(got4, want4) || !slices.Equal(got6, want6) {
			t.Fatalf("%s: pool %s: first is %v %v, want %v %v", what, p.Name, got4, got6, want4, want6)
		}
	}
}

// full returns an allocator whose pool has no free address, and number of Services that wait.
func full(t *testing.T, prefix string, waiting int) (a *Allocator, look func(int) Result) {
	a = &Allocator{}
	a.FollowWaiting()
	a.SetPools([]*Pool{mustPool(t, "p", Spec{Addresses: []string{prefix}})})
	size, _ := a.Pools()[0].Size()
	look = func(i int) Result {
		return a.ConvergeRequest(&Request{Key: fmt.Sprint("default/s", i), V4: true, Namespace: "default",
			Policy: corev1.IPFamilyPolicySingleStack, Ports: []Port{{corev1.ProtocolTCP, 80}}}, nil, nil)
	}
	for i := range int(size) + waiting {
		look(i)
	}
	a.Woken()
	return a, look
}

// TestOneIsWokenForOneAddress: a freed address wakes exactly one Service, the one that has waited
// longest, in a time that depends neither on the number of waiting Services nor on the pool.
func TestOneIsWokenForOneAddress(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		prefix  string
		waiting int
	}{{"192.0.2.0/24", 1000}, {"10.0.0.0/20", 10000}, {"10.0.0.0/16", 10000}} {
		a, look := full(t, c.prefix, c.waiting)
		size, _ := a.Pools()[0].Size()
		const freed = 100
		begin := time.Now()
		for i := range freed {
			a.Forget(fmt.Sprint("default/s", i*2))
			next := int(size) + i
			if got, want := a.Woken(), []string{fmt.Sprint("default/s", next)}; !slices.Equal(got, want) {
				t.Fatalf("%s: woken are %d: %v, want %v", c.prefix, len(got), got[:min(5, len(got))], want)
			}
			if r := look(next); len(r.Addresses) != 1 {
				t.Fatalf("%s: %+v", c.prefix, r)
			}
			if got := a.Woken(); len(got) > 0 {
				t.Fatalf("%s: %v is woken for nothing", c.prefix, got)
			}
		}
		each := time.Since(begin) / freed
		t.Logf("%s, %d waiting: %v for an address that is freed", c.prefix, c.waiting, each)
		if each > 5*time.Millisecond {
			t.Errorf("%s, %d waiting: %v for one address", c.prefix, c.waiting, each)
		}
	}
}
