package guest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/topo"
)

// doctor asks as a new user does, before the daemon runs: no bad news.
func (l *lab) doctor() (string, error) {
	for _, args := range [][]string{
		{"config", "check", "--host", l.gate.ConfigFile()},
		{"doctor", "--config", l.gate.ConfigFile()},
	} {
		if _, err := l.command(l.Sluice, args...); err != nil {
			return "", err
		}
	}
	return "no FAIL", nil
}

// start starts the daemon, and wants each NIC in the mode that its driver can.
func (l *lab) start() (string, error) {
	if err := l.gate.Start(l.ctx); err != nil {
		lines := strings.Split(strings.TrimSpace(l.gate.Log()), "\n")
		return "", fmt.Errorf("%w: %s", err, lines[len(lines)-1])
	}
	l.started = true
	v, err := l.gate.Client.Status(l.ctx, false)
	if err != nil {
		return "", err
	}
	var errs []error
	var modes, reasons []string
	for i := range v.Interfaces {
		nic := &v.Interfaces[i]
		mode, why, err := modeOf(nic)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		fmt.Fprintf(l.Log, "%s (%s): %s: %s\n", nic.Name, nic.Driver, mode, why)
		want, ours := map[string]Mode{l.interfaces()[0]: l.Left, l.interfaces()[1]: l.Right}[nic.Name]
		if !ours { // the host link
			continue
		}
		modes, reasons = append(modes, string(mode)), append(reasons, nic.Name+": "+why)
		if mode != want {
			errs = append(errs, fmt.Errorf("%s is in %s mode, want %s: %s", nic.Name, mode, want, why))
		}
		if repeated(why) {
			errs = append(errs, fmt.Errorf("%s: the reason repeats itself: %s", nic.Name, why))
		}
	}
	l.modes = strings.Join(modes, " + ")
	return strings.Join(reasons, ", "), errors.Join(errs...)
}

// repeated reports whether a sentence has a part twice.
func repeated(reason string) bool {
	parts := strings.Split(reason, "; ")
	return len(slices.Compact(slices.Sorted(slices.Values(parts)))) != len(parts)
}

// connect opens new connections by every way in.
func (l *lab) connect() (string, error) {
	targets := []netip.AddrPort{
		at(vip4, webPort), at(vip6, webPort),
		netip.AddrPortFrom(l.Gateway.Addr4(), webNodePort), netip.AddrPortFrom(l.Gateway.Addr6(), webNodePort),
	}
	const requests = 80
	r, err := l.Clients[0].HTTP(l.ctx, topo.HTTPLoad{Targets: targets, Requests: requests, Concurrency: 4,
		Timeout: l.patience(5 * time.Second)})
	if err != nil {
		return "", err
	}
	if r.Failed() > 0 || r.Requests != requests || len(r.Shares) != len(l.Backends) {
		return "", fmt.Errorf("of %d requests %d were answered, by %v; errors %v", requests, r.Requests, r.Shares,
			r.Errors)
	}
	return fmt.Sprintf("%d of %d by VIP and node port, both families", r.Requests, requests), nil
}

// transfers moves a large body each way.
func (l *lab) transfers(vip string) (string, error) {
	to := at(vip, webPort)
	down, err := l.Clients[0].Download(l.ctx, to, l.Bytes)
	if err != nil {
		return "", fmt.Errorf("download: %w", err)
	}
	up, err := l.Clients[0].Upload(l.ctx, to, l.Bytes)
	if err != nil {
		return "", fmt.Errorf("upload: %w", err)
	}
	return fmt.Sprintf("%d MB down in %.1f s, up in %.1f s, SHA-256 equal", l.Bytes/1e6, down.Elapsed.Seconds(),
		up.Elapsed.Seconds()), nil
}

// localEndpoints reaches an endpoint on this node, behind the host link: with the client's address
// kept, and translated.
func (l *lab) localEndpoints() (string, error) {
	const requests = 10
	client := l.Clients[0]
	for to, want := range map[netip.AddrPort]string{
		at(keepVIP4, keepPort): client.Addr4().String(), at(keepVIP6, keepPort): client.Addr6().String(),
		// hostLink.addresses by default
		at(nearVIP4, nearPort): "192.0.0.2", at(nearVIP6, nearPort): "fd73:6c75:6963:6500::2",
	} {
		r, err := client.HTTP(l.ctx, topo.HTTPLoad{Targets: []netip.AddrPort{to}, Requests: requests,
			Timeout: l.patience(5 * time.Second)})
		if err != nil {
			return "", err
		}
		if r.Failed() > 0 || r.Shares["local"] != requests || r.Clients[want] != requests {
			return "", fmt.Errorf("%s: of %d requests %v were answered; client addresses seen %v, want %s; errors %v",
				to, requests, r.Shares, r.Clients, want, r.Errors)
		}
	}
	size := min(l.Bytes, 10e6)
	if _, err := client.Download(l.ctx, at(keepVIP4, keepPort), size); err != nil {
		return "", err
	}
	if _, err := client.Upload(l.ctx, at(nearVIP6, nearPort), size); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d connections, %d MB each way", 4*requests, size/1_000_000), nil
}

// heldFlows are connections that ask again and again while something happens.
const heldFlows = 40

func (l *lab) hold() (*topo.Flows, error) {
	flows, err := l.Clients[0].OpenTCP(l.ctx, topo.FlowLoad{
		Targets: []netip.AddrPort{at(vip4, webPort), at(vip6, webPort)}, Flows: heldFlows,
		Interval: 500 * time.Millisecond, Timeout: l.patience(30 * time.Second), Lifetime: time.Hour,
	})
	if err != nil {
		return nil, err
	}
	return flows, l.allAnswered(flows)
}

