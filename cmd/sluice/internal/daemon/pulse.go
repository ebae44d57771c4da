package daemon

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"

	"sluice.dev/sluice/control/pulse"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/internal/unixsocket"
)

// pulses makes what the gateway says to who announces its VIPs.
type pulses struct {
	listener net.Listener

	mu       sync.Mutex // guards the others
	last     *pulse.State
	snapshot *services.Snapshot // that last.VIPs are of
}

// servePulse answers on the socket, which is made if no process before has given its own.
func (d *Daemon) servePulse(ctx context.Context) (err error) {
	p := &d.pulses
	if p.listener == nil {
		if p.listener, err = unixsocket.Listen(d.config.PulseSocket()); err != nil {
			return fmt.Errorf("stateDir: pulse socket: %w", err)
		}
	}
	d.servers.group.Go(func() { pulse.NewServer(d.pulse, d.log).Serve(ctx, p.listener) })
	return nil
}

// pulse returns what is so now; the same value as before if nothing has changed.
func (d *Daemon) pulse() *pulse.State {
	p := &d.pulses
	p.mu.Lock()
	defer p.mu.Unlock()
	s := d.snapshot()
	next := &pulse.State{PID: os.Getpid(), Phase: d.phase()}
	if next.Phase == pulse.Serving {
		next.Failures = d.notReady()
	}
	if p.last != nil && p.snapshot == s {
		next.VIPs = p.last.VIPs
	} else {
		next.VIPs = vipsOf(s)
	}
	p.snapshot = s
	if p.last == nil || !p.last.Equal(next) {
		p.last = next
	}
	return p.last
}

func (d *Daemon) phase() pulse.Phase {
	switch {
	case d.handingOver.Load():
		return pulse.HandingOver
	case d.draining.Load():
		return pulse.Draining
	case d.forwards():
		return pulse.Serving
	}
	return pulse.Opening
}

// vipsOf lists the addresses of Services of type LoadBalancer, in order.
func vipsOf(s *services.Snapshot) (list []pulse.VIP) {
	at := map[netip.Addr]int{}
	s.Frontends(func(f *services.Frontend) bool {
		if f.Kind != services.LoadBalancer {
			return true
		}
		a := f.Key.Addr.Netip()
		i, there := at[a]
		if !there {
			i, at[a] = len(list), len(list)
			list = append(list, pulse.VIP{Address: a})
		}
		noteService(&list[i], f)
		return true
	})
	for i := range list {
		slices.SortFunc(list[i].Services, func(a, b pulse.Service) int {
			return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
		})
	}
	slices.SortFunc(list, func(a, b pulse.VIP) int { return a.Address.Compare(b.Address) })
	return list
}

// noteService adds what a frontend says of its Service: that is usable if one of its ports is.
func noteService(v *pulse.VIP, f *services.Frontend) {
	usable := f.Outside.Set != nil && len(f.Outside.Set.Backends) > 0
	for i := range v.Services {
		if s := &v.Services[i]; s.Namespace == f.Service.Namespace && s.Name == f.Service.Name {
			s.Usable = s.Usable || usable
			return
		}
	}
	v.Services = append(v.Services, pulse.Service{Namespace: f.Service.Namespace, Name: f.Service.Name,
		Local: f.Service.LocalExternal, Usable: usable})
}
