package daemon

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/announce/pulse"
	"sluice.dev/sluice/config"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/gateway/reach"
	"sluice.dev/sluice/internal/unixsocket"
)

// pulseSource makes the state that the pulse sends to the process that announces the VIPs.
type pulseSource struct {
	listener net.Listener

	mu   sync.Mutex // guards the fields below
	last *pulse.State
	of   pulseInput // of last
}

// pulseInput is the state of the gateway that a pulse describes. Each reason is in one field, which
// determines its effect: a reason that is read twice may be true only the second time.
type pulseInput struct {
	phase       pulse.Phase
	interfaces  []string
	snapshot    *services.Snapshot
	reached     *reached // nil before the first look
	unreachable []string // reached.why if the interfaces are open
	loops       []string // stalled ones
	workers     []string // stalled ones
	sources     []pulse.Source
	copied      bool
}

// serve answers on the socket until ctx is done. It makes the socket unless the predecessor has
// handed over its own. The error is about a socket that could not be made.
func (p *pulseSource) serve(
	ctx context.Context, path string, group *sync.WaitGroup, log *slog.Logger, input func() pulseInput,
) error {
	if p.listener == nil {
		l, err := listenPulse(path)
		if err != nil {
			return fmt.Errorf("stateDir: pulse socket: %w", err)
		}
		p.listener = l
	}
	group.Go(func() {
		pulse.NewServer(func() *pulse.State { return p.next(input) }, log).Serve(ctx, p.listener)
	})
	return nil
}

// listenPulse makes the socket, and its directory if that is missing. In a cluster the kubelet may
// have made the directory, for the announcer's container.
func listenPulse(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	return unixsocket.Listen(path)
}

// removePulseDirectory removes the directory of the socket if it is empty. In a pod it stays
// unless the node is no gateway any more: the announcer's pod has mounted it, and would not see a
// directory that is created later.
func removePulseDirectory(c *config.Configuration, leaves bool) {
	if leaves || !isMounted(c.StateDir) {
		_ = os.Remove(filepath.Dir(c.PulseSocket()))
	}
}

// isMounted reports whether a directory and its parent are on different file systems, as for a
// directory of the node that a pod has mounted.
func isMounted(dir string) bool {
	var own, above unix.Stat_t
	return unix.Stat(dir, &own) == nil && unix.Stat(filepath.Dir(dir), &above) == nil && own.Dev != above.Dev
}

// next returns the present state: the value of the last call if nothing has changed.
func (p *pulseSource) next(input func() pulseInput) *pulse.State {
	p.mu.Lock()
	defer p.mu.Unlock()
	in := input()
	next := &pulse.State{PID: os.Getpid(), Phase: in.phase, Interfaces: in.interfaces, Sources: in.sources,
		Copied: in.copied}
	if next.Phase == pulse.Serving {
		next.Failures = in.failures()
	}
	if p.last != nil && p.of.snapshot == in.snapshot && p.of.reached.same(in.reached) &&
		slices.Equal(p.of.loops, in.loops) {
		next.VIPs = p.last.VIPs
	} else {
		next.VIPs = vipsOf(in.snapshot, in.reached)
		impair(next.VIPs, in.loops)
	}
	p.of = in
	if p.last == nil || !p.last.Equal(next) {
		p.last = next
	}
	return p.last
}

// failures returns the reasons to send no traffic to a serving gateway. A VIP without a route is
// impaired by itself, so that another gateway is preferred for it: all gateways may be without
// routes at once, and would withdraw all VIPs. The same holds for stalled loops: known flows are
// forwarded, and an object that blocks a loop blocks it on all gateways.
func (in *pulseInput) failures() []string {
	list := slices.Concat(in.workers, in.unreachable)
	return slices.DeleteFunc(list, func(why string) bool { return why == reach.NoRoute })
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

// vipsOf lists the addresses of Services of type LoadBalancer, in order. r is nil before the first
// look.
func vipsOf(s *services.Snapshot, r *reached) (list []pulse.VIP) {
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
		addService(&list[i], fr)
		return true
	})
	for i := range list {
		for j := range list[i].Services {
			v := &list[i].Services[j]
			v.Impaired = r.impairment(vipService{list[i].Address, v.Namespace, v.Name})
		}
		slices.SortFunc(list[i].Services, func(a, b pulse.Service) int {
			return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
		})
	}
	slices.SortFunc(list, func(a, b pulse.VIP) int { return a.Address.Compare(b.Address) })
	return list
}

// addService adds the Service of a frontend, or the frontend to its Service. A Service is usable if
// one of its ports is usable. A direct one is local if only other gateways reach its endpoints.
func addService(v *pulse.VIP, f *services.Frontend) {
	set := f.Outside.Set
	usable := set != nil && len(set.Backends) > 0
	local := f.Service.LocalExternal && (!f.Service.Direct || set != nil && set.Empty == services.EmptyDrop)
	for i := range v.Services {
		if s := &v.Services[i]; s.Namespace == f.Service.Namespace && s.Name == f.Service.Name {
			s.Usable, s.Local = s.Usable || usable, s.Local || local
			return
		}
	}
	v.Services = append(v.Services, pulse.Service{Namespace: f.Service.Namespace, Name: f.Service.Name,
		Local: local, Usable: usable})
}
