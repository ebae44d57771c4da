package daemon

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/announce/pulse"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/gateway/reach"
	"sluice.dev/sluice/internal/unixsocket"
)

// pulses makes what the gateway says to who announces its VIPs.
type pulses struct {
	listener net.Listener

	mu       sync.Mutex // guards the others
	last     *pulse.State
	snapshot *services.Snapshot // that last.VIPs are of
	found    *found             // the same
	stalled  []string           // the same: the stalled loops
}

// servePulse answers on the socket. It makes the socket unless the previous process has given its
// own, and cannot fail then.
func (d *Daemon) servePulse(ctx context.Context) error {
	p := &d.pulses
	if p.listener == nil {
		l, err := listenPulse(d.config.PulseSocket())
		if err != nil {
			return fmt.Errorf("stateDir: pulse socket: %w", err)
		}
		p.listener = l
	}
	d.servers.group.Go(func() { pulse.NewServer(d.pulse, d.log).Serve(ctx, p.listener) })
	return nil
}

// listenPulse makes the socket, and its directory if that is missing. In a cluster it may be the
// kubelet's, for the announcer's container.
func listenPulse(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	return unixsocket.Listen(path)
}

// removePulseDirectory removes it if it is empty. In a pod it stays, unless the node is no gateway
// any more: the announcer's pod has it mounted, and would see nothing of one that is made anew.
func (d *Daemon) removePulseDirectory() {
	if d.leaving != "" || !isMounted(d.config.StateDir) {
		_ = os.Remove(filepath.Dir(d.config.PulseSocket()))
	}
}

// isMounted reports whether a directory is of another file system than the one above it, as those
// are that a pod has of its node.
func isMounted(dir string) bool {
	var own, above unix.Stat_t
	return unix.Stat(dir, &own) == nil && unix.Stat(filepath.Dir(dir), &above) == nil && own.Dev != above.Dev
}

// pulse returns what is so now; the same value as before if nothing has changed.
func (d *Daemon) pulse() *pulse.State {
	p := &d.pulses
	p.mu.Lock()
	defer p.mu.Unlock()
	s, f, stalled := d.snapshot(), d.reach.found.Load(), d.beats.Unready()
	next := &pulse.State{PID: os.Getpid(), Phase: d.phase()}
	for i := range d.fixed.Interfaces {
		next.Interfaces = append(next.Interfaces, d.fixed.Interfaces[i].Name)
	}
	if next.Phase == pulse.Serving {
		// VIPs without a route say so one by one, so that another gateway is preferred for them.
		// All gateways may be without routes at once, and would withdraw all VIPs.
		// The same holds for stalled loops: known flows are forwarded, and an object that blocks a
		// loop blocks it on all gateways.
		next.Failures = slices.DeleteFunc(d.notReady(), func(why string) bool {
			return why == reach.NoRoute || slices.Contains(stalled, why)
		})
	}
	if p.last != nil && p.snapshot == s && p.found.same(f) && slices.Equal(p.stalled, stalled) {
		next.VIPs = p.last.VIPs
	} else {
		next.VIPs = vipsOf(s, f)
		impair(next.VIPs, stalled)
	}
	p.snapshot, p.found, p.stalled = s, f, stalled
	if p.last == nil || !p.last.Equal(next) {
		p.last = next
	}
	return p.last
}

// impair marks every Service of the VIPs as impaired by the stalled loops, unless it has another
// reason already.
func impair(vips []pulse.VIP, stalled []string) {
	if len(stalled) == 0 {
		return
	}
	for i := range vips {
		for j := range vips[i].Services {
			s := &vips[i].Services[j]
			s.Impaired = cmp.Or(s.Impaired, strings.Join(stalled, "; "))
		}
	}
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

// vipsOf lists the addresses of Services of type LoadBalancer, in order. f is nil before it is
// known what is reached.
func vipsOf(s *services.Snapshot, f *found) (list []pulse.VIP) {
	at := map[netip.Addr]int{}
	s.Frontends(func(fr *services.Frontend) bool {
		if fr.Kind != services.LoadBalancer {
			return true
		}
		a := fr.Key.Addr.Netip()
		i, there := at[a]
		if !there {
			i, at[a] = len(list), len(list)
			list = append(list, pulse.VIP{Address: a})
		}
		noteService(&list[i], fr)
		return true
	})
	for i := range list {
		for j := range list[i].Services {
			v := &list[i].Services[j]
			v.Impaired = f.impairment(vipService{list[i].Address, v.Namespace, v.Name})
		}
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
