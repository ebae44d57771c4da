//go:build root

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice.dev/sluice/test/bed/cluster"
	"sluice.dev/sluice/test/bed/topo"
)

const (
	chartFiles       = "../../deploy/chart/files"
	prometheusAddr   = "127.0.0.1:9090"
	prometheusConfig = `global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [%s]
scrape_configs:
- job_name: gateway
  honor_labels: true # as the chart's PodMonitor
  static_configs: [{targets: ["127.0.0.1:9470"], labels: {namespace: sluice-system, pod: gateway}}]
`
)

// TestPrometheus: Debian's Prometheus scrapes a gateway under traffic by the chart's alerts. It
// answers each query of the dashboards, with data where the gateway has the metrics; it evaluates
// each alert, and none fires.
func TestPrometheus(t *testing.T) {
	if !full() {
		t.Skip("make -C test e2e runs it: it downloads Prometheus of Debian")
	}
	l := newLab(t, labConfig{Config: topo.Config{Backends: 2, Queues: 2}, small: true,
		options: "metrics: {backends: true}\n"})
	p := startPrometheus(t, l)
	flows, err := l.Clients[0].OpenUDP(l.ctx, topo.FlowLoad{Targets: []netip.AddrPort{at(vip4, dnsPort)}, Flows: 10,
		Interval: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { flows.Stop() })
	ctx, stop := context.WithCancel(l.ctx)
	var load sync.WaitGroup
	load.Go(func() {
		if _, err := l.Clients[0].HTTP(ctx, topo.HTTPLoad{Requests: 10_000, Interval: 20 * time.Millisecond,
			Targets: []netip.AddrPort{at(vip4, webPort), at(vip6, webPort)}}); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		stop()
		load.Wait()
	})

	for _, d := range readDashboards(t) {
		t.Run(d.Title, func(t *testing.T) {
			for _, panel := range d.Panels {
				for _, target := range panel.Targets {
					if err := p.wantPanel(target.Expr); err != nil {
						t.Errorf("%s: %v", panel.Title, err)
					}
				}
			}
			for _, v := range d.Templating.List {
				if err := p.wantValues(v.Query); v.Type == "query" && err != nil {
					t.Errorf("$%s: %v", v.Name, err)
				}
			}
		})
	}
	p.wantRules(t)
}

// dashboard has the parts of a dashboard of the chart that ask Prometheus.
type dashboard struct {
	Title  string
	Panels []struct {
		Title   string
		Targets []struct{ Expr string }
	}
	Templating struct {
		List []struct{ Name, Type, Query string }
	}
}

func readDashboards(t *testing.T) (all []dashboard) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(chartFiles, "dashboards", "*.json"))
	if err != nil || len(files) != 3 {
		t.Fatalf("%d dashboards, %v", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var d dashboard
		if err := json.Unmarshal(text, &d); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all = append(all, d)
	}
	return all
}

// prometheusServer is a Prometheus on the gateway's host.
type prometheusServer struct{ l *lab }

