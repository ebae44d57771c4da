package main

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"
	"sigs.k8s.io/yaml"
)

// allRules returns the chart's alerts.
func allRules(t *testing.T) (all []rule) {
	t.Helper()
	alerts, err := readAlerts(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range alerts.Groups {
		all = append(all, g.Rules...)
	}
	return all
}

// TestAlerts: each alert is complete, and its metrics and labels exist.
func TestAlerts(t *testing.T) {
	metrics, names := exported(t), map[string]bool{}
	for _, r := range allRules(t) {
		if err := checkQuery(metrics, r.Expr); err != nil {
			t.Errorf("%s: %v", r.Alert, err)
		}
		if names[r.Alert] {
			t.Errorf("%s is there twice", r.Alert)
		}
		names[r.Alert] = true
		a := r.Annotations
		for what, text := range map[string]string{"summary": a.Summary, "description": a.Description,
			"look": a.Look, "do": a.Do, "docs": a.Docs} {
			if text == "" {
				t.Errorf("%s has no %s", r.Alert, what)
			}
		}
		if !slices.Contains([]string{"critical", "warning", "info"}, r.Labels.Severity) {
			t.Errorf("%s: severity %q", r.Alert, r.Labels.Severity)
		}
	}
}

// examples are data for an alert: testdata/alerts.yaml.
type examples struct {
	Fires string `json:"fires"`
	Quiet string `json:"quiet"`
}

// TestAlertsFire evaluates each alert each minute, by Prometheus' own engine, on data by which it
// must fire and on data by which it must not.
func TestAlertsFire(t *testing.T) {
	text, err := os.ReadFile("testdata/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	data := map[string]examples{}
	if err := yaml.UnmarshalStrict(text, &data); err != nil {
		t.Fatal(err)
	}
	metrics := exported(t)
	for _, r := range allRules(t) {
		t.Run(r.Alert, func(t *testing.T) {
			e := data[r.Alert]
			delete(data, r.Alert)
			if e.Fires == "" || e.Quiet == "" {
				t.Fatal("testdata/alerts.yaml has no example by which it fires, or none by which it does not")
			}
			for _, series := range strings.Split(e.Fires, "\n\n") {
				if !fires(t, metrics, &r, series) {
					t.Errorf("does not fire:\n%s", series)
				}
			}
			for _, series := range strings.Split(e.Quiet, "\n\n") {
				if fires(t, metrics, &r, series) {
					t.Errorf("fires:\n%s", series)
				}
			}
		})
	}
	for name := range data {
		t.Errorf("testdata/alerts.yaml has examples of %s, which is no alert", name)
	}
}

// fires reports whether a rule fires within 30 minutes: it is true for the same labels each minute
// for as long as its field for says.
func fires(t *testing.T, metrics map[string][]string, r *rule, text string) bool {
	t.Helper()
	var hold model.Duration
	if r.For != "" {
		var err error
		if hold, err = model.ParseDuration(r.For); err != nil {
			t.Fatal(err)
		}
	}
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 10_000, Timeout: time.Minute,
		Parser: parser.NewParser(parser.Options{})})
	defer engine.Close()
	data, since := parseSeries(t, metrics, text), map[string]time.Time{}
	for minute := range 30 {
		now := time.Unix(int64(minute)*60, 0)
		query, err := engine.NewInstantQuery(t.Context(), data, nil, r.Expr, now)
		if err != nil {
			t.Fatal(err)
		}
		vector, err := query.Exec(t.Context()).Vector()
		if err != nil {
			t.Fatal(err)
		}
		still := map[string]time.Time{}
		for _, sample := range vector {
			key := sample.Metric.String()
			began, ok := since[key]
			if !ok {
				began = now
			}
			if now.Sub(began) >= time.Duration(hold) {
				return true
			}
			still[key] = began
		}
		query.Close()
		since = still
	}
	return false
}

// series are the data of examples, in memory. It implements storage.Queryable.
type series []promql.Series

// Querier implements storage.Queryable.
func (s series) Querier(int64, int64) (storage.Querier, error) {
	return &storage.MockQuerier{SelectMockFunction: func(
		_ bool, _ *storage.SelectHints, matchers ...*labels.Matcher,
	) storage.SeriesSet {
		set := &seriesSet{}
		for _, one := range s {
			differs := func(m *labels.Matcher) bool { return !m.Matches(one.Metric.Get(m.Name)) }
			if !slices.ContainsFunc(matchers, differs) {
				set.rest = append(set.rest, one)
			}
		}
		return set
	}}, nil
}

// seriesSet implements storage.SeriesSet.
type seriesSet struct {
	at   promql.Series
	rest series
}

func (s *seriesSet) Next() bool {
	if len(s.rest) == 0 {
		return false
	}
	s.at, s.rest = s.rest[0], s.rest[1:]
	return true
}

func (s *seriesSet) At() storage.Series              { return promql.NewStorageSeries(s.at) }
func (*seriesSet) Err() error                        { return nil }
func (*seriesSet) Warnings() annotations.Annotations { return nil }

// parseSeries reads series, a line each, and completes the labels that their metrics have.
func parseSeries(t *testing.T, metrics map[string][]string, text string) (all series) {
	t.Helper()
	for line := range strings.SplitSeq(strings.TrimSpace(text), "\n") {
		given, values, err := parser.NewParser(parser.Options{}).ParseSeriesDesc(line)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		name := given.Get(labels.MetricName)
		known, exists := metrics[name]
		if !exists {
			t.Fatalf("%s: %s is no metric", line, name)
		}
		given.Range(func(l labels.Label) {
			if l.Name != labels.MetricName && !slices.Contains(known, l.Name) {
				t.Fatalf("%s: %s has no label %s", line, name, l.Name)
			}
		})
		complete := labels.NewBuilder(given)
		for _, l := range known {
			if !given.Has(l) {
				complete.Set(l, "x")
			}
		}
		one := promql.Series{Metric: complete.Labels()}
		for minute, v := range values {
			if !v.Omitted {
				at := time.Unix(int64(minute)*60, 0)
				one.Floats = append(one.Floats, promql.FPoint{T: at.UnixMilli(), F: v.Value})
			}
		}
		all = append(all, one)
	}
	return all
}

// TestPrometheusRule: the chart's rule has the alerts and the labels of the values.
func TestPrometheusRule(t *testing.T) {
	manifests, err := Manifests(chartDir, map[string]any{
		"prometheusRule": map[string]any{"enabled": true, "labels": map[string]any{"release": "monitoring"}}})
	if err != nil {
		t.Fatal(err)
	}
	_, rule, found := strings.Cut(string(manifests), "kind: PrometheusRule\n")
	rule, _, _ = strings.Cut(rule, "\n---\n")
	if !found || !strings.Contains(rule, "    release: monitoring\n") ||
		!strings.Contains(rule, "\n  groups:\n  - name: Sluice gateways\n    rules:\n    - alert: SluiceNotForw") {
		t.Errorf("no rule with alerts and label:\n%s", rule)
	}
	if manifests, err = Manifests(chartDir, nil); err != nil || strings.Contains(string(manifests), "PrometheusRule") {
		t.Errorf("%v, want no rule without prometheusRule.enabled", err)
	}
}
