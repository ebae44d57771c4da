package rollout

import (
	"context"
	"fmt"
	"slices"
	"time"

	"sluice.dev/sluice/test/bed/cluster"
	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/topo"
)

// Systems are the names of the systems that can be measured.
var Systems = []string{"sluice", "nftables", "iptables"}

// firstSync is the limit from a system's start to its first sync.
const firstSync = 5 * time.Minute

// system is a forwarder on a gateway that has not forwarded before.
type system interface {
	PID() int
	Log() string
	Close() error
}

// startSystem returns after the system's first sync. It also returns a system that was started with
// an error, for its log.
func startSystem(ctx context.Context, name string, c *Config, k *cluster.Cluster, gateway *topo.Host) (system, error) {
	if name != "sluice" {
		p, err := k.KubeProxy(ctx, cluster.ProxyConfig{Host: gateway, Node: gatewayNode, Mode: name,
			Timeout: firstSync})
		if p == nil {
			return nil, err
		}
		return kubeProxy{p}, err
	}
	kubeconfig, err := k.Gateway(ctx, gateway)
	if err != nil {
		return nil, err
	}
	g, err := launch.New(launch.Config{
		Sluice: c.Sluice, Host: gateway, NodeName: gatewayNode,
		Options: fmt.Sprintf("kubernetes: {enabled: true, kubeconfig: %q}\n", kubeconfig),
	})
	if err != nil {
		return nil, err
	}
	return g, g.Start(ctx)
}

// kubeProxy is kube-proxy with its defaults, in one mode.
type kubeProxy struct{ *cluster.Proxy }

// Close leaves the rules to go with the namespace.
func (k kubeProxy) Close() error { return k.Stop() }

func checkSystems(names []string) error {
	for _, name := range names {
		if !slices.Contains(Systems, name) {
			return fmt.Errorf("system %q is not one of %v", name, Systems)
		}
	}
	return nil
}