// startPrometheus starts Prometheus with the chart's alerts, and returns when it has scraped.
func startPrometheus(t *testing.T, l *lab) *prometheusServer {
	t.Helper()
	packages, err := cluster.FetchPackages(l.ctx, os.Stderr, "Prometheus", "prometheus")
	if err != nil {
		t.Fatal(err)
	}
	alerts, err := filepath.Abs(filepath.Join(chartFiles, "alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	config := filepath.Join(dir, "prometheus.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, prometheusConfig, alerts), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close() // the process has its own
	name, args := cluster.ProgramOf(packages, "usr/bin/prometheus", "--config.file="+config,
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+prometheusAddr)
	process, err := l.Gateway.Start(topo.Command{Path: name, Args: args, Dir: dir, Stdout: log, Stderr: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := process.Stop(10 * time.Second); err != nil {
			t.Errorf("Prometheus: %v", err)
		}
	})
	p := &prometheusServer{l}
	if err := topo.Until(l.ctx, 30*time.Second, 100*time.Millisecond, func(context.Context) error {
		return p.wantPanel("sluice_ready == 1")
	}); err != nil {
		text, _ := os.ReadFile(log.Name())
		t.Fatalf("%v\n%s", err, text)
	}
	return p
}

// get asks Prometheus' API.
func (p *prometheusServer) get(path string, parameters url.Values, data any) error {
	status, body, err := p.l.Gateway.Get(p.l.ctx, "http://"+prometheusAddr+"/api/v1/"+path+"?"+parameters.Encode())
	if err != nil {
		return err
	}
	answer := struct {
		Data  any
		Error string
	}{Data: data}
	if err := json.Unmarshal([]byte(body), &answer); err != nil {
		return fmt.Errorf("%d %s: %w", status, body, err)
	}
	if status != http.StatusOK {
		return topo.Final(fmt.Errorf("%d %s", status, answer.Error))
	}
	return nil
}

var (
	// grafana replaces Grafana's variables as Grafana does for the only gateway and all Services.
	grafana = strings.NewReplacer("$__rate_interval", "10s", "$gateway", "127.0.0.1", "$namespace", ".*",
		"$service", ".*")
	// absent are metrics of programs and settings that the gateway of the test is without.
	absent = regexp.MustCompile(`sluice_(announcer|controller|pool|group)_`)
	// moved are metrics that the test's traffic moves, and still ones that it does not.
	moved = regexp.MustCompile(`sluice_(worker_(received|transmitted|flows_created|busy|batches)_|` +
		`service_(flows_created|packets|bytes|handshake|answer)_|backend_(packets|bytes)_)`)
	still = regexp.MustCompile(`_(dropped|refused|resets)_`)
)

// wantPanel waits until the query of a panel has data: of metrics that traffic moves, also a number
// that is not 0.
func (p *prometheusServer) wantPanel(expr string) error {
	query := grafana.Replace(expr)
	return topo.Until(p.l.ctx, 30*time.Second, 200*time.Millisecond, func(context.Context) error {
		var data struct {
			Result []struct{ Value [2]any }
		}
		if err := p.get("query", url.Values{"query": {query}}, &data); err != nil {
			return fmt.Errorf("%s: %w", query, err)
		}
		if absent.MatchString(query) {
			if len(data.Result) > 0 {
				return topo.Final(fmt.Errorf("%s has data, and the gateway is without that part", query))
			}
			return nil
		}
		if len(data.Result) == 0 {
			return fmt.Errorf("%s has no data", query)
		}
		for _, r := range data.Result {
			if v, err := strconv.ParseFloat(fmt.Sprint(r.Value[1]), 64); err == nil && v > 0 {
				return nil
			}
		}
		if moved.MatchString(query) && !still.MatchString(query) {
			return fmt.Errorf("%s has no number but 0: %v", query, data.Result)
		}
		return nil
	})
}

// wantValues checks the query for the values of a variable, a function of Grafana.
func (p *prometheusServer) wantValues(query string) error {
	of, found := strings.CutPrefix(query, "label_values(")
	metric, label, comma := strings.Cut(strings.TrimSuffix(of, ")"), ", ")
	if !found || !comma {
		return fmt.Errorf("%q is no query of labels", query)
	}
	var values []string
	if err := p.get("label/"+label+"/values", url.Values{"match[]": {grafana.Replace(metric)}}, &values); err != nil {
		return err
	}
	if len(values) == 0 || label == "namespace" && values[0] != "default" {
		return fmt.Errorf("%s: %v", query, values)
	}
	return nil
}

// wantRules checks that each alert was evaluated without error, and that none fires.
func (p *prometheusServer) wantRules(t *testing.T) {
	t.Helper()
	type rule struct{ Name, Health, LastError, State string }
	var data struct {
		Groups []struct{ Rules []rule }
	}
	if err := topo.Until(p.l.ctx, 30*time.Second, 200*time.Millisecond, func(context.Context) error {
		if err := p.get("rules", nil, &data); err != nil {
			return err
		}
		for _, g := range data.Groups {
			for _, r := range g.Rules {
				if r.Health == "unknown" {
					return fmt.Errorf("%s was not evaluated", r.Name)
				}
			}
		}
		if len(data.Groups) == 0 {
			return errors.New("Prometheus has no rules")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for _, g := range data.Groups {
		for _, r := range g.Rules {
			if r.Health != "ok" || r.State == "firing" {
				t.Errorf("%s is %s and %s: %s", r.Name, r.Health, r.State, r.LastError)
			}
		}
	}
}
