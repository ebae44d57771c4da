package guest

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
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

// mtuChanges makes the clients' link narrower than their own idea of it, so that path MTU discovery must work, and as wide as before.
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

// unbind takes a NIC from its driver and gives it back: the interface is deleted and there is a new one, in the guest's first network
// namespace. What was configured for it is made again, as a node's network configuration does.
func (l *lab) unbind() (string, error) {
	uevent, err := l.Gateway.Device(left, "device/uevent")
	if err != nil {
		return "", err
	}
	driver, slot := field(uevent, "DRIVER"), field(uevent, "PCI_SLOT_NAME")
	dir := filepath.Join("/sys/bus/pci/drivers", driver)
	if err := os.WriteFile(filepath.Join(dir, "unbind"), []byte(slot), 0); err != nil {
		return "", fmt.Errorf("unbind %s from %s: %w", slot, driver, err)
	}
	if err := l.await(left+" to be seen gone", func(s *status.StatusView) bool { return !isUp(s, left) }); err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(dir, "bind"), []byte(slot), 0); err != nil {
		return "", fmt.Errorf("bind %s to %s: %w", slot, driver, err)
	}
	found, err := filepath.Glob(filepath.Join("/sys/bus/pci/devices", slot, "net", "*"))
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("%s has the interfaces %v, want one: %w", slot, found, errors.Join(err, os.ErrNotExist))
	}
	if err := l.Gateway.Adopt(filepath.Base(found[0]), left); err != nil {
		return "", err
	}
	began := time.Now()
	if err := l.await(left+" to be seen up again", func(s *status.StatusView) bool { return isUp(s, left) }); err != nil {
		return "", err
	}
	seen := time.Since(began)
	r, err := l.Clients[0].HTTP(l.ctx, topo.HTTPLoad{
		Targets: []netip.AddrPort{at(vip4, webPort), at(vip6, webPort)}, Requests: 20, Timeout: l.patience(10 * time.Second),
	})
	if err != nil {
		return "", err
	}
	if r.Failed() > 0 {
		return "", fmt.Errorf("afterwards of 20 connections failed %d: %v", r.Failed(), r.Errors)
	}
	return fmt.Sprintf("%s taken from %s and given back, up after %.1f s, 20 of 20 connections", left, driver, seen.Seconds()), nil
}

// field is the value of a line NAME=VALUE.
func field(text, name string) string {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+"="); ok {
			return value
		}
	}
	return ""
}
