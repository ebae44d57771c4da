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

	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/topo"
)

// Systems under test in a lab.
const (
	ThroughNone   = "none"   // a veth pair
	ThroughSluice = "sluice" // a gateway between two veth pairs
)

// built is a Lab in network namespaces of its own.
type built struct {
	Lab
	net   *topo.Net
	gate  *launch.Gateway
	churn *churn
}

// play runs the profile and adds the gateway's drops to the result.
func (b *built) play(ctx context.Context, p *Profile, progress io.Writer) (*Result, error) {
	r, err := Play(ctx, &b.Lab, p, progress)
	if err != nil && b.gate != nil {
		return nil, fmt.Errorf("%w\n%s", err, b.gate.Log())
	}
	if err == nil {
		r.Dropped, err = b.dropped(ctx)
	}
	if b.churn != nil && err == nil {
		r.Edits = b.churn.edits
	}
	return r, err
}

// build makes a network with a system between the engines. churnPerSecond is how often per second
// an endpoint is removed or added; 0 turns this off.
func build(ctx context.Context, system, sluice string, churnPerSecond int, p *Profile) (b *built, err error) {
	b = &built{}
	if b.net, err = topo.New(topo.Config{Direct: true, Queues: 1}); err != nil {
		return nil, err
	}
	if system == ThroughSluice {
		err = b.throughSluice(ctx, sluice, churnPerSecond, p)
	} else {
		b.backToBack(p)
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

// throughSluice runs the daemon on the gateway, with a Service for each template.
func (b *built) throughSluice(ctx context.Context, sluice string, churnPerSecond int, p *Profile) (err error) {
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
	err = errors.Join(gateway.Route(p.Clients.Prefix(), family(client, 0)), gateway.Route(p.Servers.Prefix(),
		family(server, 0)))
	if err != nil {
		return err
	}
	if b.gate, err = launch.New(launch.Config{Sluice: sluice, Host: gateway}); err != nil {
		return err
	}
	b.churn = &churn{gate: b.gate, profile: p, removed: make([]atomic.Uint64, p.Servers.Len()),
		out: make([]bool, p.Servers.Len())}
	b.Removed = b.churn.removed
	if err := b.gate.Apply(b.churn.services()...); err != nil {
		return err
	}
	if churnPerSecond > 0 {
		b.During = func(ctx context.Context) error { return b.churn.run(ctx, churnPerSecond) }
	}
	return nil
}

// started starts the daemon. It must be called when the engines already answer for their addresses,
// so that the gateway resolves them at once; therefore Lab.During does not start it.
func (b *built) started(ctx context.Context) error {
	if b.gate == nil {
		return nil
	}
	if err := b.gate.Start(ctx); err != nil {
		return fmt.Errorf("%w\n%s", err, b.gate.Log())
	}
	return nil
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
