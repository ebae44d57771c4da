package stateful

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"sync/atomic"
	"time"

	"sluice.dev/sluice/test/bed/cluster"
	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/topo"
)

// Systems under test in a lab; nftables and iptables are modes of kube-proxy.
const (
	ThroughNone   = "none"   // a veth pair
	ThroughSluice = "sluice" // a gateway between two veth pairs
)

// Systems are all of them.
var Systems = []string{ThroughNone, ThroughSluice, "nftables", "iptables"}

// built is a Lab in network namespaces of its own.
type built struct {
	Lab
	system string
	net    *topo.Net
	gate   *launch.Gateway
	proxy  *cluster.Proxy
	churn  *churn
}

// play runs the profile and adds the gateway's drops to the result.
func (b *built) play(ctx context.Context, p *Profile, progress io.Writer) (*Result, error) {
	r, err := Play(ctx, &b.Lab, p, progress)
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", b.system, err, b.log())
	}
	r.Dropped, err = b.dropped(ctx)
	if b.churn != nil && err == nil {
		r.Edits, b.churn.edits = b.churn.edits, 0
	}
	return r, err
}

// build makes a network with a system between the engines, which does not run yet.
func (c *RunConfig) build(system string, p *Profile) (b *built, err error) {
	b = &built{system: system}
	if b.net, err = topo.New(topo.Config{Direct: true, Queues: 1}); err != nil {
		return nil, err
	}
	switch system {
	case ThroughNone:
		b.backToBack(p)
	case ThroughSluice:
		err = errors.Join(b.between(p), b.prepareSluice(c, p))
	default:
		err = errors.Join(b.between(p), b.net.Gateway.Forward(true))
	}
	if err != nil {
		return nil, errors.Join(err, b.close())
	}
	return b, nil
}

// backToBack uses the wire between client and gateway, with the server in the gateway's place.
func (b *built) backToBack(p *Profile) {
	b.Client = Port{Interface: "eth0", Namespace: b.net.Clients[0]}
	b.Server = Port{Interface: b.net.Gateway.Interfaces[0].Name, Namespace: b.net.Gateway}
	b.Targets = p.Servers
}

// between puts the engines on both sides of the gateway, which knows where the pools are.
func (b *built) between(p *Profile) error {
	if !p.VIP.IsValid() {
		return fmt.Errorf("profile %s has no vip: add one, for clients to connect to", p.Name)
	}
	client, server, gateway := b.net.Clients[0], b.net.Backends[0], b.net.Gateway
	b.Client, b.Server = Port{Interface: "eth0", Namespace: client}, Port{Interface: "eth0", Namespace: server}
	family := func(h *topo.Host, i int) netip.Addr {
		if p.Clients.Is6() {
			return h.Interfaces[i].Addr6.Addr()
		}
		return h.Interfaces[i].Addr4.Addr()
	}
	b.ClientGateway, b.ServerGateway = family(gateway, 0), family(gateway, 1)
	b.Targets = Pool{First: p.VIP, Last: p.VIP}
	return errors.Join(gateway.Route(p.Clients.Prefix(), family(client, 0)),
		gateway.Route(p.Servers.Prefix(), family(server, 0)))
}

// prepareSluice configures the daemon, with a Service for each template and, of other addresses, as
// many as c wants in all.
func (b *built) prepareSluice(c *RunConfig, p *Profile) (err error) {
	if b.gate, err = launch.New(launch.Config{Sluice: c.Sluice, Host: b.net.Gateway, Options: c.Options}); err != nil {
		return err
	}
	b.churn = &churn{gate: b.gate, profile: p, removed: make([]atomic.Uint64, p.Servers.Len()),
		out: make([]bool, p.Servers.Len())}
	b.Removed = b.churn.removed
	services := b.churn.services()
	for i := len(services); i < c.Services; i++ {
		s := services[0]
		s.Name, s.VIPs = fmt.Sprintf("other-%d", i), []string{vip(p, i).String()}
		services = append(services, s)
	}
	if c.Churn > 0 {
		b.During = func(ctx context.Context) error { return b.churn.run(ctx, c.Churn) }
	}
	return b.gate.Apply(services...)
}

