package tuesday

import (
	"context"
	"fmt"
	"slices"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"

	"sluice.dev/sluice/bench/cluster"
	"sluice.dev/sluice/bench/gate"
	"sluice.dev/sluice/bench/topo"
)

// Systems are what can be measured, with what they are called here.
var Systems = []string{"sluice", "nftables", "iptables"}

// system is what forwards, started on a gateway that has not forwarded yet.
type system interface {
	// start returns when the system says that it has done its first sync.
	start(context.Context) error
	pid() int
	log() string
	close() error
}

func newSystem(name string, c *Config, k *cluster.Cluster, gateway *topo.Host) (system, error) {
	switch name {
	case "sluice":
		return &sluice{config: c, cluster: k, host: gateway}, nil
	case "nftables", "iptables":
		return &kubeProxy{mode: name, cluster: k, host: gateway}, nil
	}
	return nil, fmt.Errorf("system %q is not one of %v", name, Systems)
}

func checkSystems(names []string) error {
	for _, name := range names {
		if !slices.Contains(Systems, name) {
			return fmt.Errorf("system %q is not one of %v", name, Systems)
		}
	}
	return nil
}

// firstSync bounds what a system may take from its start to its first sync.
const firstSync = 5 * time.Minute

// sluice is the daemon, with the API server as its source.
type sluice struct {
	config  *Config
	cluster *cluster.Cluster
	host    *topo.Host
	gate    *gate.Gateway
}

// rights are what the daemon needs (package control/k8s).
var rights = []rbacv1.PolicyRule{
	{APIGroups: []string{""}, Resources: []string{"services", "nodes"}, Verbs: []string{"get", "list", "watch"}},
	{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: []string{"get", "list", "watch"}},
	{APIGroups: []string{"events.k8s.io"}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}},
}

func (s *sluice) start(ctx context.Context) error {
	user, err := s.cluster.ServiceAccount(ctx, "sluice", "gateway", rights...)
	if err != nil {
		return err
	}
	url, err := s.cluster.Expose(s.host)
	if err != nil {
		return err
	}
	kubeconfig, err := s.cluster.Kubeconfig(user, url)
	if err != nil {
		return err
	}
	s.gate, err = gate.New(gate.Config{
		Sluice: s.config.Sluice, Host: s.host, NodeName: gatewayNode,
		Options: fmt.Sprintf("kubernetes: {enabled: true, kubeconfig: %q}\n", kubeconfig),
	})
	if err != nil {
		return err
	}
	return s.gate.Start(ctx)
}

func (s *sluice) pid() int {
	if s.gate == nil {
		return 0
	}
	return s.gate.PID()
}

func (s *sluice) log() string {
	if s.gate == nil {
		return ""
	}
	return s.gate.Log()
}

func (s *sluice) close() error {
	if s.gate == nil {
		return nil
	}
	return s.gate.Close()
}

// kubeProxy is kube-proxy with its defaults, in one mode.
type kubeProxy struct {
	mode    string
	cluster *cluster.Cluster
	host    *topo.Host
	proxy   *cluster.Proxy
}

func (k *kubeProxy) start(ctx context.Context) (err error) {
	k.proxy, err = k.cluster.KubeProxy(ctx, cluster.ProxyConfig{Host: k.host, Node: gatewayNode, Mode: k.mode, Timeout: firstSync})
	return err
}

func (k *kubeProxy) pid() int {
	if k.proxy == nil {
		return 0
	}
	return k.proxy.PID()
}

func (k *kubeProxy) log() string {
	if k.proxy == nil {
		return ""
	}
	return k.proxy.Log()
}

// close leaves the rules to go with the namespace.
func (k *kubeProxy) close() error {
	if k.proxy == nil {
		return nil
	}
	return k.proxy.Stop()
}
