package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/cluster"
	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/machine"
	"sluice.dev/sluice/test/bed/topo"
)

// system is what stands between clients and backends.
type system interface {
	// sync returns once everything written to the API server before is in force.
	sync(ctx context.Context) error
	// configure adds options to the configuration, in place of the options that it added before;
	// false if the system has no such thing.
	configure(ctx context.Context, options string) (bool, error)
	// dropped is how many packets were dropped for a reason of package stats.
	dropped(ctx context.Context, reason string) (uint64, error)
	log() string
	stop() error
}

// manifests is what Sluice is deployed by.
const manifests = "../../deploy/manifests/sluice.yaml"

// rights is what Sluice may do in the cluster: the rules of its ClusterRole.
func rights() ([]rbacv1.PolicyRule, error) {
	text, err := os.ReadFile(manifests)
	if err != nil {
		return nil, fmt.Errorf("the rights of Sluice: %w", err)
	}
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		var role rbacv1.ClusterRole
		if strings.Contains(document, "\nkind: ClusterRole\n") {
			err := yaml.UnmarshalStrict([]byte(document), &role)
			return role.Rules, err
		}
	}
	return nil, fmt.Errorf("%s has no ClusterRole", manifests)
}

// sluice is the daemon.
type sluice struct {
	c      *cluster.Cluster
	gate   *launch.Gateway
	synced int32
}

// applyTimeout bounds every wait for Sluice.
var applyTimeout = machine.Slower(30 * time.Second)

func startSluice(ctx context.Context, c *cluster.Cluster, w *world, binary string) (*sluice, error) {
	rules, err := rights()
	if err != nil {
		return nil, err
	}
	user, err := c.ServiceAccount(ctx, "sluice-system", "sluice", rules...)
	if err != nil {
		return nil, err
	}
	url, err := c.Expose(w.Gateway)
	if err != nil {
		return nil, err
	}
	kubeconfig, err := c.Kubeconfig(user, url)
	if err != nil {
		return nil, err
	}
	s := &sluice{c: c}
	s.gate, err = launch.New(launch.Config{
		Sluice: binary, Host: w.Gateway, NodeName: gatewayNode, Env: []string{"SLUICE_VALIDATE=1"},
		Options: fmt.Sprintf("kubernetes: {enabled: true, kubeconfig: %s}\n%s", kubeconfig, sluiceOptions("")),
	})
	if err != nil {
		return nil, err
	}
	if err := s.gate.Start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("%w\n%s", err, s.gate.Log()), s.gate.Close())
	}
	return s, nil
}

// sluiceOptions is Sluice's configuration with more fields of proxy, or other fields:
// lines that begin with "proxy." are of proxy.
func sluiceOptions(more string) string {
	proxy := []string{fmt.Sprintf("clusterCIDRs: [%s, %q]", clusterCIDR4, clusterCIDR6)}
	if strings.Contains(more, "clusterCIDRs") {
		proxy = nil
	}
	var rest []string
	for line := range strings.Lines(more) {
		if field, ok := strings.CutPrefix(strings.TrimSpace(line), "proxy."); ok {
			proxy = append(proxy, field)
		} else {
			rest = append(rest, line)
		}
	}
	nodes := fmt.Sprintf("nodeAddresses: [%s, %q]\n", nodePorts4, nodePorts6)
	if strings.Contains(more, "nodeAddresses") {
		nodes = ""
	}
	return nodes + "proxy: {" + strings.Join(proxy, ", ") + "}\n" +
		fmt.Sprintf("flows: {ipv4: 65536, ipv6: 65536, timeouts: {udpReplied: %s}}\n", udpTimeout()) +
		"tuning: {icmpRate: 200000}\n" + strings.Join(rest, "\n")
}

const markerNamespace, markerName = "conformance-marker", "marker"

