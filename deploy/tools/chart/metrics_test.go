package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"

	"sluice.dev/sluice/allocate"
	"sluice.dev/sluice/announce"
	"sluice.dev/sluice/announce/layer2"
	"sluice.dev/sluice/control/tracker"
	"sluice.dev/sluice/serve/metrics"
	"sluice.dev/sluice/serve/status/statustest"
)

// targetLabels are the labels that Prometheus gives each series of a target.
var targetLabels = []string{"instance", "job"}

// exported returns the labels of each series of gateway, controller and announcer, by its name.
func exported(t *testing.T) map[string][]string {
	t.Helper()
	gateway := metrics.NewRegistry(statustest.New(), metrics.Extras{
		KubeProxy: metrics.NewKubeProxy(metrics.KubeProxyConfig{
			Waiting: func() tracker.Waiting { return tracker.Waiting{} },
			Queued:  func() time.Time { return time.Time{} },
		}),
	})
	families, err := gateway.Gather()
	if err != nil {
		t.Fatal(err)
	}
	histograms := map[string]bool{}
	for _, f := range families {
		histograms[f.GetName()] = f.GetType() == dto.MetricType_HISTOGRAM
	}

	ch := make(chan *prometheus.Desc)
	go func() {
		defer close(ch)
		gateway.Describe(ch)
		(&allocate.Metrics{}).Describe(ch)
		announce.Metrics{}.Describe(ch)
		(&layer2.Speaker{}).Describe(ch)
	}()
	form := regexp.MustCompile(`fqName: "([^"]+)", .* variableLabels: \{([^}]*)\}`)
	all := map[string][]string{}
	for d := range ch {
		m := form.FindStringSubmatch(d.String())
		if m == nil {
			t.Fatalf("%s is not in the form of a description", d)
		}
		name, l := m[1], slices.Clone(targetLabels)
		if m[2] != "" {
			l = append(l, strings.Split(m[2], ",")...)
		}
		if histograms[name] {
			all[name+"_sum"], all[name+"_count"], all[name+"_bucket"] = l, l, append(slices.Clone(l), "le")
			continue
		}
		all[name] = l
	}
	return all
}

// variables are Grafana's, in queries of dashboards, with values for a query that finds everything.
var variables = strings.NewReplacer("$__rate_interval", "1m", "$gateway", ".*", "$namespace", ".*", "$service", ".*")

// checkQuery returns an error if a query has no metric, or names a metric, or a label, that does
// not exist. Labels that group or match must be of a metric to which they apply.
func checkQuery(all map[string][]string, query string) error {
	expr, err := parser.NewParser(parser.Options{}).ParseExpr(variables.Replace(query))
	if err != nil {
		return err
	}
	var firstErr error
	known := func(n parser.Node) (known []string) {
		parser.Inspect(n, func(n parser.Node, _ []parser.Node) error {
			s, ok := n.(*parser.VectorSelector)
			if !ok || firstErr != nil {
				return nil
			}
			l, exists := all[s.Name]
			if !exists {
				firstErr = fmt.Errorf("%s is no metric", s)
			}
			for _, m := range s.LabelMatchers {
				if m.Name != labels.MetricName && !slices.Contains(l, m.Name) && exists {
					firstErr = fmt.Errorf("%s has no label %s", s.Name, m.Name)
				}
			}
			known = append(known, l...)
			return nil
		})
		return known
	}
	if len(known(expr)) == 0 && firstErr == nil {
		firstErr = fmt.Errorf("%s has no metric", query)
	}
	contain := func(n parser.Expr, names []string) {
		k := known(n)
		for _, name := range names {
			if !slices.Contains(k, name) && firstErr == nil {
				firstErr = fmt.Errorf("no metric of %s has the label %s", n, name)
			}
		}
	}
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		switch n := n.(type) {
		case *parser.AggregateExpr:
			contain(n.Expr, n.Grouping)
		case *parser.BinaryExpr:
			switch m := n.VectorMatching; {
			case m == nil:
			case m.On:
				contain(n.LHS, m.MatchingLabels)
				contain(n.RHS, m.MatchingLabels)
			default: // ignoring
				contain(n, m.MatchingLabels)
			}
		}
		return nil
	})
	return firstErr
}

func TestCheckQuery(t *testing.T) {
	all := exported(t)
	for query, want := range map[string]string{
		"sluice_ready == 0": "",
		`sum by (instance, le) (rate(sluice_service_answer_seconds_bucket{service="a"}[5m]))`: "",
		"rate(sluice_group_answer_wait_seconds_count[$__rate_interval])":                      "",
		"sluice_worker_frames / ignoring (place) sluice_worker_umem_frames":                   "",

		"sluice_reedy == 0":                         "sluice_reedy is no metric",
		"sluice_ready_bucket":                       "sluice_ready_bucket is no metric",
		"sluice_service_answer_seconds":             "sluice_service_answer_seconds is no metric",
		`sluice_ready{worker="0"}`:                  "sluice_ready has no label worker",
		"sum by (worker) (sluice_ready)":            "no metric of sluice_ready has the label worker",
		"sluice_ready and on (node) sluice_applied": "no metric of sluice_ready has the label node",
		"sluice_ready ==":                           "parse error",
		"vector(1)":                                 "vector(1) has no metric",

		"sluice_worker_frames and on (worker) sluice_applied":              "of sluice_applied has the label worker",
		"sluice_worker_frames / ignoring (kind) sluice_worker_umem_frames": "has the label kind",
	} {
		got := ""
		if err := checkQuery(all, query); err != nil {
			got = err.Error()
		}
		if want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", query, got, want)
		}
	}
}
