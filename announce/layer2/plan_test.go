package layer2

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"sluice.dev/sluice/announce"
	"sluice.dev/sluice/announce/kinds"
	"sluice.dev/sluice/announce/layer2/frame"
)

func prefixes(list ...string) (out []netip.Prefix) {
	for _, p := range list {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

// TestPlan: each case has the VIPs of each link, and the reasons for VIPs on no link.
func TestPlan(t *testing.T) {
	t.Parallel()
	interfaces := []Interface{
		{Name: "lo", Networks: prefixes("127.0.0.0/8", "192.0.2.0/24")},
		{Name: "eth0", Ethernet: true, MAC: frame.MAC{1}, Networks: prefixes("192.0.2.0/24", "2001:db8::/64")},
		{Name: "eth1", Ethernet: true, MAC: frame.MAC{2}, Networks: prefixes("198.51.100.0/24")},
	}
	text, err := os.ReadFile("testdata/plan.txt")
	if err != nil {
		t.Fatal(err)
	}
	for row := range strings.Lines(string(text)) {
		if strings.HasPrefix(row, "#") {
			continue
		}
		c := strings.Split(strings.TrimSuffix(row, "\n"), " => ")
		if len(c) != 4 {
			t.Fatalf("%q has %d columns", row, len(c))
		}
		for i := range c {
			c[i] = strings.TrimPrefix(c[i], "-")
		}
		name, specs, links, reasons := c[0], c[1], c[2], c[3]
		gotLinks, gotReasons := planned(t, interfaces, specs)
		if got := strings.Join(gotLinks, " "); got != links {
			t.Errorf("%s: links %q, want %q", name, got, links)
		}
		var want []string
		if reasons != "" {
			want = strings.Split(reasons, " | ")
		}
		bad := len(want) != len(gotReasons)
		for i := 0; !bad && i < len(want); i++ {
			bad = !strings.Contains(gotReasons[i], want[i])
		}
		if bad {
			t.Errorf("%s: %q, want %q", name, gotReasons, want)
		}
	}
}

// TestPlanNotServed: an interface that the gateway does not serve is not a link, whether it is
// named or found by its network. The advertisement and each VIP without another link report it.
func TestPlanNotServed(t *testing.T) {
	t.Parallel()
	interfaces := []Interface{
		{Name: "eth0", Ethernet: true, MAC: frame.MAC{1}, Networks: prefixes("192.0.2.0/24")},
		{Name: "eth2", Ethernet: true, MAC: frame.MAC{3}, Networks: prefixes("203.0.113.0/24"), NotServed: true},
		{Name: "eth3", Ethernet: true, MAC: frame.MAC{4}, Networks: prefixes("198.51.100.0/24"), NotServed: true},
	}
	const left = "interface eth2 of node n is left out: the gateway there serves eth0, eth1"
	const only = ": the gateway does not serve eth2, and no other interface is for the VIP"
	for specs, want := range map[string]struct{ links, reasons []string }{
		"{}": {[]string{"eth0:", "192.0.2.1"}, []string{left, "203.0.113.1" + only, "2001:db8::1: no interface"}},
		"{interfaces: [eth2]}": {nil, []string{left, "192.0.2.1" + only, "203.0.113.1" + only,
			"2001:db8::1" + only}},
		"{interfaces: [eth0, eth2]}": {[]string{"eth0:", "192.0.2.1", "203.0.113.1", "2001:db8::1"}, []string{left}},
	} {
		links, reasons := planned(t, interfaces, specs)
		same := slices.EqualFunc(reasons, want.reasons, strings.HasPrefix)
		if !slices.Equal(links, want.links) || !same {
			t.Errorf("%s: %q, want %q; %q, want %q", specs, links, want.links, reasons, want.reasons)
		}
	}
}

// planned returns the links of a plan with their VIPs, and the reasons for other VIPs.
func planned(t *testing.T, interfaces []Interface, specs string) (links, reasons []string) {
	t.Helper()
	objects := []*unstructured.Unstructured{object(t, "AddressPool", "pool",
		"{addresses: [192.0.2.0/28, 203.0.113.0/28, '2001:db8::/120']}")}
	for i, spec := range strings.Split(specs, " ; ") {
		if spec != "" {
			objects = append(objects, object(t, "L2Advertisement", fmt.Sprint(i), spec))
		}
	}
	w := &announce.World{Node: announce.Node{Name: "n", Labels: labels.Set{"a": "b"}}, Gateway: announce.Yes,
		Interfaces: []string{"eth0", "eth1"}}
	w.Set, _ = new(kinds.Reader).Read(objects)
	for _, a := range []string{"192.0.2.1", "203.0.113.1", "2001:db8::1"} {
		s := &announce.VIPVerdict{VIP: netip.MustParseAddr(a), Grade: announce.Yes, Labels: []labels.Set{nil}}
		if s.Pool = w.Set.PoolOf(s.VIP); a == "192.0.2.1" {
			s.Labels = []labels.Set{{"tier": "front"}}
		}
		w.VIPs = append(w.VIPs, s)
	}
	p := NewPlan(w, interfaces)
	for _, i := range interfaces {
		wishes, there := p.Links[i.Name]
		if there {
			links = append(links, i.Name+":")
		}
		for _, w := range wishes {
			links = append(links, w.VIP.String())
		}
	}
	for _, problem := range p.Problems {
		reasons = append(reasons, problem.Note)
	}
	for _, s := range w.VIPs {
		if line, there := p.Lines[s.VIP]; there {
			reasons = append(reasons, s.VIP.String()+": "+line.Why)
		}
	}
	return links, reasons
}

func object(t *testing.T, kind, name, spec string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	text := fmt.Sprintf("{apiVersion: sluice.dev/v1alpha1, kind: %s, metadata: {name: '%s'}, spec: %s}", kind, name,
		spec)
	if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
		t.Fatal(err)
	}
	return o
}
