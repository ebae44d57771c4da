package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sluice.dev/sluice/gateway/explain"
	"sluice.dev/sluice/serve/status"
)

// explainOffline is what the program gives to its commands.
var explainOffline = explain.Offline

// TestExplainOffline: what is said of packets to the Services of testdata/explain. All
// verdicts are among them, and every way in which an endpoint is in or out.
func TestExplainOffline(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range []struct {
		name, config, from, to, more string
	}{
		{"forward", "config", "198.51.100.7:40000", "203.0.113.10:80", ""},
		{"forward-v6", "config", "2001:db8::7", "[2001:db8:f::10]:80", ""},
		{"forward-from", "reject", "198.51.100.7:40000", "203.0.113.20:80/TCP", ""},
		{"node-port", "config", "198.51.100.7:40000", "192.0.2.10:30080", ""},
		{"other-node", "config", "198.51.100.7:40000", "203.0.113.10:80", "--node gw-3"},
		{"cluster-ip-of-pod", "config", "10.1.0.9:40000", "10.96.0.10:80", ""},
		{"affinity-and-load", "config", "198.51.100.7", "203.0.113.11:443", ""},
		{"source-range", "config", "192.0.2.99", "203.0.113.11:443", ""},
		{"local", "config", "198.51.100.7:1000", "203.0.113.14:5060/sctp", ""},
		{"local-elsewhere", "config", "198.51.100.7", "203.0.113.12:53/udp", ""},
		{"local-of-pod", "config", "10.1.0.99", "203.0.113.12:53/UDP", ""},
		{"itself", "config", "10.1.0.41", "203.0.113.14:5060/SCTP", ""},
		{"no-endpoints", "config", "198.51.100.7", "203.0.113.13:80", ""},
		{"no-flow", "config", "198.51.100.7:40000", "203.0.113.10:80", "--established"},
		{"spoofed", "config", "192.0.2.10", "203.0.113.14:5060/SCTP", ""},
		{"martian", "config", "127.0.0.1", "203.0.113.10:80", ""},
		{"unserved-pass", "pass", "198.51.100.7", "203.0.113.10:81", ""},
		{"unserved-reject", "config", "198.51.100.7", "203.0.113.10:81", ""},
		{"stranger", "config", "198.51.100.7", "203.0.113.99:80", ""},
		{"the-nodes", "config", "198.51.100.7", "192.0.2.10:22", ""},
		{"limits", "limits", "198.51.100.7:40000", "203.0.113.10:80", ""},
		{"late-reply", "config", "10.1.0.11:8080", "192.0.2.10:20000", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			args := append([]string{"explain", "--from", c.from, "--to", c.to, "--manifests",
				"testdata/explain/manifests",
				"--config", "testdata/explain/" + c.config + ".yaml"}, strings.Fields(c.more)...)
			code, out, errs := sluice(t, args...)
			if code != exitOK || errs != "" {
				t.Fatalf("exit %d: %s", code, errs)
			}
			golden(t, "explain/"+c.name+".table", out)
			code, out, errs = sluice(t, append(args, "-o", "json")...)
			var v status.ExplainView
			if err := json.Unmarshal([]byte(out), &v); err != nil || code != exitOK {
				t.Fatalf("exit %d: %v\n%s%s", code, err, out, errs)
			}
			seen[v.Verdict+" "+v.Reason] = true
		})
	}
	for _, want := range []string{
		"forward ", "pass ", "reject no_endpoints", "reject frontend_rejected", "drop source_range",
		"drop no_local_endpoints", "reject no_flow", "drop spoofed_source", "drop martian_source"} {
		if !seen[want] {
			t.Errorf("no packet has the verdict %q", want)
		}
	}
}

