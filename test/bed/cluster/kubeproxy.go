package cluster

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"sigs.k8s.io/yaml"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/test/bed/topo"
)

// ProxyConfig says which kube-proxy to run where.
type ProxyConfig struct {
	Host *topo.Host
	// Node is the name of the host's Node, which must exist: kube-proxy takes its
	// addresses, zone and primary family from there.
	Node string
	// Mode is "nftables" (the default), "iptables" or "ipvs". Its tools must be installed,
	// or in Runtime; modprobe must be in PATH for ipvs.
	Mode string
	// Options is more of the KubeProxyConfiguration (kubeproxy.config.k8s.io/v1alpha1):
	// YAML, whole top-level fields, which win. metricsBindAddress must stay.
	Options string
	// Timeout of the first sync, 60 s: with thousands of Services, iptables needs more.
	Timeout time.Duration
	// Runtime has the mode's tools, for systems where they are not installed; nil for the system's
	// own.
	Runtime *Runtime
}

// Proxy is a kube-proxy that runs in a host's namespace. It belongs to one goroutine.
type Proxy struct {
	cluster *Cluster
	config  ProxyConfig
	dir     string
	process *topo.Process // nil once stopped
	settled int           // markers that were written
}

// tools are what kube-proxy runs in each mode, with all else that comes in the same
// package.
var tools = map[string][]string{
	"nftables": {"nft"},
	"iptables": {"iptables", "iptables-save", "iptables-restore", "ip6tables"},
	"ipvs":     {"ipset", "iptables", "iptables-save", "iptables-restore", "ip6tables", "modprobe"},
}

// packageOf is the package of Debian that a tool is in.
func packageOf(tool string) string {
	switch tool {
	case "nft":
		return "nftables"
	case "ipset":
		return "ipset"
	case "modprobe":
		return "kmod"
	}
	return "iptables"
}

// KubeProxy starts kube-proxy and returns once it has programmed, for both families, all Services
// that the API server had when it started.
func (c *Cluster) KubeProxy(ctx context.Context, config ProxyConfig) (*Proxy, error) {
	if config.Mode == "" {
		config.Mode = "nftables"
	}
	if config.Timeout == 0 {
		config.Timeout = startTimeout
	}
	p := &Proxy{cluster: c, config: config}
	if err := p.check(ctx); err != nil {
		return nil, fmt.Errorf("cluster: kube-proxy on %s: %w", config.Host.Name, err)
	}
	if config.Mode == "ipvs" {
		if _, err := p.writeMarker(ctx); err != nil { // the one before the first that Settle waits for
			return nil, err
		}
	}
	if err := p.start(); err != nil {
		return nil, fmt.Errorf("cluster: kube-proxy on %s: %w", config.Host.Name, err)
	}
	if err := topo.Until(ctx, config.Timeout, askEvery, p.synced); err != nil {
		err = fmt.Errorf("cluster: kube-proxy on %s has not synced: %w\n%s", config.Host.Name, err, p.Log())
		_ = p.Stop() // the error of the start matters more
		return nil, err
	}
	return p, nil
}

func (p *Proxy) check(ctx context.Context) error {
	needed, ok := tools[p.config.Mode]
	if !ok {
		return fmt.Errorf("mode %q is not one of nftables, iptables, ipvs", p.config.Mode)
	}
	for _, tool := range needed {
		if _, err := exec.LookPath(tool); err != nil && (p.config.Runtime == nil || !p.config.Runtime.has(tool)) {
			return fmt.Errorf("mode %s: %w: install the package %s", p.config.Mode, err, packageOf(tool))
		}
	}
	if _, err := p.cluster.client.CoreV1().Nodes().Get(ctx, p.config.Node, metav1.GetOptions{}); err != nil {
		return fmt.Errorf("its Node, which must be written first: %w", err)
	}
	return nil
}

func (p *Proxy) start() error {
	user, err := p.cluster.CertificateUser("system:kube-proxy") // RBAC: system:node-proxier
	if err != nil {
		return err
	}
	server, err := p.cluster.Expose(p.config.Host)
	if err != nil {
		return err
	}
	kubeconfig, err := p.cluster.Kubeconfig(user, server)
	if err != nil {
		return err
	}
	if p.dir, err = os.MkdirTemp(p.cluster.dir, "kube-proxy-"); err != nil {
		return err
	}
	text, err := p.configuration(kubeconfig)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(p.dir, "config.yaml"), text, 0o644); err != nil {
		return err
	}
	log, err := os.Create(p.logFile())
	if err != nil {
		return err
	}
	defer log.Close() // the process has its own
	var env []string
	if p.config.Runtime != nil {
		env = p.config.Runtime.Env()
	}
	p.process, err = p.config.Host.Start(topo.Command{
		Path: p.cluster.binaries.KubeProxy, Args: []string{"--config=" + filepath.Join(p.dir, "config.yaml")},
		Env: env, Stdout: log, Stderr: log,
	})
	return err
}

// configuration returns kube-proxy's configuration: its defaults, except where a namespace needs
// another value.
func (p *Proxy) configuration(kubeconfig string) ([]byte, error) {
	fields := map[string]any{
		"apiVersion":       "kubeproxy.config.k8s.io/v1alpha1",
		"kind":             "KubeProxyConfiguration",
		"mode":             p.config.Mode,
		"hostnameOverride": p.config.Node,
		"clientConnection": map[string]any{"kubeconfig": kubeconfig},
		// nf_conntrack_max can be set in the machine's first namespace only
		// (net/netfilter/nf_conntrack_standalone.c), and kube-proxy ends if it cannot.
		"conntrack": map[string]any{"maxPerCore": 0},
	}
	var more map[string]any
	if err := yaml.UnmarshalStrict([]byte(p.config.Options), &more); err != nil {
		return nil, fmt.Errorf("options: %w", err)
	}
	maps.Copy(fields, more)
	return yaml.Marshal(fields)
}

func (p *Proxy) logFile() string { return filepath.Join(p.dir, "log") }

// Log is the end of what kube-proxy logged.
func (p *Proxy) Log() string { return tail(p.logFile()) }

// Stop ends kube-proxy. The rules that it programmed stay, as on a real node.
func (p *Proxy) Stop() error {
	if p.process == nil {
		return nil
	}
	q := p.process
	p.process = nil
	return q.Stop(stopTimeout)
}

// Cleanup removes the rules of a stopped kube-proxy by `kube-proxy --cleanup`. Rules of mode ipvs
// need two runs: the first cannot delete chains to which other chains still jump.
func (p *Proxy) Cleanup(ctx context.Context) error {
	err := p.cleanup(ctx)
	if err != nil && p.config.Mode == "ipvs" {
		err = p.cleanup(ctx)
	}
	return err
}

func (p *Proxy) cleanup(ctx context.Context) error {
	var out []byte
	err := p.config.Host.Run(func() (err error) {
		cleanup := exec.CommandContext(ctx, p.cluster.binaries.KubeProxy, "--cleanup")
		if p.config.Runtime != nil {
			cleanup.Env = append(os.Environ(), p.config.Runtime.Env()...)
		}
		out, err = cleanup.CombinedOutput()
		return err
	})
	if err != nil {
		return fmt.Errorf("cluster: kube-proxy --cleanup on %s: %w\n%s", p.config.Host.Name, err, out)
	}
	return nil
}
