package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"sigs.k8s.io/yaml"
)

// ruleFile is a file of rules as Prometheus reads it.
type ruleFile struct {
	Groups []ruleGroup `json:"groups"`
}

type ruleGroup struct {
	Name  string `json:"name"`
	Rules []rule `json:"rules"`
}

// rule is an alerting rule, with the labels and annotations that each of ours has.
type rule struct {
	Alert  string `json:"alert"`
	Expr   string `json:"expr"`
	For    string `json:"for,omitempty"`
	Labels struct {
		Severity string `json:"severity"`
	} `json:"labels"`
	Annotations struct {
		Summary     string `json:"summary"`
		Description string `json:"description"`
		Look        string `json:"look"`
		Do          string `json:"do"`
		Docs        string `json:"docs"` // a page of docs, with its heading
	} `json:"annotations"`
}

// readAlerts reads the chart's alerts. Unknown fields are errors.
func readAlerts(dir string) (*ruleFile, error) {
	file := filepath.Join(dir, "files", "alerts.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var rules ruleFile
	if err := yaml.UnmarshalStrict(text, &rules); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return &rules, nil
}

// page returns docs/alerts.md.
func (f *ruleFile) page() []byte {
	var b bytes.Buffer
	b.WriteString(alertsIntro)
	for _, g := range f.Groups {
		fmt.Fprintf(&b, "\n## %s\n", g.Name)
		for i := range g.Rules {
			g.Rules[i].write(&b)
		}
	}
	return b.Bytes()
}

const alertsIntro = `<!-- Made from deploy/chart/files/alerts.yaml by ` + "`make -C deploy chart`" + `: do not edit. -->
# Alerts

` + "`prometheusRule.enabled`" + ` of the chart gives these rules to Prometheus' operator, with
` + "`prometheusRule.labels`" + `; ` + "`podMonitor.enabled`" + ` has it scrape the gateways. Without the operator
add the file ` + "[deploy/chart/files/alerts.yaml](../deploy/chart/files/alerts.yaml)" + ` to ` + "`rule_files`" + `.
Severities: ` + "`critical`" + ` if clients are, or soon may be, without service; ` + "`warning`" + ` needs work in
hours; ` + "`info`" + ` needs a look. [metrics.md](metrics.md) describes the metrics.

` + "`dashboards.enabled`" + ` gives Grafana, by the sidecar of its chart, three dashboards: fleet, gateway
and Service. Without the sidecar import the files of
` + "[deploy/chart/files/dashboards](../deploy/chart/files/dashboards)" + `. Alerts and panels of announcers
and controllers have data only if Prometheus scrapes these as well.
`

func (r *rule) write(b *bytes.Buffer) {
	when := r.Labels.Severity
	if r.For != "" {
		when += " after " + r.For
	}
	a := r.Annotations
	fmt.Fprintf(b, "\n### %s\n\n```promql\n%s\n```\n\n", r.Alert, r.Expr)
	wrap(b, "", fmt.Sprintf("*%s*: %s %s", when, a.Summary, a.Description))
	b.WriteByte('\n')
	wrap(b, "- ", "Look at: "+a.Look)
	wrap(b, "- ", fmt.Sprintf("Do: %s [More](%s).", a.Do, a.Docs))
}

// wrap writes words in lines of at most 100 columns, after a bullet or none.
func wrap(b *bytes.Buffer, bullet, text string) {
	const columns = 100
	b.WriteString(bullet)
	column := len(bullet)
	for i, word := range strings.Fields(text) {
		width := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case column+1+width > columns:
			column = len(bullet)
			fmt.Fprintf(b, "\n%*s", column, "")
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += width
	}
	b.WriteByte('\n')
}
