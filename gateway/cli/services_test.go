package cli

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/serve/status/statustest"
)

// TestServiceFlag: services and backends of one service alone, by name and port; what is
// no name of a service is refused, and not taken for one without backends.
func TestServiceFlag(t *testing.T) {
	socket := daemon(t, statustest.New())
	for _, c := range []struct {
		filter             string
		services, backends int
		code               int
	}{
		{"default/web", 1, 3, exitOK},
		{"default/web:http", 1, 3, exitOK},
		{"default/web:https", 0, 0, exitFailure},
		{"default/we", 0, 0, exitFailure},
		{"other/web", 0, 0, exitFailure},
		{"kube-system/dns", 1, 0, exitOK},
		{"kube-system/dns:", 0, 0, exitFailure},
		{"web", 0, 0, exitUsage},
		{"default/", 0, 0, exitUsage},
		{"a/b/c", 0, 0, exitUsage},
	} {
		var s []status.ServiceView
		var b []status.BackendView
		for command, into := range map[string]any{"services": &s, "backends": &b} {
			code, out, errs := sluice(t, command, "--service", c.filter, "-o", "json", "--socket", socket)
			if code != c.code {
				t.Errorf("%s --service %s: exit %d, want %d: %s", command, c.filter, code, c.code, errs)
			} else if code == exitOK {
				if err := json.Unmarshal([]byte(out), into); err != nil {
					t.Error(err)
				}
			}
		}
		if len(s) != c.services || len(b) != c.backends {
			t.Errorf("--service %s: %d services and %d backends, want %d and %d", c.filter, len(s), len(b), c.services,
				c.backends)
		}
	}
}

// TestServiceFlagOfNoService: every command with --service fails for a service that is not served,
// prints no empty result, and names the nearest one.
func TestServiceFlagOfNoService(t *testing.T) {
	socket := daemon(t, statustest.New())
	for _, command := range []string{"services", "backends", "flows", "flows --count", "flows delete"} {
		code, out, errs := sluice(t, append(strings.Fields(command), "--service", "default/wbe", "--socket", socket)...)
		if code != exitFailure || out != "" || !strings.Contains(errs, "no Service default/wbe") ||
			!strings.Contains(errs, "did you mean default/web?") {
			t.Errorf("%s: exit %d\n%s%s", command, code, errs, out)
		}
	}
}

// nodePorts has the node port of the sample at one address of the node.
type nodePorts struct{ *statustest.Gateway }

func (g nodePorts) Explain(q *status.ExplainQuery) (status.ExplainView, error) {
	v, err := g.Gateway.Explain(q)
	if v.Service = ""; q.To == netip.MustParseAddrPort("10.1.0.2:30080") {
		v.Service = "default/web:http"
	}
	return v, err
}

// TestFilters: a filter that names what the gateway does not have fails, prints no empty table, and
// names the nearest one. Where what it names exists, or may, a line says that there are no flows.
func TestFilters(t *testing.T) {
	socket := daemon(t, nodePorts{statustest.New()})
	const none = "No flow matches: "
	for _, c := range []struct {
		filter, says string
		code         int
	}{
		{"--vip 192.0.2.11", "node port 192.0.2.11, see FRONTENDS of `sluice services`; did you mean 192.0.2.10?",
			exitFailure},
		{"--vip 192.0.2.10:81", "did you mean 192.0.2.10:80?", exitFailure},
		{"--vip 2001:db8:9::/64", "no Service has the virtual address or node port 2001:db8:9::/64", exitFailure},
		{"--vip [2001:db8::11]:80", "did you mean [2001:db8::10]:80?", exitFailure},
		{"--vip 192.0.2.53 --state established", none, exitOK},
		{"--vip 192.0.2.0/24 --state syn_sent", none, exitOK},
		{"--vip 192.0.2.10:7 --protocol icmp", none, exitOK},
		{"--vip 10.1.0.2:30080", none, exitOK},
		{"--vip 10.1.0.2", none, exitOK},
		{"--vip 10.1.0.3:30080", "no Service has", exitFailure},
		{"--vip 10.1.0.3", "no Service has", exitFailure},
		{"--vip 10.1.0.2:30081", "no Service has", exitFailure},
		{"--backend 10.1.0.13", "no backend 10.1.0.13, see `sluice backends`; did you mean 10.1.0.11?", exitFailure},
		{"--backend 10.1.0.11:808", "did you mean 10.1.0.11:8080?", exitFailure},
		{"--backend 10.1.0.11:443", "did you mean 10.1.0.11:8080?", exitFailure},
		{"--backend 10.1.0.11 --state syn_sent", none, exitOK},
		{"--backend 10.9.0.0/16", "no backend 10.9.0.0/16", exitFailure},
		{"--client 198.51.100.99", none + "client 198.51.100.99.", exitOK},
		{"--service dns", "write namespace/name", exitUsage},
		{"--service kube-system/dns --vip 192.0.2.10:80", none, exitOK},
		{"--service kube-system/dsn --vip 192.0.2.10:80", "did you mean kube-system/dns?", exitFailure},
		{"--state syn-sent", "must be one of", exitUsage},
		{"--protocol tpc", "must be one of", exitUsage},
	} {
		for _, command := range []string{"flows", "flows --count", "flows delete"} {
			code, out, errs := sluice(t, append(strings.Fields(command+" "+c.filter), "--socket", socket)...)
			if code != c.code || !strings.Contains(errs, c.says) || (out == "") != (code != exitOK) {
				t.Errorf("%s %s: exit %d, want %d and %q\n%s%s", command, c.filter, code, c.code, c.says, errs, out)
			}
		}
	}
	code, out, errs := sluice(t, "drain", "10.1.0.11:808", "--socket", socket)
	if code != exitFailure || out != "" || !strings.Contains(errs, "did you mean 10.1.0.11:8080?") {
		t.Errorf("drain: exit %d, %s%s", code, errs, out)
	}
}

// TestEmptyLists: a list without rows says so on standard error.
func TestEmptyLists(t *testing.T) {
	g := statustest.New()
	g.Many(0)
	socket := daemon(t, g)
	for command, says := range map[string]string{
		"flows":                              "The gateway has no flows.\n",
		"backends --service kube-system/dns": "Service kube-system/dns has no endpoints.\n",
	} {
		if code, out, errs := sluice(t, append(strings.Fields(command), "--socket", socket)...); code != exitOK ||
			errs != says || strings.Count(out, "\n") != 1 {
			t.Errorf("%s: exit %d, %q\n%s", command, code, errs, out)
		}
	}
	empty := statustest.New()
	empty.ServiceList, empty.BackendList, empty.StatsView = nil, nil, status.StatsView{}
	socket = daemon(t, empty)
	for command, says := range map[string]string{"services": "serves no Service",
		"backends": "No Service of the gateway has endpoints",
		"stats":    "No packet was dropped."} {
		if code, out, errs := sluice(t, command, "--socket", socket); code != exitOK ||
			!strings.Contains(errs+out, says) {
			t.Errorf("%s: exit %d, %q\n%s", command, code, errs, out)
		}
	}
}