// TestExplainBrokenManifests: what cannot be read is said where nothing is served.
func TestExplainBrokenManifests(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a.yaml": "kind: Service\n",
		"b.yaml": "{apiVersion: v1, kind: Service, metadata: {name: b}, spec: {ports: [{port: 0}]}}\n",
		"c.yaml": "{apiVersion: v1, kind: Service, metadata: {name: c}, spec: {ipFamilies: [IPv4], " +
			"loadBalancerSourceRanges: [bad, 10.0.0.0/8], ports: [{port: 80}]}}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	code, out, errs := sluice(t, "explain", "--from", "198.51.100.7", "--to", "203.0.113.10:80", "--manifests", dir)
	if code != exitFailure || !strings.Contains(out, "a.yaml") ||
		!strings.Contains(out, "Service default/b: spec.ports[0].port") || strings.Contains(out, "default/c") {
		t.Errorf("exit %d: %s\n%s", code, errs, out)
	}
	for _, want := range []string{"a.yaml", "b.yaml#1: Service default/b"} {
		if !strings.Contains(errs, want) || strings.Contains(errs, "c.yaml") {
			t.Errorf("want %s and not c.yaml, which can be read: %s", want, errs)
		}
	}
}

// TestExplainNoService: without a Service the command fails, with the directory and how to fill it.
func TestExplainNoService(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "gateway.yml.txt") // no manifest by its name
	text, err := os.ReadFile("testdata/explain/config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text = append(text, "manifests: {directory: "+dir+"}\n"...)
	if err := os.WriteFile(config, text, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, manifest := range []string{"", "{apiVersion: v1, kind: Node, metadata: {name: gw-1}}\n",
		"{apiVersion: v1, kind: Secret, metadata: {name: s}}\n"} {
		if manifest != "" {
			if err := os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(manifest), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for _, given := range [][]string{{"--manifests", dir}, {"--config", config}} {
			args := append([]string{"explain", "--from", "198.51.100.7", "--to", "203.0.113.10:80"}, given...)
			code, out, errs := sluice(t, args...)
			if code != exitFailure || out != "" || !strings.Contains(errs, "no Service in "+dir) ||
				!strings.Contains(errs, "kubectl get services,endpointslices,nodes") {
				t.Errorf("%q: exit %d: %s%s", given, code, out, errs)
			}
		}
	}
}

// TestExplainUsage: what it is asked wrongly, and what it cannot answer.
func TestExplainUsage(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(bad, []byte("kind: Nonsense\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ask := "--from 198.51.100.7 --to 203.0.113.10:80 "
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"--to 203.0.113.10:80", exitUsage, "needs --from and --to"},
		{"--from 198.51.100.7", exitUsage, "needs --from and --to"},
		{ask + "--syn --established", exitUsage, "not both"},
		{ask + "--established", exitUsage, "identified by its port"},
		{"--from x --to 203.0.113.10:80", exitUsage, "is no address"},
		{ask + "--node gw-1", exitUsage, "without a gateway"},
		{ask + "--socket /nowhere/s", exitFailure, "not running"},
		{ask + "--manifests testdata/explain/manifests --node gw-9", exitFailure,
			"--node gw-9: testdata/explain/manifests has no such Node; did you mean gw-"},
		{ask + "--manifests testdata/explain/manifests --node gw-2", exitOK, ""}, // only endpoints name it
		{ask + "--manifests /nowhere", exitFailure, "/nowhere"},
		{ask + "--manifests testdata/explain/manifests --config " + bad, exitFailure, "kind"},
	} {
		code, out, errs := sluice(t, append([]string{"explain"}, strings.Fields(c.args)...)...)
		if code != c.code || !strings.Contains(errs, c.want) {
			t.Errorf("%s: exit %d, want %d; %s%s, want %q", c.args, code, c.code, out, errs, c.want)
		}
	}
}

// TestExplainDocumented: the examples of docs/explain.md are what is printed.
func TestExplainDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/explain.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"forward", "local-elsewhere"} {
		out, err := os.ReadFile("testdata/explain/" + name + ".table")
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(doc), "\n"+string(out)+"```\n") {
			t.Errorf("docs/explain.md has not what testdata/explain/%s.table has", name)
		}
	}
}
