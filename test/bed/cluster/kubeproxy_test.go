//go:build root

package cluster

import (
	"context"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sluice.dev/sluice/test/bed/machine"
	"sluice.dev/sluice/test/bed/observer"
	"sluice.dev/sluice/test/bed/topo"
)

const (
	vip4, vip6 = "203.0.113.10", "2001:db8:f::10"
	webPort    = 80
)

// TestKubeProxy has kube-proxy forward real connections to a load balancer's address,
// by two slices, one of which comes later.
func TestKubeProxy(t *testing.T) {
	for _, mode := range [...]struct {
		name    string
		ruleset []string
	}{
		{"nftables", []string{"nft", "list", "map", "ip", "kube-proxy", "service-ips"}},
		{"iptables", []string{"iptables-save", "-t", "nat"}},
		{"ipvs", []string{"ipset", "list", "KUBE-LOAD-BALANCER"}},
	} {
		t.Run(mode.name, func(t *testing.T) {
			if mode.name == "ipvs" && Enabled() {
				machine.Need(t, machine.IPVS, machine.IPSet)
				kubeProxyForwards(t, mode.name, mode.ruleset, fetchTools(t))
				return
			}
			if _, err := exec.LookPath(mode.ruleset[0]); err != nil && Enabled() {
				t.Skipf("%v: install the package %s", err, packageOf(mode.ruleset[0]))
			}
			kubeProxyForwards(t, mode.name, mode.ruleset, nil)
		})
	}
}

func fetchTools(t *testing.T) *Runtime {
	t.Helper()
	tools, err := FetchProxyTools(testContext(t), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	return tools
}

func kubeProxyForwards(t *testing.T, mode string, ruleset []string, tools *Runtime) {
	n := newNet(t, topo.Config{Backends: 2})
	c, ctx := startCluster(t, Config{}), testContext(t)
	web := webService()
	web.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyRequireDualStack)
	web.Spec.Ports[0].TargetPort.IntVal = 8080
	web.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: vip4}, {IP: vip6}}
	node := NewNode("gateway", "", n.Gateway.Addr4(), n.Gateway.Addr6())
	// Each address is in two slices: one endpoint before kube-proxy starts, one after.
	var early, late []Object
	for i, b := range n.Backends {
		if _, err := b.Serve(8080); err != nil {
			t.Fatal(err)
		}
		four := NewSlice(web, "four-"+b.Name, corev1.IPv4Protocol, NewEndpoint("n1", b.Addr4()))
		six := NewSlice(web, "six-"+b.Name, corev1.IPv6Protocol, NewEndpoint("n1", b.Addr6()))
		if i == 0 {
			early = append(early, four, six)
		} else {
			late = append(late, four, six)
		}
	}
	if err := c.Put(ctx, append(early, web, node)...); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	p, err := c.KubeProxy(ctx, ProxyConfig{Host: n.Gateway, Node: "gateway", Mode: mode, Runtime: tools})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Errorf("stop kube-proxy: %v", err)
		}
	})
	t.Logf("kube-proxy synced after %.2f s", time.Since(begin).Seconds())
	if rules := onHost(ctx, t, n.Gateway, tools, ruleset); !strings.Contains(rules, vip4) {
		t.Errorf("no %s in\n%s", vip4, rules)
	}
	if got := answering(ctx, t, n, vip4); !slices.Equal(got, []string{"backend0"}) {
		t.Errorf("%s is answered by %v", vip4, got)
	}
	// The first change is programmed at once and holds back the second for a second
	// (minSyncPeriod): without Settle, the answers below would be of the first.
	for _, ready := range [...]bool{false, true} {
		for _, o := range late {
			o.(*discoveryv1.EndpointSlice).Endpoints[0].Conditions.Ready = &ready
		}
		if err := c.Put(ctx, late...); err != nil {
			t.Fatal(err)
		}
	}
	begin = time.Now()
	if err := p.Settle(ctx); err != nil {
		t.Fatal(err)
	}
	t.Logf("settled after %.2f s", time.Since(begin).Seconds())
	for _, vip := range [...]string{vip4, vip6} {
		if got := answering(ctx, t, n, vip); !slices.Equal(got, []string{"backend0", "backend1"}) {
			t.Errorf("%s is answered by %v", vip, got)
		}
	}
	endProxy(ctx, t, p, ruleset)
}

// endProxy reads the processor time, stops kube-proxy, sees its rules stay, and go.
func endProxy(ctx context.Context, t *testing.T, p *Proxy, ruleset []string) {
	t.Helper()
	gateway, tools := p.config.Host, p.config.Runtime
	used, err := observer.ProcessUsage(p.PID())
	if err != nil || used.Own == 0 || used.Children == 0 {
		t.Errorf("processor time %+v: %v", used, err)
	}
	t.Logf("processor time: kube-proxy %s, its tools %s", used.Own, used.Children)
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	if rules := onHost(ctx, t, gateway, tools, ruleset); !strings.Contains(rules, vip4) {
		t.Error("the rules went with kube-proxy")
	}
	if err := p.Cleanup(ctx); err != nil {
		t.Fatal(err)
	}
	var rules []byte
	err = gateway.Run(func() error {
		rules, _ = command(ctx, tools, ruleset).CombinedOutput() // there may be no such table
		return nil
	})
	if err != nil || strings.Contains(string(rules), vip4) {
		t.Errorf("after the cleanup: %v\n%s", err, rules)
	}
}

// command is one of the system's programs, or of a runtime that has it.
func command(ctx context.Context, tools *Runtime, args []string) *exec.Cmd {
	if tools == nil || !tools.has(args[0]) {
		return exec.CommandContext(ctx, args[0], args[1:]...)
	}
	c := exec.CommandContext(ctx, filepath.Join(tools.Dir, "usr/sbin", args[0]), args[1:]...)
	c.Env = append(os.Environ(), tools.Env()...)
	return c
}

// onHost runs a command in a host's namespace.
func onHost(ctx context.Context, t *testing.T, h *topo.Host, tools *Runtime, args []string) string {
	t.Helper()
	var out []byte
	err := h.Run(func() (err error) {
		out, err = command(ctx, tools, args).CombinedOutput()
		return err
	})
	if err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out)
	}
	return string(out)
}

// answering is who answers at a VIP, asked often enough to meet everybody: of two
// backends chosen at random, one is missed in one of 2^63 runs.
func answering(ctx context.Context, t *testing.T, n *topo.Net, vip string) []string {
	t.Helper()
	r, err := n.Clients[0].HTTP(ctx, topo.HTTPLoad{
		Targets: []netip.AddrPort{netip.AddrPortFrom(netip.MustParseAddr(vip), webPort)}, Requests: 64,
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Errors) != 0 {
		t.Errorf("%s: %v", vip, r.Errors)
	}
	var by []string
	for name := range r.Shares {
		by = append(by, name)
	}
	slices.Sort(by)
	return by
}

// TestMissingNode: without its Node kube-proxy would wait for ever.
func TestMissingNode(t *testing.T) {
	n := newNet(t, topo.Config{OneArmed: true})
	c, ctx := startCluster(t, Config{}), testContext(t)
	_, err := c.KubeProxy(ctx, ProxyConfig{Host: n.Gateway, Node: "nobody"})
	if err == nil || !strings.Contains(err.Error(), "its Node, which must be written first") {
		t.Errorf("kube-proxy without a Node: %v", err)
	}
}
