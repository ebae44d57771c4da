package cli

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sluice.dev/sluice/announce/view"
	"sluice.dev/sluice/config"
	"sluice.dev/sluice/gateway/doctor"
	"sluice.dev/sluice/gateway/nodetunnel"
	"sluice.dev/sluice/gateway/simulate"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/serve/status/statustest"
)

// TestListsAreNeverNull: every command that prints JSON prints [] or {} where it has nothing to
// list. It walks the tree of commands, and fails for one that it has no arguments for.
func TestListsAreNeverNull(t *testing.T) {
	file := filepath.Join(t.TempDir(), "gateway.yaml")
	const text = "apiVersion: sluice.dev/v1alpha1\nkind: GatewayConfiguration\ninterfaces: [{name: eth0}]\n"
	proxy := filepath.Join(t.TempDir(), "proxy.yaml")
	const proxyText = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
	pool := filepath.Join(t.TempDir(), "pool.yaml")
	const poolText = "apiVersion: metallb.io/v1beta1\nkind: L2Advertisement\nmetadata: {name: lan}\n"
	for path, text := range map[string]string{file: text, proxy: proxyText, pool: poolText} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	flowLog := t.TempDir()
	if err := os.WriteFile(filepath.Join(flowLog, "flows-1.jsonl"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	args := map[string][]string{
		"services": {}, "backends": {}, "flows": {"--protocol", "icmp"}, "flows delete": {"--all"},
		"stats": {}, "status": {}, "announce": {"--announcer", announcer(t)},
		"explain": {"--from", "198.51.100.7", "--to", "192.0.2.10:80"},
		"drain":   {"10.1.0.11:8080"}, "undrain": {"10.1.0.11:8080"},
		"deny": {"192.0.2.7", "--for", "1h"}, "deny list": {}, "drops": {}, "events": {},
		"deny remove": {"198.51.100.7"},
		"cleanup":     {}, "version": {}, "doctor": {"--config", file},
		"node apply": {"--vni", "7", "--gateway", "10.0.1.2"}, "node check": {"--vni", "7"}, "node remove": {},
		"config check": {file}, "config defaults": {}, "config from-kube-proxy": {proxy},
		"config from-metallb": {pool},
		"who":                 {"10.0.0.1:1", "--files", flowLog},
		"simulate":            {"--capture", today(t), "--manifests", simulated + "/old"},
	}
	printNothing := []string{"run", "probe", "capture", "support", "top", "ui", "help", "completion", "node run",
		"exit-codes"}
	var commands []string
	s := &session{app: &App{Out: &bytes.Buffer{}, Err: &bytes.Buffer{}}}
	for _, c := range s.root().Commands() {
		commands = append(commands, c.Name())
		for _, sub := range c.Commands() {
			commands = append(commands, c.Name()+" "+sub.Name())
		}
	}
	null := regexp.MustCompile(`(?m)^.*\bnull\b.*$`)
	for _, name := range commands {
		if slices.Contains(printNothing, name) || name == "config" || name == "node" || name == "config schema" {
			continue // config schema prints types, of which null is one
		}
		own, known := args[name]
		if !known {
			t.Errorf("no arguments for the command %q", name)
			continue
		}
		g := statustest.New()
		if !slices.Contains([]string{"explain", "drain", "undrain"}, name) { // which need a backend
			g.ServiceList, g.BackendList, g.EventList = nil, nil, nil
		}
		g.StatusView, g.StatsView = status.StatusView{PID: os.Getpid()}, status.StatsView{}
		var out, errs bytes.Buffer
		app := App{Out: &out, Err: &errs, Explain: explainOffline, Simulate: simulate.Run,
			StartError: func(*config.Configuration) error { return nil },
			Run:        func(context.Context, string, bool) error { return nil },
			Cleanup:    func(*config.Configuration) ([]string, error) { return nil, nil },
			Node: NodeCommands{Apply: func(*nodetunnel.Config) ([]string, error) { return nil, nil },
				Check:  func(context.Context, *nodetunnel.Config) []doctor.Finding { return []doctor.Finding{} },
				Remove: func() ([]string, error) { return nil, nil }}}
		asJSON := []string{"-o", "json"}
		if name != "cleanup" { // which asks nobody
			asJSON = append(asJSON, "--socket", daemon(t, g))
		}
		app.Main(t.Context(), slices.Concat(strings.Fields(name), own, asJSON))
		if out.Len() == 0 {
			t.Errorf("%s prints nothing: %s", name, errs.String())
		}
		if lines := null.FindAllString(out.String(), -1); len(lines) > 0 {
			t.Errorf("%s: %q", name, lines)
		}
	}
}

// announcer answers as one that has nothing to announce, and returns its socket.
func announcer(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a")
	l, err := view.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	empty := &view.View{Peers: []view.Peer{}, VIPs: []view.VIP{}, Problems: []view.Problem{}}
	go func() {
		defer close(done)
		view.Serve(ctx, l, func() *view.View { return empty }, slog.New(slog.DiscardHandler))
	}()
	t.Cleanup(func() { cancel(); <-done })
	return path
}