// sync writes a marker, a Service and its slice whose port is another one each time,
// and waits for it. Watches deliver the objects of a kind in the order they were
// written, so all others have arrived by then, too.
func (s *sluice) sync(ctx context.Context) error {
	s.synced++
	marker := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: markerNamespace, Name: markerName},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: fmt.Sprintf("p%d", s.synced),
			Port: s.synced}}},
	}
	// Reached by something that no configuration turns off.
	marker.Spec.Type = corev1.ServiceTypeLoadBalancer
	marker.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "198.18.255.1"}}
	slice := cluster.NewSlice(marker, "x", corev1.IPv4Protocol, cluster.NewEndpoint("", backendAddress("b0", false)))
	if err := s.c.Put(ctx, marker, slice); err != nil {
		return err
	}
	err := topo.Until(ctx, applyTimeout, 20*time.Millisecond, func(ctx context.Context) error {
		all, err := s.gate.Client.Services(ctx)
		if err != nil {
			return err
		}
		for i := range all {
			if v := &all[i]; v.Namespace == markerNamespace && int32(v.Port) == s.synced && v.Usable == 1 {
				return nil
			}
		}
		return errors.New("the marker is not served yet")
	})
	if err != nil {
		return fmt.Errorf("sluice: %w\n%s", err, s.gate.Log())
	}
	_, err = s.gate.Applied(ctx)
	return err
}

// configure replaces the configuration file and waits until the daemon has taken it.
func (s *sluice) configure(ctx context.Context, options string) (bool, error) {
	before, err := s.gate.Client.Status(ctx, false)
	if err != nil {
		return false, err
	}
	text := strings.Replace(s.gate.Configuration(), sluiceOptions(""), sluiceOptions(options), 1)
	if err := s.gate.WriteConfiguration(text); err != nil {
		return false, err
	}
	err = topo.Until(ctx, applyTimeout, 20*time.Millisecond, func(ctx context.Context) error {
		now, err := s.gate.Client.Status(ctx, false)
		if err != nil {
			return err
		}
		return configured(&before, &now)
	})
	if err != nil {
		return false, fmt.Errorf("sluice: configuration %q: %w\n%s", options, err, s.gate.Log())
	}
	return true, s.sync(ctx)
}

func (s *sluice) dropped(ctx context.Context, reason string) (n uint64, err error) {
	v, err := s.gate.Client.Stats(ctx)
	for i := range v.Workers {
		n += v.Workers[i].Drops[reason]
	}
	return n, err
}

func (s *sluice) log() string { return s.gate.Log() }

// stop ends the daemon, after which the laws must hold and nothing may be left.
func (s *sluice) stop() error {
	_, errLaws := s.gate.Laws(context.Background())
	err := errors.Join(errLaws, s.gate.Stop())
	left, errLeft := s.gate.Leftovers()
	if len(left) > 0 {
		errLeft = fmt.Errorf("sluice left %v", left)
	}
	return errors.Join(err, errLeft, s.gate.Close())
}

// configured reports whether a configuration that was written has been taken over.
func configured(before, now *status.StatusView) error {
	switch c := &now.Config; {
	case c.Error != "":
		return fmt.Errorf("refused: %s", c.Error)
	case len(c.NeedRestart) > 0:
		return fmt.Errorf("needs a restart: %v", c.NeedRestart)
	case !c.LoadedAt.After(before.Config.LoadedAt):
		return errors.New("not read yet")
	}
	return nil
}

// kubeProxy is kube-proxy.
type kubeProxy struct{ *cluster.Proxy }

func startKubeProxy(ctx context.Context, c *cluster.Cluster, w *world, mode string) (*kubeProxy, error) {
	options := fmt.Sprintf("clusterCIDR: %q\ndetectLocalMode: ClusterCIDR\nnodePortAddresses: [%q, %q]\n",
		clusterCIDR4+","+clusterCIDR6, nodePorts4, nodePorts6)
	config := cluster.ProxyConfig{Host: w.Gateway, Node: gatewayNode, Mode: mode, Options: options}
	if mode == ipvs {
		tools, err := cluster.FetchProxyTools(ctx, os.Stderr)
		if err != nil {
			return nil, err
		}
		config.Options, config.Runtime = options+ipvsOptions(), tools
	}
	p, err := c.KubeProxy(ctx, config)
	if err != nil {
		return nil, err
	}
	return &kubeProxy{p}, nil
}

func (k *kubeProxy) sync(ctx context.Context) error                  { return k.Settle(ctx) }
func (k *kubeProxy) configure(context.Context, string) (bool, error) { return false, nil }
func (k *kubeProxy) dropped(context.Context, string) (uint64, error) {
	return 0, errors.New("kube-proxy does not count drops by reason")
}
func (k *kubeProxy) log() string { return k.Log() }
func (k *kubeProxy) stop() error { return k.Stop() }
