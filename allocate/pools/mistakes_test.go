package pools_test

import (
	"flag"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"sluice.dev/sluice/allocate/pools"
	"sluice.dev/sluice/test/bed/pagetest"
)

var update = flag.Bool("update", false, "rewrite testdata/mistakes.md")

// The lines of testdata/mistakes.md around its tables.
const (
	mistakesBegin = "<!-- Tables of mistakes: go test ./allocate/pools -run TestMistakes -update -->\n"
	mistakesEnd   = "<!-- end of the tables -->\n"
)

// badPools are specifications of pools with a mistake.
var badPools = []string{
	`{}`,
	`{addresses: [192.0.2.1]}`,
	`{addresses: [192.0.2.0/24, web]}`,
	`{addresses: [192.0.2.9-192.0.2.1]}`,
	`{addresses: ["192.0.2.1-2001:db8::1"]}`,
	`{addresses: [192.0.2.9-]}`,
	`{addresses: ["::ffff:192.0.2.0/120"]}`,
	`{addresses: ["fe80::1%eth0-fe80::2%eth0"]}`,
	`{addresses: [192.0.2.0/24], serviceAllocation: {priority: -1, namespaces: [a]}}`,
	`{addresses: [192.0.2.0/24], serviceAllocation: {serviceSelectors: [{matchExpressions: [{key: a, operator: Near}]}]}}`,
}

// badWishes are annotations and fields of specifications with a mistake.
var badWishes = []string{
	`metallb.io/loadBalancerIPs: 203.0.113.300`,
	`metallb.io/loadBalancerIPs: "203.0.113.2,203.0.113.3"`,
	`metallb.universe.tf/loadBalancerIPs: "2001:db8::1"`,
	`lbipam.cilium.io/ips: 203.0.113.2, spec.loadBalancerIP: 203.0.113.2`,
	`spec.loadBalancerIP: 198.51.100.1`,
	`metallb.io/loadBalancerIPs: 203.0.113.2, metallb.io/address-pool: staff`,
	`metallb.io/loadBalancerIPs: 192.0.2.3`,
	`metallb.io/address-pool: staff`,
	`metallb.universe.tf/address-pool: gold`,
	`metallb.io/loadBalancerIPs: 203.0.113.1`,
	`metallb.io/loadBalancerIPs: 203.0.113.1, metallb.io/allow-shared-ip: other`,
	`metallb.io/loadBalancerIPs: 203.0.113.1, metallb.io/allow-shared-ip: one`,
	`metallb.io/loadBalancerIPs: 203.0.113.1, lbipam.cilium.io/sharing-key: one`,
	`spec.ipFamilyPolicy: RequireDualStack`,
}

// TestMistakes: testdata/mistakes.md has the messages about mistakes in pools and requests.
func TestMistakes(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("\n| a pool's `spec` | message |\n| --- | --- |\n")
	for _, text := range badPools {
		var spec pools.Spec
		if err := yaml.UnmarshalStrict([]byte(text), &spec); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		p, err := pools.New("public", spec)
		if err == nil {
			t.Errorf("%s is %+v", text, p)
			continue
		}
		fmt.Fprintf(&b, "| `%s` | %s |\n", text, strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	b.WriteString("\n| a Service asks for | reason and message |\n| --- | --- |\n")
	for _, text := range badWishes {
		result := wish(t, text)
		if result.Refusal == nil || len(result.Addresses) > 0 {
			t.Errorf("%s: %+v", text, result)
			continue
		}
		fmt.Fprintf(&b, "| `%s` | `%s`: %s |\n", text, result.Refusal.Reason, result.Refusal.Message)
	}
	b.WriteString("\n")
	pagetest.Keep(t, "testdata/mistakes.md", mistakesBegin, mistakesEnd, b.String(), *update,
		"go test ./allocate/pools -run TestMistakes -update")
}

// wish returns the result for a Service with one ClusterIP, 10.0.0.1, and port 80. Service
// default/web has 203.0.113.1 with port 80 and MetalLB's sharing key "one".
func wish(t *testing.T, text string) pools.Result {
	t.Helper()
	a := &pools.Allocator{}
	var list []*pools.Pool
	for name, spec := range map[string]pools.Spec{
		"public": {Addresses: []string{"203.0.113.0/28", "2001:db8::/124"}},
		"staff": {Addresses: []string{"192.0.2.0/28"}, ServiceAllocation: &pools.ServiceAllocation{
			NamespaceSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{"team": "staff"}}}}},
	} {
		p, err := pools.New(name, spec)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, p)
	}
	a.SetPools(list)
	service := func(name, asks string) *corev1.Service {
		fields := map[string]string{}
		if err := yaml.UnmarshalStrict([]byte("{"+asks+"}"), &fields); err != nil {
			t.Fatalf("%s: %v", asks, err)
		}
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name),
			Annotations: map[string]string{}}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer,
			ClusterIP: "10.0.0.1", Ports: []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80}}}}
		for key, value := range fields {
			switch policy := corev1.IPFamilyPolicy(value); key {
			case "spec.loadBalancerIP":
				s.Spec.LoadBalancerIP = value
			case "spec.ipFamilyPolicy":
				s.Spec.IPFamilyPolicy = &policy
			default:
				if !pools.AnnotationRead(key) {
					t.Fatalf("%s: annotation %s is not read", asks, key)
				}
				s.Annotations[key] = value
			}
		}
		return s
	}
	has := a.Converge(service("web", "metallb.io/loadBalancerIPs: 203.0.113.1, metallb.io/allow-shared-ip: one"), nil)
	if has.Refusal != nil {
		t.Fatal(has.Refusal)
	}
	return a.Converge(service("shop", text), nil)
}