// allAnswered waits until every flow has had an answer to a request that it sent from now on.
func (l *lab) allAnswered(flows *topo.Flows) error {
	// The first may be the answer to a request that was under way.
	if err := flows.AnsweredAgain(l.ctx, l.patience(30*time.Second), 2); err != nil {
		return err
	}
	if n := flows.Broken(); n > 0 {
		return fmt.Errorf("%d of %d connections broke: %v", n, heldFlows, brokenBy(flows))
	}
	return nil
}

// brokenBy are the reasons for which connections broke.
func brokenBy(flows *topo.Flows) []string {
	reasons := map[string]bool{}
	for _, s := range flows.States() {
		if s.Broken != nil {
			reasons[s.Broken.Error()] = true
		}
	}
	return slices.Sorted(maps.Keys(reasons))
}

// kills kills the daemon under held connections, and starts it again.
func (l *lab) kills() (string, error) {
	flows, err := l.hold()
	if err != nil {
		return "", err
	}
	defer flows.Stop()
	for n := range l.Kills {
		if err := l.gate.Kill(); err != nil {
			return "", err
		}
		if err := l.gate.Start(l.ctx); err != nil {
			return "", fmt.Errorf("start after kill %d: %w", n+1, err)
		}
		if err := l.allAnswered(flows); err != nil {
			return "", fmt.Errorf("after kill %d: %w", n+1, err)
		}
	}
	return fmt.Sprintf("%d times kill -9 under %d connections, 0 broken", l.Kills, heldFlows), nil
}

// linkDownUp takes each NIC down and up under held connections.
func (l *lab) linkDownUp() (string, error) {
	flows, err := l.hold()
	if err != nil {
		return "", err
	}
	defer flows.Stop()
	for _, name := range []string{left, right} {
		if err := l.onLink(name, netlink.LinkSetDown); err != nil {
			return "", err
		}
		if err := l.await(name+" to be seen down",
			func(s *status.StatusView) bool { return !isUp(s, name) }); err != nil {
			return "", err
		}
		if err := l.onLink(name, netlink.LinkSetUp); err != nil {
			return "", err
		}
		if err := l.allAnswered(flows); err != nil {
			return "", fmt.Errorf("after %s was down: %w", name, err)
		}
	}
	return fmt.Sprintf("both NICs down and up under %d connections, 0 broken", heldFlows), nil
}

func isUp(s *status.StatusView, name string) bool {
	return slices.ContainsFunc(s.Interfaces, func(i status.InterfaceView) bool { return i.Name == name && i.Up })
}

// await polls the daemon's status until something holds.
func (l *lab) await(what string, holds func(*status.StatusView) bool) error {
	limit := l.patience(20 * time.Second)
	err := topo.Until(l.ctx, limit, 50*time.Millisecond, func(ctx context.Context) error {
		s, err := l.gate.Client.Status(ctx, false)
		if err == nil && !holds(&s) {
			err = errNotYet
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("waited %v for %s: %w", limit, what, err)
	}
	return nil
}

var errNotYet = errors.New("it is not so yet")

// onLink changes an interface of the gateway.
func (l *lab) onLink(name string, change func(netlink.Link) error) error {
	return l.Gateway.Run(func() error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return change(link)
	})
}

// refused wants the daemon and doctor to refuse this kernel, in the same words.
func (l *lab) refused() (string, error) {
	const message = "Sluice needs 6.12 or newer"
	for _, args := range [][]string{
		{"run", "--config", l.gate.ConfigFile()},
		{"doctor", "--config", l.gate.ConfigFile()},
	} {
		out, err := l.gate.Command(l.ctx, args...)
		if err == nil {
			return "", fmt.Errorf("sluice %s does not refuse it: %s", args[0], out)
		}
		fmt.Fprintf(l.Log, "%v\n", err)
		if !strings.Contains(err.Error(), message) {
			return "", fmt.Errorf("sluice %s fails, but not with %q: %w", args[0], message, err)
		}
	}
	return "run and doctor: " + message, nil
}

// laws holds the gateway to the packet law and the frame law, exactly, and every host to not having
// received a damaged packet.
func (l *lab) laws() (string, error) {
	s, err := l.gate.Laws(l.ctx)
	if err != nil {
		return "", err
	}
	drops := map[string]uint64{}
	for _, w := range s.Workers {
		for reason, n := range w.Drops {
			drops[reason] += n
		}
	}
	fmt.Fprintf(l.Log, "drops: %v\n", drops)
	for _, q := range s.Queues {
		if q.TxInvalidDescs+q.RxInvalidDescs > 0 {
			return "", fmt.Errorf("the kernel refused descriptors: %+v", q)
		}
	}
	if n := drops["frame_truncated"]; n > 0 {
		return "", fmt.Errorf("%d packets arrived in pieces (frame_truncated)", n)
	}
	return "both exact; no damaged packet", l.damaged()
}

// stop ends the daemon, which must take everything with it.
func (l *lab) stop() (string, error) {
	if err := l.gate.Stop(); err != nil {
		return "", err
	}
	left, err := l.gate.Leftovers()
	if err != nil {
		return "", err
	}
	if len(left) > 0 {
		return "", fmt.Errorf("left behind: %v", left)
	}
	return "nothing left behind", nil
}
