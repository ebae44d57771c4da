package main

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/statetimeline"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
	"sigs.k8s.io/yaml"
)

//go:embed dashboards.yaml
var dashboardList []byte

// board is a dashboard of dashboards.yaml.
type board struct {
	Name      string     `json:"name"` // of the file
	Title     string     `json:"title"`
	About     string     `json:"about"`
	Variables []string   `json:"variables"` // names in variableQueries
	Rows      []boardRow `json:"rows"`
}

type boardRow struct {
	Title  string  `json:"title"`
	Panels []panel `json:"panels"`
}

type panel struct {
	Title   string  `json:"title"`
	About   string  `json:"about"`
	Unit    string  `json:"unit"` // a name of Grafana's
	Kind    string  `json:"kind"` // as in dashboards.yaml; empty: a graph
	Span    uint32  `json:"span"` // columns of 24; 0: as usual for the kind
	Queries []query `json:"queries"`
}

type query struct {
	Expr   string `json:"expr"`
	Legend string `json:"legend"`
}

// variableQueries have the values that an operator selects from.
var variableQueries = map[string]struct{ query, regex string }{
	"gateway":   {"label_values(sluice_ready, instance)", `/^(.*?)(:\d+)?$/`},
	"namespace": {"label_values(sluice_service_backends, namespace)", ""},
	"service":   {`label_values(sluice_service_backends{namespace=~"$namespace"}, service)`, ""},
}

// placeholders of queries, documented in dashboards.yaml.
var placeholders = strings.NewReplacer(
	"$at", `instance=~"$gateway(:[0-9]+)?"`,
	"$of", `instance=~"$gateway(:[0-9]+)?", namespace=~"$namespace", service=~"$service"`,
)

// source is the data source that an operator selects.
var source = common.DataSourceRef{Type: cog.ToPtr("prometheus"), Uid: cog.ToPtr("${datasource}")}

// readDashboards reads the list. Unknown fields are errors.
func readDashboards() ([]board, error) {
	var list []board
	if err := yaml.UnmarshalStrict(dashboardList, &list); err != nil {
		return nil, fmt.Errorf("dashboards.yaml: %w", err)
	}
	for i := range list {
		for _, row := range list[i].Rows {
			for _, p := range row.Panels {
				for q := range p.Queries {
					p.Queries[q].Expr = placeholders.Replace(p.Queries[q].Expr)
				}
			}
		}
	}
	return list, nil
}

// putDashboards writes the dashboards of a chart into a directory, or compares them.
func putDashboards(dir, files string, check bool) error {
	list, err := readDashboards()
	if err != nil {
		return err
	}
	for i := range list {
		text, err := list[i].json()
		if err != nil {
			return fmt.Errorf("dashboard %s: %w", list[i].Name, err)
		}
		if err := put(dir, filepath.Join(files, list[i].Name+".json"), text, check); err != nil {
			return err
		}
	}
	if there, err := os.ReadDir(files); err != nil {
		return err
	} else if len(there) != len(list) {
		return fmt.Errorf("%s has %d files, and dashboards.yaml has %d dashboards: remove the others",
			files, len(there), len(list))
	}
	return nil
}

