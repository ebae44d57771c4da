package stateful

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sluice.dev/sluice/test/bed/cluster"
	"sluice.dev/sluice/test/bed/topo"
)

// control starts a control plane that has the Services that Sluice has by files: one for each
// template and, of other addresses, as many as c wants in all.
func (c *RunConfig) control(ctx context.Context, p *Profile) (*cluster.Cluster, error) {
	if p.Clients.Is6() {
		return nil, errors.New("kube-proxy is measured over IPv4 only")
	}
	k, err := cluster.Start(ctx, cluster.Config{})
	if err != nil {
		return nil, err
	}
	var endpoints []discoveryv1.Endpoint
	for n := range p.Servers.Len() {
		endpoints = append(endpoints, cluster.NewEndpoint("", p.Servers.At(n)))
	}
	var list []cluster.Object
	for i := range max(c.Services, len(p.Templates)) {
		t, name, address := &p.Templates[0], fmt.Sprintf("other-%d", i), vip(p, i)
		if i < len(p.Templates) {
			t, name, address = &p.Templates[i], p.Templates[i].Name, p.VIP
		}
		port := corev1.ServicePort{Name: "p", Port: int32(t.Port), TargetPort: intstr.FromInt32(int32(t.Port)),
			Protocol: corev1.Protocol(strings.ToUpper(t.Protocol.String()))}
		s := cluster.NewService("stateful", name, []corev1.ServicePort{port}, address)
		list = append(list, s, cluster.NewSlice(s, "pods", corev1.IPv4Protocol, endpoints...))
	}
	if err := k.Put(ctx, list...); err != nil {
		return nil, errors.Join(err, k.Close())
	}
	return k, nil
}

// proxyOn starts kube-proxy on a gateway.
func proxyOn(ctx context.Context, k *cluster.Cluster, gateway *topo.Host, mode string) (*cluster.Proxy, error) {
	node := "gateway-" + mode
	if err := k.Put(ctx, cluster.NewNode(node, "", gateway.Addr4())); err != nil {
		return nil, err
	}
	return k.KubeProxy(ctx, cluster.ProxyConfig{Host: gateway, Node: node, Mode: mode, Timeout: 5 * time.Minute})
}
