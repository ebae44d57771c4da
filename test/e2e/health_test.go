//go:build root

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/topo"
)

const healthPort = 32100

// TestHealthCheckNodePort: what is sent to a Service's health check node port goes past
// the workers to the daemon's own listener, from outside and in both families.
func TestHealthCheckNodePort(t *testing.T) {
	t.Parallel()
	l := newLab(t, labConfig{Config: topo.Config{Queues: 2}})
	pods := launch.Service{Name: "pods", Port: 81, NodePort: 30081, VIPs: []string{keepVIP4, keepVIP6}, Local: true,
		HealthCheck: healthPort}
	pods.Endpoints = append(l.serveLocally(), endpoints(l.Backends...)...)
	l.apply(pods)
	l.applied()
	gateways := []netip.Addr{l.Gateway.Addr4(), l.Gateway.Addr6()}
	const body = "{\n\t\"service\": {\n\t\t\"namespace\": \"default\",\n\t\t\"name\": " +
		"\"pods\"\n\t},\n\t\"localEndpoints\": %d,\n\t\"serviceProxyHealthy\": true\n}"
	for _, a := range gateways {
		l.awaitHealth(netip.AddrPortFrom(a, healthPort), "/", 200, fmt.Sprintf(body, 1))
		l.awaitHealth(netip.AddrPortFrom(a, 10256), "/healthz", 200, `"healthy":true`)
		l.awaitHealth(netip.AddrPortFrom(a, 10256), "/livez", 200, `"status":{"IPv4":{`)
	}

	pods.Endpoints = endpoints(l.Backends...)
	l.apply(pods)
	for _, a := range gateways {
		l.awaitHealth(netip.AddrPortFrom(a, healthPort), "/", 503, fmt.Sprintf(body, 0))
	}

	pods.Local = false // and so the port is not the Service's any more
	l.apply(pods)
	l.within("the port to close", func() bool {
		_, _, err := l.health(netip.AddrPortFrom(gateways[0], healthPort), "/")
		return err != nil
	})
	l.wantHealthOfManifestNode() // in the same network
}

// TestHealthCheckNodePortTaken: a port of somebody else's is a problem of the Service
// that an operator sees, traffic is forwarded, and the port is used once it is free.
func TestHealthCheckNodePortTaken(t *testing.T) {
	t.Parallel()
	l := newLab(t, labConfig{Config: topo.Config{Queues: 2}})
	other, err := l.Gateway.Listen("tcp4", fmt.Sprintf("0.0.0.0:%d", healthPort))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	l.apply(launch.Service{Name: "pods", Port: 81, VIPs: []string{keepVIP4}, Local: true, HealthCheck: healthPort,
		Endpoints: l.serveLocally()})
	problem := func() bool {
		st, err := l.gate.Client.Status(l.ctx, false)
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(st.Problems, func(p status.ProblemView) bool {
			return p.Warning && strings.Contains(p.Object, "default/pods") &&
				strings.Contains(p.Message, `node gateway failed to start healthcheck "default/pods" on port 32100`)
		})
	}
	l.within("the problem to be shown", problem)
	l.wantServed("while the port is taken")
	other.Close()
	l.awaitHealth(netip.AddrPortFrom(l.Gateway.Addr4(), healthPort), "/", 200, `"localEndpoints": 1`)
	l.within("the problem to go", func() bool { return !problem() })
}

// TestHealthWhileDraining: load balancers hear of the end before it comes.
func TestHealthWhileDraining(t *testing.T) {
	t.Parallel()
	l := newLab(t, labConfig{Config: topo.Config{Queues: 2}, options: "drain: {timeout: 30s}\n"})
	at10256 := netip.AddrPortFrom(l.Gateway.Addr4(), 10256)
	l.awaitHealth(at10256, "/healthz", 200, `"healthy":true`)
	open, err := l.Clients[0].Dial(l.ctx, "tcp", at(vip4, webPort).String()) // the daemon waits for it
	if err != nil {
		t.Fatal(err)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- l.gate.Stop() }()
	l.awaitHealth(at10256, "/healthz", 503, `"healthy":false,`)
	l.awaitHealth(at10256, "/healthz", 503, `"dataPath":["draining"]`)
	l.awaitHealth(at10256, "/livez", 200, `"healthy":true`)
	open.Close()
	if err := <-stopped; err != nil {
		t.Errorf("%v\n%s", err, l.gate.Log())
	}
	if err := l.gate.Start(l.ctx); err != nil { // the lab asks a running daemon for its laws
		t.Fatal(err)
	}
}

// wantHealthOfManifestNode: a Node that comes from a manifest keeps load balancers away as one of
// the API server does, from its taint on and until that is gone; flows and new connections are
// served all the same.
func (l *lab) wantHealthOfManifestNode() {
	t := l.t
	t.Helper()
	at10256 := netip.AddrPortFrom(l.Gateway.Addr4(), 10256)
	l.awaitHealth(at10256, "/healthz", 200, `"nodeEligible":true`)
	const node = "apiVersion: v1\nkind: Node\nmetadata: {name: %s%s}\nspec: {taints: [%s]}\n"
	const taint = "{key: ToBeDeletedByClusterAutoscaler, effect: NoSchedule}"
	for _, c := range []struct {
		what, name, deleted, taints string
		code                        int
		body                        string
	}{
		{"another node's taint", "other", "", taint, 200, `"nodeEligible":true`},
		{"another taint", gatewayNode, "", "{key: node.kubernetes.io/not-ready, effect: NoSchedule}", 200,
			`"nodeEligible":true`},
		{"the autoscaler's taint", gatewayNode, "", taint, 503, `"nodeEligible":false,"healthy":true`},
		{"the taint is gone", gatewayNode, "", "", 200, `"nodeEligible":true`},
		{"a deletion", gatewayNode, `, deletionTimestamp: "2026-03-01T08:00:00Z"`, "", 503,
			`"nodeEligible":false,"healthy":true`},
	} {
		if err := l.gate.Write("node.yaml", fmt.Appendf(nil, node, c.name, c.deleted, c.taints)); err != nil {
			t.Fatal(err)
		}
		l.applied()
		t.Log(c.what)
		l.awaitHealth(at10256, "/healthz", c.code, c.body)
		l.awaitHealth(at10256, "/livez", 200, `"healthy":true`)
		l.wantServed(c.what)
	}
}

// health asks as a client does.
func (l *lab) health(at netip.AddrPort, path string) (code int, body string, err error) {
	return l.healthFrom(l.Clients[0], at, path)
}

func (l *lab) healthFrom(h *topo.Host, at netip.AddrPort, path string) (code int, body string, err error) {
	ctx, cancel := context.WithTimeout(l.ctx, 2*time.Second)
	defer cancel()
	return h.Get(ctx, fmt.Sprintf("http://%v%s", at, path))
}

func (l *lab) awaitHealth(at netip.AddrPort, path string, code int, body string) {
	l.t.Helper()
	l.eventually(10*time.Second, fmt.Sprintf("http://%v%s answers %d %s", at, path, code, body), func() bool {
		c, b, err := l.health(at, path)
		return err == nil && c == code && strings.Contains(b, body)
	})
}
