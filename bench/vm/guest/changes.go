package guest

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/bench/topo"
	"sluice.dev/sluice/control/status"
)

// ethtool runs ethtool(8) on the gateway.
func (l *lab) ethtool(args ...string) error {
	path, err := exec.LookPath("ethtool")
	if err != nil {
		return err
	}
	p, err := l.Gateway.Start(topo.Command{Path: path, Args: args, Stdout: l.Log, Stderr: l.Log, OwnMounts: true})
	if err != nil {
		return err
	}
	select {
	case <-p.Done():
	case <-time.After(l.patience(20 * time.Second)):
		return errors.Join(fmt.Errorf("ethtool %v: too long", args), p.Stop(0))
	}
	if err := p.Err(); err != nil {
		return fmt.Errorf("ethtool %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

// each runs ethtool with each list of arguments under held connections, all of which must go on afterwards.
func (l *lab) each(commands ...string) (string, error) {
	flows, err := l.hold()
	if err != nil {
		return "", err
	}
	defer flows.Stop()
	for _, c := range commands {
		if err := l.ethtool(strings.Fields(c)...); err != nil {
			return "", err
		}
		if err := l.allAnswered(flows); err != nil {
			return "", fmt.Errorf("after ethtool %s: %w", c, err)
		}
	}
	return fmt.Sprintf("ethtool %s: %d connections, 0 broken", strings.Join(commands, "; "), heldFlows), nil
}

// rings changes the sizes of a NIC's rings.
func (l *lab) rings() (string, error) {
	return l.each("-G left rx 512 tx 512", "-G left rx 256 tx 256")
}

// rss changes how a NIC spreads flows over its queues.
func (l *lab) rss() (string, error) {
	return l.each("-X left equal 1", "-X left default", "-N left rx-flow-hash udp4 sdfn")
}

// oneQueue leaves the NICs one queue each, before the daemon starts.
func (l *lab) oneQueue() (string, error) {
	for _, nic := range []string{left, right} {
		if err := l.ethtool("-L", nic, "combined", "1"); err != nil {
			return "", err
		}
	}
	return "ethtool -L combined 1", nil
}

// mtuChanges makes the clients' link narrower than their own idea of it, so that path MTU discovery must work, and as
// wide as before.
func (l *lab) mtuChanges() (string, error) {
	for _, to := range []int{1400, mtu} {
		if err := l.onLink(left, func(link netlink.Link) error { return netlink.LinkSetMTU(link, to) }); err != nil {
			return "", err
		}
		if err := l.await(fmt.Sprintf("%s to be seen with MTU %d and up", left, to), func(s *status.StatusView) bool {
			for _, i := range s.Interfaces {
				if i.Name == left {
					return i.MTU == to && i.Up
				}
			}
			return false
		}); err != nil {
			return "", err
		}
		for _, vip := range []string{vip4, vip6} {
			if _, err := l.transfers(vip); err != nil {
				return "", fmt.Errorf("MTU %d: %w", to, err)
			}
		}
	}
	return fmt.Sprintf("left at 1400 and at %d again: %d MB each way, both families", mtu, l.Bytes/1_000_000), nil
}
