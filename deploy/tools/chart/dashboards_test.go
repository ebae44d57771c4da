package main

import (
	"encoding/json"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestDashboards: metrics and labels of each query exist, also of the queries for variables.
func TestDashboards(t *testing.T) {
	metrics := exported(t)
	list, err := readDashboards()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range list {
		for _, row := range d.Rows {
			for _, p := range row.Panels {
				for _, q := range p.Queries {
					if err := checkQuery(metrics, q.Expr); err != nil {
						t.Errorf("%s, %s: %v", d.Title, p.Title, err)
					}
					if len(p.Queries) > 1 && q.Legend == "" {
						t.Errorf("%s, %s: a query has no legend", d.Title, p.Title)
					}
				}
			}
		}
	}
	for name, v := range variableQueries {
		of, ok := strings.CutPrefix(v.query, "label_values(")
		metric, label, found := strings.Cut(strings.TrimSuffix(of, ")"), ", ")
		if !ok || !found {
			t.Fatalf("%s: %s is no query of labels", name, v.query)
		}
		if err := checkQuery(metrics, "sum by ("+label+") ("+metric+")"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestDashboardsOfChart: with dashboards.enabled, and only then, each dashboard is in a ConfigMap
// that Grafana's sidecar finds. No panel covers another one.
func TestDashboardsOfChart(t *testing.T) {
	values := map[string]any{"dashboards": map[string]any{"enabled": true}}
	manifests, err := Manifests(chartDir, values)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for object := range strings.SplitSeq(string(manifests), "\n---\n") {
		var c struct {
			Metadata struct {
				Name, Namespace string
				Labels          map[string]string
			}
			Data map[string]string
		}
		if err := yaml.Unmarshal([]byte(object), &c); err != nil {
			t.Fatal(err)
		}
		if c.Metadata.Labels["grafana_dashboard"] != "1" {
			continue
		}
		if len(c.Data) != 1 || c.Metadata.Namespace != namespace {
			t.Errorf("%s in namespace %s has %d files", c.Metadata.Name, c.Metadata.Namespace, len(c.Data))
		}
		for name, text := range c.Data {
			var d struct {
				UID    string
				Panels []struct {
					ID      int
					Type    string
					GridPos struct{ X, Y, W, H int }
				}
			}
			if err := json.Unmarshal([]byte(text), &d); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if name != d.UID+".json" || c.Metadata.Name != strings.Replace(d.UID, "-", "-dashboard-", 1) {
				t.Errorf("ConfigMap %s has the file %s with the dashboard %s", c.Metadata.Name, name, d.UID)
			}
			taken := map[[2]int]bool{} // squares of the grid
			for _, p := range d.Panels {
				at := p.GridPos
				for x := at.X; x < at.X+at.W; x++ {
					for y := at.Y; y < at.Y+at.H; y++ {
						if taken[[2]int{x, y}] || x >= 24 {
							t.Errorf("%s: panel %d at %+v covers another one, or ends beside the grid", name, p.ID, at)
						}
						taken[[2]int{x, y}] = true
					}
				}
			}
		}
		found++
	}
	if found != 3 {
		t.Errorf("%d dashboards, want 3", found)
	}
	if manifests, err = Manifests(chartDir, nil); err != nil || strings.Contains(string(manifests), "grafana") {
		t.Errorf("%v, want no dashboard without dashboards.enabled", err)
	}
}
