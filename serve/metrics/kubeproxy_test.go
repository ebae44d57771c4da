package metrics

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"sluice.dev/sluice/control/loop"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/serve/status/statustest"
)

var _ loop.Observer = (*KubeProxy)(nil)

// TestBuckets: those of kube-proxy, or quantiles of a cluster cannot be added up.
func TestBuckets(t *testing.T) {
	r := NewRegistry(statustest.New(), extras())
	list, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	programming := []float64{0.25, 0.5}
	for s := 1; s < 60; s++ {
		programming = append(programming, float64(s))
	}
	for s := 60; s < 120; s += 5 {
		programming = append(programming, float64(s))
	}
	for s := 120; s <= 300; s += 30 {
		programming = append(programming, float64(s))
	}
	durations := []float64{.001, .002, .004, .008, .016, .032, .064, .128, .256, .512, 1.024, 2.048, 4.096, 8.192,
		16.384}
	want := map[string][]float64{
		"kubeproxy_network_programming_duration_seconds":      programming,
		"kubeproxy_sync_proxy_rules_duration_seconds":         durations,
		"kubeproxy_sync_full_proxy_rules_duration_seconds":    durations,
		"kubeproxy_sync_partial_proxy_rules_duration_seconds": durations,
	}
	for _, m := range list {
		bounds, known := want[m.GetName()]
		if !known {
			continue
		}
		delete(want, m.GetName())
		for _, one := range m.Metric {
			var got []float64
			for _, b := range one.Histogram.Bucket {
				got = append(got, b.GetUpperBound())
			}
			if diff := cmp.Diff(bounds, got); diff != "" {
				t.Errorf("%s -want +got\n%s", m.GetName(), diff)
			}
		}
	}
	if len(want) > 0 {
		t.Errorf("missing: %v", want)
	}
}

func TestNoLocal(t *testing.T) {
	type view = status.FrontendView
	for _, c := range []struct {
		name      string
		frontends []view
		want      map[string]int
	}{
		{"nothing", nil, map[string]int{}},
		{"served", []view{{Kind: "LoadBalancer", Address: "192.0.2.1:80", Usable: 1, Slots: 251}}, map[string]int{}},
		{"without a table, and served", []view{{Kind: "LoadBalancer", Address: "192.0.2.1:80", Usable: 1,
			Empty: "drop"}}, map[string]int{}},
		{"none anywhere", []view{{Kind: "LoadBalancer", Address: "192.0.2.1:80", Empty: "reject"}}, map[string]int{}},
		{"a port is counted once", []view{
			{Kind: "LoadBalancer", Address: "192.0.2.1:80", Empty: "drop"},
			{Kind: "ExternalIP", Address: "192.0.2.2:80", Empty: "drop"},
			{Kind: "NodePort", Address: "0.0.0.0:30080", Empty: "drop"},
		}, map[string]int{"external IPv4": 1}},
		{"families and policies apart", []view{
			{Kind: "ClusterIP", Address: "10.0.0.1:80", Empty: "drop"}, {Kind: "ClusterIP", Address: "[fd00::1]:80",
				Empty: "drop"},
			{Kind: "NodePort", Address: "[::]:30080", Empty: "drop"},
		}, map[string]int{"internal IPv4": 1, "internal IPv6": 1, "external IPv6": 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNoLocal()
			n.add(&status.ServiceView{Frontends: c.frontends})
			if len(n) != 4 {
				t.Errorf("not every series is there: %v", n)
			}
			got := map[string]int{}
			for key, count := range n {
				if count > 0 {
					got[key[0]+" "+key[1]] = count
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

// TestDocument: docs/metrics.md has a row for every metric, and none for others.
func TestDocument(t *testing.T) {
	doc, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]bool{}
	for _, m := range regexp.MustCompile(
		"(?m)^\\| `((?:sluice|kubeproxy)_[a-z_]+)` \\|",
	).FindAllStringSubmatch(string(doc), -1) {
		if rows[m[1]] {
			t.Errorf("%s has two rows", m[1])
		}
		rows[m[1]] = true
	}
	ch := make(chan *prometheus.Desc)
	go func() {
		defer close(ch)
		x := extras()
		(&collector{source: statustest.New(), extras: x, d: newDescs()}).Describe(ch)
		x.KubeProxy.Describe(ch)
	}()
	for d := range ch {
		_, name, _ := strings.Cut(d.String(), `fqName: "`)
		name, _, _ = strings.Cut(name, `"`)
		if !rows[name] {
			t.Errorf("docs/metrics.md does not describe %s", name)
		}
		delete(rows, name)
	}
	for name := range rows {
		t.Errorf("docs/metrics.md describes %s, which is not there", name)
	}
}
