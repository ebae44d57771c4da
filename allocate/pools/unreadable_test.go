package pools_test

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/allocate/pools"
)

// TestUnreadablePools: a process that starts while a pool cannot be read moves no Service whose
// address may be from it, and gives no address from it.
func TestUnreadablePools(t *testing.T) {
	t.Parallel()
	public, err := pools.New("public", pools.Spec{Addresses: []string{"192.0.2.0/29", "2001:db8::/125"}})
	if err != nil {
		t.Fatal(err)
	}
	// Its ends are swapped: it had 2001:db8:1::10 to 2001:db8:1::1f.
	swapped := pools.Remains("swapped", pools.Spec{Addresses: []string{"198.51.100.0/30",
		"2001:db8:1::1f-2001:db8:1::10"}})
	const kept = "PoolInvalid: %: no pool that can be read has it, and it stays until pool swapped can be read"
	pool, ips := "metallb.io/address-pool", "metallb.io/loadBalancerIPs"
	for _, test := range []struct {
		name, has, ips string // ips are the ClusterIPs
		asks           [2]string
		gets           string
		notes          string // "%" stands for the address
		readable       bool   // the pool can be read
	}{
		{name: "new", ips: "fd00::1", gets: "2001:db8::"},
		{name: "of it", has: "2001:db8:1::1a", ips: "fd00::1", gets: "2001:db8:1::1a", notes: kept},
		{name: "of it, if there is none that cannot be read", has: "2001:db8:1::1a", ips: "fd00::1",
			gets: "2001:db8::", notes: "OutsidePools: the address was replaced", readable: true},
		{name: "of the other", has: "192.0.2.5", ips: "10.0.0.1", gets: "192.0.2.5"},
		{name: "of both families", has: "198.51.100.1 2001:db8:1::1a", ips: "10.0.0.1 fd00::1",
			gets: "198.51.100.1 2001:db8:1::1a", notes: "PoolInvalid: 198.51.100.1, 2001:db8:1::1a: no pool that"},
		{name: "of one, and lacks the other", has: "2001:db8:1::1a", ips: "10.0.0.1 fd00::1", gets: "2001:db8:1::1a",
			notes: kept},
		{name: "of another family", has: "2001:db8:1::1a", ips: "10.0.0.1", gets: "192.0.2.0",
			notes: "WrongFamily: the address was replaced"},
		{name: "asks for what it has", has: "2001:db8:1::1a", ips: "fd00::1", asks: [2]string{ips, "2001:db8:1::1a"},
			gets: "2001:db8:1::1a", notes: kept},
		{name: "asks for the pool", has: "2001:db8:1::1a", ips: "fd00::1", asks: [2]string{pool, "swapped"},
			gets: "2001:db8:1::1a", notes: kept},
		{name: "asks for another of it", has: "2001:db8:1::1a", ips: "fd00::1", asks: [2]string{ips, "2001:db8:1::1b"},
			gets: "2001:db8:1::1a", notes: "OutsidePools: 2001:db8:1::1b: no pool has it"},
		{name: "asks for the pool, and has one of the other", has: "192.0.2.5", ips: "10.0.0.1",
			asks: [2]string{pool, "swapped"}, gets: "192.0.2.5", notes: "PoolInvalid: pool swapped cannot be read"},
		{name: "asks for one of the other", has: "2001:db8:1::1a", ips: "fd00::1", asks: [2]string{ips, "2001:db8::3"},
			gets: "2001:db8::3"},
		{name: "asks for the other", has: "2001:db8:1::1a", ips: "fd00::1", asks: [2]string{pool, "public"},
			gets: "2001:db8::"},
		{name: "asks for a pool that is not there", has: "2001:db8:1::1a", ips: "fd00::1",
			asks:  [2]string{pool, "gold"},
			notes: "UnknownPool: there is no pool gold"},
		{name: "new, and asks for it", ips: "fd00::1", asks: [2]string{pool, "swapped"},
			notes: "PoolInvalid: pool swapped cannot be read"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "1"},
				Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ClusterIPs: strings.Fields(test.ips)}}
			if test.asks[0] != "" {
				s.Annotations = map[string]string{test.asks[0]: test.asks[1]}
			}
			for _, address := range strings.Fields(test.has) {
				s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress,
					corev1.LoadBalancerIngress{IP: address})
			}
			a := &pools.Allocator{}
			if test.readable {
				a.SetPools([]*pools.Pool{public})
			} else {
				a.SetPools([]*pools.Pool{public}, swapped)
			}
			for _, adopt := range []bool{true, false} { // a leader adopts all, then processes each
				if adopt {
					a.Adopt(s, nil)
				}
				var got []string
				r := a.Converge(s, nil)
				for _, address := range r.Addresses {
					got = append(got, address.String())
				}
				if strings.Join(got, " ") != test.gets {
					t.Errorf("gets %v, want %s: %+v", got, test.gets, r)
				}
				notes := r.Notes
				if r.Refusal != nil {
					notes = append(slices.Clone(notes), r.Refusal)
				}
				want := strings.ReplaceAll(test.notes, "%", test.gets)
				if want == "" && len(notes) > 0 || !slices.ContainsFunc(notes, func(x *pools.Refusal) bool {
					return strings.HasPrefix(x.Error(), want)
				}) && want != "" {
					t.Errorf("notes is %v, want %s", notes, want)
				}
			}
		})
	}
}