// vip is the address of the i-th Service of other addresses than the profile's, which is the one
// for 0.
func vip(p *Profile, i int) netip.Addr {
	b := p.VIP.As16()
	n := int(b[14])<<8 + int(b[15]) + i
	b[14], b[15] = byte(n>>8), byte(n)
	if p.VIP.Is4() {
		return netip.AddrFrom16(b).Unmap()
	}
	return netip.AddrFrom16(b)
}

// start starts the system.
func (b *built) start(ctx context.Context, k *cluster.Cluster) (err error) {
	switch b.system {
	case ThroughNone:
		return nil
	case ThroughSluice:
		err = b.gate.Start(ctx)
	default:
		b.proxy, err = proxyOn(ctx, k, b.net.Gateway, b.system)
	}
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", b.system, err, b.log())
	}
	return nil
}

func (b *built) log() string {
	switch {
	case b.gate != nil:
		return b.gate.Log()
	case b.proxy != nil:
		return b.proxy.Log()
	}
	return ""
}

// dropped returns the packets that the gateway did not forward, by reason.
func (b *built) dropped(ctx context.Context) (map[string]uint64, error) {
	if b.gate == nil {
		return nil, nil
	}
	v, err := b.gate.Client.Stats(ctx)
	if err != nil {
		return nil, err
	}
	drops := map[string]uint64{}
	add := func(reason string, n uint64) {
		if n > 0 {
			drops[reason] += n
		}
	}
	for _, w := range v.Workers {
		for reason, n := range w.Drops {
			add(reason, n)
		}
	}
	for _, q := range v.Queues {
		add("receive ring full", q.RxRingFull)
		add("fill ring empty", q.RxFillRingEmpty)
		add("receive dropped", q.RxDropped)
	}
	return drops, nil
}

func (b *built) close() error {
	var errs []error
	if b.proxy != nil {
		errs = append(errs, b.proxy.Stop())
	}
	if b.gate != nil {
		errs = append(errs, b.gate.Stop(), b.gate.Close())
	}
	return errors.Join(append(errs, b.net.Close())...)
}

// churn removes and adds endpoints while traffic flows. It belongs to one goroutine.
type churn struct {
	gate    *launch.Gateway
	profile *Profile
	removed []atomic.Uint64 // see Config.Removed
	out     []bool          // servers that are currently not endpoints
	edits   int
}

// services returns a Service for each template, with the servers that are currently in service.
func (c *churn) services() (list []launch.Service) {
	p := c.profile
	for i := range p.Templates {
		t := &p.Templates[i]
		s := launch.Service{Name: t.Name, Port: int32(t.Port), UDP: t.Protocol == ProtocolUDP,
			VIPs: []string{p.VIP.String()}}
		for k := range p.Servers.Len() {
			if !c.out[k] {
				s.Endpoints = append(s.Endpoints, launch.Endpoint{Addr: p.Servers.At(k), Port: int32(t.Port)})
			}
		}
		list = append(list, s)
	}
	return list
}

// run edits until ctx is done. At least half of the servers stay in service.
func (c *churn) run(ctx context.Context, perSecond int) error {
	random := rand.New(rand.NewPCG(1, 2))
	tick := time.NewTicker(time.Second / time.Duration(perSecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := c.edit(ctx, random.IntN(len(c.out))); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("edit endpoints: %w", err)
		}
	}
}

// edit removes a server from service, or adds it again.
func (c *churn) edit(ctx context.Context, k int) error {
	gone := 0
	for _, out := range c.out {
		if out {
			gone++
		}
	}
	if !c.out[k] && 2*(gone+1) > len(c.out) {
		return nil
	}
	c.out[k] = !c.out[k]
	if c.out[k] {
		c.removed[k].Store(Removing)
	}
	if err := c.gate.Apply(c.services()...); err != nil {
		return err
	}
	if _, err := c.gate.Applied(ctx); err != nil {
		return err
	}
	if c.out[k] {
		c.removed[k].Store(clock())
	}
	c.edits++
	return nil
}