// json returns the dashboard in Grafana's form.
func (d *board) json() ([]byte, error) {
	b := dashboard.NewDashboardBuilder(d.Title).Uid("sluice-"+d.Name).Description(d.About).
		Tags([]string{"sluice"}).Refresh("30s").Time("now-1h", "now").Tooltip(dashboard.DashboardCursorSyncCrosshair).
		WithVariable(dashboard.NewDatasourceVariableBuilder("datasource").Label("Prometheus").Type("prometheus"))
	for _, name := range d.Variables {
		v, ok := variableQueries[name]
		if !ok {
			return nil, fmt.Errorf("there is no variable %s", name)
		}
		q := dashboard.NewQueryVariableBuilder(name).Datasource(source).Multi(true).IncludeAll(true).AllValue(".*").
			Refresh(dashboard.VariableRefreshOnTimeRangeChanged).Sort(dashboard.VariableSortAlphabeticalAsc).
			Query(dashboard.StringOrMap{String: &v.query})
		if v.regex != "" {
			q.Regex(v.regex)
		}
		b.WithVariable(q)
	}
	id := uint32(0)
	for _, row := range d.Rows {
		id++
		b.WithRow(dashboard.NewRowBuilder(row.Title).Id(id))
		for i := range row.Panels {
			id++
			p, err := row.Panels[i].build(id)
			if err != nil {
				return nil, fmt.Errorf("panel %s: %w", row.Panels[i].Title, err)
			}
			b.WithPanel(p)
		}
	}
	built, err := b.Build()
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	err = e.Encode(built)
	return out.Bytes(), err
}

// builtPanel is a panel that is complete.
type builtPanel dashboard.Panel

// Build implements cog.Builder.
func (p builtPanel) Build() (dashboard.Panel, error) { return dashboard.Panel(p), nil }

// build returns the panel in Grafana's form.
func (p *panel) build(id uint32) (cog.Builder[dashboard.Panel], error) {
	if p.Title == "" || p.About == "" || p.Unit == "" || len(p.Queries) == 0 {
		return nil, errors.New("it lacks title, about, unit or queries")
	}
	var (
		built dashboard.Panel
		err   error
	)
	legend := common.NewVizLegendOptionsBuilder().ShowLegend(true)
	tooltip := common.NewVizTooltipOptionsBuilder().Mode(common.TooltipDisplayModeMulti).
		Sort(common.SortOrderDescending)
	switch p.Kind {
	case "stat":
		built, err = stat.NewPanelBuilder().Thresholds(thresholds(p.Unit)).Orientation(common.VizOrientationAuto).
			ReduceOptions(common.NewReduceDataOptionsBuilder().Calcs([]string{"lastNotNull"})).
			Height(4).Span(4).Build()
	case "states":
		built, err = statetimeline.NewPanelBuilder().Thresholds(thresholds(p.Unit)).
			ColorScheme(dashboard.NewFieldColorBuilder().Mode(dashboard.FieldColorModeIdThresholds)).
			Legend(legend).Tooltip(tooltip).ShowValue(common.VisibilityModeNever).Height(8).Span(12).Build()
	case "":
		built, err = timeseries.NewPanelBuilder().Min(0).FillOpacity(10).ShowPoints(common.VisibilityModeNever).
			Legend(legend).Tooltip(tooltip).Height(8).Span(8).Build()
	default:
		return nil, fmt.Errorf("the kind %s is none of graph, stat and states", p.Kind)
	}
	if err != nil {
		return nil, err
	}
	built.Id, built.Title, built.Description, built.Datasource = &id, &p.Title, &p.About, &source
	built.FieldConfig.Defaults.Unit = &p.Unit
	if p.Span > 0 {
		built.GridPos.W = p.Span
	}
	for i, q := range p.Queries {
		target, err := prometheus.NewDataqueryBuilder().RefId(string(rune('A' + i))).Expr(q.Expr).
			LegendFormat(q.Legend).Range().Build()
		if err != nil {
			return nil, err
		}
		built.Targets = append(built.Targets, target)
	}
	return builtPanel(built), nil
}

// thresholds colour yes green and no red; numbers have one colour.
func thresholds(unit string) cog.Builder[dashboard.ThresholdsConfig] {
	steps := []dashboard.Threshold{{Color: "text"}}
	if unit == "bool_yes_no" {
		steps = []dashboard.Threshold{{Color: "red"}, {Color: "green", Value: cog.ToPtr(1.0)}}
	}
	return dashboard.NewThresholdsConfigBuilder().Mode(dashboard.ThresholdsModeAbsolute).Steps(steps)
}