// TestUnlistedPools: pools that cannot be listed may have any name and any address.
func TestUnlistedPools(t *testing.T) {
	t.Parallel()
	public, err := pools.New("public", pools.Spec{Addresses: []string{"192.0.2.0/29"}})
	if err != nil {
		t.Fatal(err)
	}
	const kept = "PoolInvalid: 198.51.100.7: no pool that can be read has it, and it stays until pool " +
		"metallb-system/* can be read"
	const unknown = "PoolInvalid: pool gold may exist: metallb-system/* cannot be listed"
	for _, test := range []struct{ name, has, asks, gets, notes string }{
		{name: "new", gets: "192.0.2.0"},
		{name: "new, and asks for a pool", asks: "gold", notes: unknown},
		{name: "has", has: "198.51.100.7", gets: "198.51.100.7", notes: kept},
		{name: "has, and asks for a pool", has: "198.51.100.7", asks: "gold", gets: "198.51.100.7", notes: kept},
		{name: "has one of another, and asks for a pool", has: "192.0.2.3", asks: "gold", gets: "192.0.2.3",
			notes: unknown},
		{name: "has one of another", has: "192.0.2.3", gets: "192.0.2.3"},
	} {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "1"},
			Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ClusterIPs: []string{"10.0.0.1"}}}
		if test.asks != "" {
			s.Annotations = map[string]string{"metallb.io/address-pool": test.asks}
		}
		if test.has != "" {
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: test.has}}
		}
		a := &pools.Allocator{}
		a.SetPools([]*pools.Pool{public}, pools.Unlisted("metallb-system"))
		a.Adopt(s, nil)
		r := a.Converge(s, nil)
		notes := r.Notes
		if r.Refusal != nil {
			notes = append(notes, r.Refusal)
		}
		var got, text string
		if len(r.Addresses) > 0 {
			got = r.Addresses[0].String()
		}
		if len(notes) > 0 {
			text = notes[0].Error()
		}
		if got != test.gets || !strings.HasPrefix(text, test.notes) || test.notes == "" && text != "" {
			t.Errorf("%s: gets %q, want %q: %q, want %q", test.name, got, test.gets, text, test.notes)
		}
	}
}

// TestUnreadablePoolIsAlone: the same without any other pool, and until it can be read.
func TestUnreadablePoolIsAlone(t *testing.T) {
	t.Parallel()
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "1"},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ClusterIPs: []string{"fd00::1"}},
		Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{
			Ingress: []corev1.LoadBalancerIngress{{IP: "2001:db8::1a"}}}}}
	other := s.DeepCopy()
	other.Name, other.UID, other.Status = "other", "2", corev1.ServiceStatus{}
	a := &pools.Allocator{}
	remains := pools.Remains("p", pools.Spec{Addresses: []string{"2001:db8::1f-2001:db8::1a"}})
	a.SetPools(nil, remains)
	a.Adopt(s, nil)
	if r := a.Converge(s, nil); len(r.Addresses) != 1 || r.Pool != "" || len(r.Notes) != 1 {
		t.Errorf("%+v", r)
	}
	if r := a.Converge(other, nil); r.Refusal == nil || r.Refusal.Reason != pools.NoPool ||
		!strings.HasSuffix(r.Refusal.Message, "; pool p cannot be read") {
		t.Errorf("another one gets %+v", r)
	}
	empty := s.DeepCopy() // another client clears the status
	empty.Status = corev1.ServiceStatus{}
	if r := a.Converge(empty, nil); len(r.Addresses) != 1 {
		t.Errorf("does not come back: %+v", r)
	}
	repaired, err := pools.New("p", pools.Spec{Addresses: []string{"2001:db8::1a-2001:db8::1f"}})
	if err != nil {
		t.Fatal(err)
	}
	a.SetPools([]*pools.Pool{repaired})
	if r := a.Converge(s, nil); len(r.Addresses) != 1 || r.Addresses[0].String() != "2001:db8::1a" || r.Pool != "p" ||
		len(r.Notes) > 0 {
		t.Errorf("repaired: %+v", r)
	}
	if r := a.Converge(other, nil); len(r.Addresses) != 1 || r.Addresses[0].String() != "2001:db8::1b" {
		t.Errorf("repaired, another one gets %+v", r)
	}
	a.SetPools(nil) // removed
	if r := a.Converge(s, nil); r.Refusal == nil || len(r.Addresses) > 0 {
		t.Errorf("removed: %+v", r)
	}
}
