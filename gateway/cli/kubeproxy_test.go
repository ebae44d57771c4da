package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sluice.dev/sluice/config"
)

const kubeProxyFile = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: ipvs
ipvs:
  scheduler: lc
  strictARP: true
conntrack:
  maxPerCore: 1024
  min: 64
`

// Standard output is a configuration that check takes, and nothing else; standard error
// has a line for each field.
func TestFromKubeProxy(t *testing.T) {
	dir := t.TempDir()
	theirs, ours := filepath.Join(dir, "kube-proxy.yaml"), filepath.Join(dir, "gateway.yaml")
	if err := os.WriteFile(theirs, []byte(kubeProxyFile), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errs := sluice(t, "config", "from-kube-proxy", theirs, "--interface", "eth0", "--interface", "eth1",
		"--cpus", "4")
	if code != exitOK {
		t.Fatalf("exit code %d: %s", code, errs)
	}
	golden(t, "from-kube-proxy.table", errs)
	if err := os.WriteFile(ours, []byte(out), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := sluice(t, "config", "check", ours); code != exitOK {
		t.Errorf("check: exit code %d: %s", code, errs)
	}
	c, err := config.Load(ours)
	if err != nil {
		t.Fatal(err)
	}
	if c.Proxy.Scheduler != "lc" || len(c.Interfaces) != 2 || c.Flows.IPv4 != 4096 {
		t.Errorf("scheduler %s, %d interfaces, %d flows; want lc, 2, 4 x 1024", c.Proxy.Scheduler, len(c.Interfaces),
			c.Flows.IPv4)
	}

	code, out, errs = sluice(t, "config", "from-kube-proxy", theirs, "-o", "json")
	var parsed struct {
		Fields        []map[string]any `json:"fields"`
		Configuration string           `json:"configuration"`
	}
	if err := json.Unmarshal([]byte(out), &parsed); err != nil || code != exitOK || errs != "" {
		t.Fatalf("exit code %d, %v: %s", code, err, errs)
	}
	if len(parsed.Fields) != 5 || !strings.Contains(parsed.Configuration, "scheduler: lc") {
		t.Errorf("-o json: %d fields, want 5, and the configuration: %s", len(parsed.Fields), parsed.Configuration)
	}
}

// What cannot be taken over makes no output that looks like a configuration.
func TestFromKubeProxyRefuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kube-proxy.yaml")
	if err := os.WriteFile(file, []byte(kubeProxyFile+"modee: x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	refuses(t, "from-kube-proxy", []refusal{
		{"an unknown field", []string{file}, exitFailure, file + ":10: modee: is not a field"},
		{"no file", []string{file + "x"}, exitFailure, "no such file"},
		{"no argument", nil, exitUsage, "takes one argument, not 0"},
		{"no CPUs", []string{file, "--cpus", "0"}, exitUsage, "--cpus is 0"},
	})
}

// refusal is a call of a command that fails.
type refusal struct {
	name string
	args []string
	code int
	want string // in what it says
}

// refuses checks that a command of `sluice config` fails as it should, and prints nothing.
func refuses(t *testing.T, command string, list []refusal) {
	for _, r := range list {
		t.Run(r.name, func(t *testing.T) {
			code, out, errs := sluice(t, append([]string{"config", command}, r.args...)...)
			if code != r.code || out != "" || !strings.Contains(errs, r.want) {
				t.Errorf("exit code %d, output %q, %s; want %d, none, %s", code, out, errs, r.code, r.want)
			}
		})
	}
}
