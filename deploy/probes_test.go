//go:build root

package deploy

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/test/bed/topo"
)

// sluice runs a command on the daemon's node, as the kubelet does for probes.
func (c *confined) sluice(ctx context.Context, daemon string, args ...string) (says string, ok bool) {
	out, err := exec.CommandContext(ctx, daemon, append([]string{"--socket", c.gate.Socket()},
		args...)...).CombinedOutput()
	return string(out), err == nil
}

// If other processes occupy the metrics and health ports, the pod is still ready and alive.
func TestProbesNeedNoPort(t *testing.T) {
	o := readManifests(t)
	daemon := buildDaemon(t)
	c := newConfined(t, daemon, capabilities(t, &o))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, port := range []string{":9470", ":10256"} {
		err := c.net.Gateway.Run(func() error {
			l, err := net.Listen("tcp", port)
			if err == nil {
				t.Cleanup(func() { l.Close() })
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	c.web(t)
	if err := c.gate.Start(ctx); err != nil {
		t.Fatalf("%v\n%s", err, c.gate.Log())
	}
	for _, what := range []string{"live", "ready"} {
		if says, ok := c.sluice(ctx, daemon, "probe", what); !ok {
			t.Errorf("not %s: %s", what, says)
		}
	}
	status, _ := c.sluice(ctx, daemon, "status")
	for _, condition := range []string{"metrics-listener", "health-listener"} {
		if _, after, found := strings.Cut(status, condition); !found ||
			!strings.Contains(strings.SplitN(after, "\n", 2)[0], "address already in use") {
			t.Errorf("status does not say why there is no %s:\n%s", condition, status)
		}
	}
}

// A daemon that waits for its API server is alive, but not ready.
func TestProbesWhileTheAPIServerIsAway(t *testing.T) {
	o := readManifests(t)
	daemon := buildDaemon(t)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte(nobody), 0o600); err != nil {
		t.Fatal(err)
	}
	c := newConfinedWith(t, daemon, capabilities(t, &o), func(*topo.Net) string {
		return "kubernetes: {enabled: true, kubeconfig: " + kubeconfig + "}\n"
	})
	if err := c.gate.Launch(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for {
		says, ok := c.sluice(ctx, daemon, "probe", "live")
		if ok {
			break
		}
		if ctx.Err() != nil || !c.gate.Running() {
			t.Fatalf("not alive: %s\n%s", says, c.gate.Log())
		}
	}
	if says, ok := c.sluice(ctx, daemon, "probe", "ready"); ok || !strings.Contains(says, "not ready") {
		t.Errorf("ready %t: %s", ok, says)
	}
}

// nobody is a kubeconfig whose address has no API server.
const nobody = `{apiVersion: v1, kind: Config, current-context: c, clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}],
contexts: [{name: c, context: {cluster: c, user: c}}], users: [{name: c, user: {}}]}`
