package connections

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sluice.dev/sluice/bench/stateful"
	"sluice.dev/sluice/test/bed/cluster"
	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/topo"
)

const (
	sluice  = "sluice"
	direct  = "direct"
	nodeOf  = "gateway-" // and the mode
	spaceOf = "connections"
)

// mode reports whether a system is a mode of kube-proxy.
func mode(system string) bool { return system != sluice && system != direct }

// lab is one system's network.
type lab struct {
	system string
	net    *topo.Net
	lab    stateful.Lab
	gate   *launch.Gateway
	proxy  *cluster.Proxy
}

// build makes the network, without a system. In all of them the gateway knows where clients and
// servers are.
func build(system string, p *stateful.Profile) (l *lab, err error) {
	l = &lab{system: system}
	if l.net, err = topo.New(topo.Config{Direct: true, Queues: 1}); err != nil {
		return nil, err
	}
	client, server, gateway := l.net.Clients[0], l.net.Backends[0], l.net.Gateway
	l.lab.Client = stateful.Port{Interface: "eth0", Namespace: client}
	if system == direct {
		l.lab.Server = stateful.Port{Interface: gateway.Interfaces[0].Name, Namespace: gateway}
		l.lab.Targets = p.Servers
		return l, nil
	}
	l.lab.Server = stateful.Port{Interface: "eth0", Namespace: server}
	l.lab.ClientGateway, l.lab.ServerGateway = gateway.Interfaces[0].Addr4.Addr(), gateway.Interfaces[1].Addr4.Addr()
	l.lab.Targets = stateful.Pool{First: p.VIP, Last: p.VIP}
	err = errors.Join(gateway.Route(p.Clients.Prefix(), client.Addr4()), gateway.Route(p.Servers.Prefix(),
		server.Addr4()))
	if err != nil {
		return nil, errors.Join(err, l.net.Close())
	}
	return l, nil
}

// prepare starts the system.
func (l *lab) prepare(ctx context.Context, c *Config, k *cluster.Cluster) (err error) {
	switch {
	case l.system == direct:
		return nil
	case l.system == sluice:
		return l.prepareSluice(ctx, c)
	}
	gateway := l.net.Gateway
	if err := gateway.Forward(true); err != nil {
		return err
	}
	node := cluster.NewNode(nodeOf+l.system, "", gateway.Addr4())
	if err := k.Put(ctx, node); err != nil {
		return err
	}
	l.proxy, err = k.KubeProxy(ctx, cluster.ProxyConfig{Host: gateway, Node: nodeOf + l.system, Mode: l.system,
		Timeout: 5 * time.Minute})
	return err
}

func (l *lab) prepareSluice(ctx context.Context, c *Config) (err error) {
	if l.gate, err = launch.New(launch.Config{Sluice: c.Sluice, Host: l.net.Gateway, Options: c.Options}); err != nil {
		return err
	}
	p, err := profile()
	if err != nil {
		return err
	}
	for i := range c.Services {
		s := launch.Service{Name: fmt.Sprintf("service-%d", i), Port: port(p), VIPs: []string{vip(p, i).String()}}
		for n := range p.Servers.Len() {
			s.Endpoints = append(s.Endpoints, launch.Endpoint{Addr: p.Servers.At(n), Port: port(p)})
		}
		if err := l.gate.Apply(s); err != nil {
			return err
		}
	}
	if err := l.gate.Start(ctx); err != nil {
		return fmt.Errorf("%w\n%s", err, l.gate.Log())
	}
	return nil
}

func port(p *stateful.Profile) int32 { return int32(p.Templates[0].Port) }

// vip is the address of a Service; that of the first is what clients connect to.
func vip(p *stateful.Profile, i int) netip.Addr {
	b := p.VIP.As4()
	n := int(b[2])<<8 + int(b[3]) + i
	b[2], b[3] = byte(n>>8), byte(n)
	return netip.AddrFrom4(b)
}

// control starts a control plane that has the Services.
func (c *Config) control(ctx context.Context, p *stateful.Profile) (*cluster.Cluster, error) {
	k, err := cluster.Start(ctx, cluster.Config{})
	if err != nil {
		return nil, err
	}
	var endpoints []discoveryv1.Endpoint
	for n := range p.Servers.Len() {
		endpoints = append(endpoints, cluster.NewEndpoint("", p.Servers.At(n)))
	}
	var list []cluster.Object
	for i := range c.Services {
		s := cluster.NewService(spaceOf, fmt.Sprintf("service-%d", i), []corev1.ServicePort{
			{Name: "http", Port: port(p), Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(port(p))},
		}, vip(p, i))
		list = append(list, s, cluster.NewSlice(s, "pods", corev1.IPv4Protocol, endpoints...))
	}
	if err := k.Put(ctx, list...); err != nil {
		return nil, errors.Join(err, k.Close())
	}
	return k, nil
}

// play opens connections at a rate.
func (l *lab) play(ctx context.Context, p *stateful.Profile, rate int, length time.Duration) (*stateful.Result, error) {
	at := *p
	at.CPS, at.Duration = float64(rate), length
	if err := at.Validate(); err != nil {
		return nil, err
	}
	r, err := stateful.Play(ctx, &l.lab, &at, io.Discard)
	if err == nil {
		err = r.Broken()
	}
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, l.log())
	}
	return r, err
}

func (l *lab) log() string {
	switch {
	case l.gate != nil:
		return l.gate.Log()
	case l.proxy != nil:
		return l.proxy.Log()
	}
	return ""
}

func (l *lab) close() error {
	var errs []error
	if l.proxy != nil {
		errs = append(errs, l.proxy.Stop())
	}
	if l.gate != nil {
		errs = append(errs, l.gate.Stop(), l.gate.Close())
	}
	return errors.Join(append(errs, l.net.Close())...)
}
