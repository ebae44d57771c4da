package guest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/host/nic/ethtool"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/topo"
)

// command runs a program on the gateway and returns its output, which the log gets, too. It has a
// view of /sys as `ip netns exec` gives it: queues are counted there.
func (l *lab) command(path string, args ...string) (string, error) {
	var out strings.Builder
	both := io.MultiWriter(&out, l.Log)
	what := filepath.Base(path) + " " + strings.Join(args, " ")
	p, err := l.Gateway.Start(topo.Command{Path: path, Args: args, Stdout: both, Stderr: both, OwnMounts: true})
	if err != nil {
		return "", err
	}
	select {
	case <-p.Done():
	case <-time.After(l.patience(20 * time.Second)):
		return "", errors.Join(fmt.Errorf("%s: too long", what), p.Stop(0))
	}
	if err := p.Err(); err != nil {
		return out.String(), fmt.Errorf("%s: %w", what, err)
	}
	return out.String(), nil
}

// ethtool runs ethtool(8) on the gateway.
func (l *lab) ethtool(args ...string) error {
	path, err := exec.LookPath("ethtool")
	if err != nil {
		return err
	}
	_, err = l.command(path, args...)
	return err
}

// each runs ethtool with each list of arguments under held connections, all of which must go on
// afterwards.
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
	return l.each("-X left equal 1", "-X left default")
}

// spread sends datagrams of one client from many ports: to one queue, until what doctor says is
// done.
func (l *lab) spread() (string, error) {
	const command = "-N " + left + " rx-flow-hash udp4 sdfn"
	before, err := l.ofQueues()
	if err != nil {
		return "", err
	}
	if said, err := l.command(l.Sluice, "doctor", "--config", l.gate.ConfigFile()); err != nil {
		return "", err
	} else if !strings.Contains(said, "ethtool "+command) {
		return "", fmt.Errorf("%d and %d packets came to the two queues, and doctor does not say: ethtool %s",
			before[0], before[1], command)
	}
	if err := l.ethtool(strings.Fields(command)...); err != nil {
		return "", err
	}
	after, err := l.ofQueues()
	if err != nil {
		return "", err
	}
	shares := fmt.Sprintf("%d and %d packets to the queues before, %d and %d after", before[0], before[1], after[0],
		after[1])
	const sent = spreadPorts * uint64(len(spreadSizes))
	if most := max(before[0], before[1]); most < sent*9/10 {
		return "", fmt.Errorf("nothing to mend: %s", shares)
	}
	if least := min(after[0], after[1]); least < sent/4 {
		return "", fmt.Errorf("ethtool %s does not spread: %s", command, shares)
	}
	return "doctor's ethtool " + command + ": " + shares, nil
}

const spreadPorts = 32 // of a client

// spreadSizes are the payloads of the datagrams that leave each, in bytes: different ones, by which
// answers are known.
var spreadSizes = [...]int{100, 101, 102, 103}

// ofQueues sends datagrams from many ports of a client, and returns how many more packets each
// queue of its NIC got.
func (l *lab) ofQueues() (packets [2]uint64, err error) {
	before, err := l.queuePackets()
	if err != nil {
		return packets, err
	}
	for range spreadPorts {
		conn, err := l.Clients[0].Dial(l.ctx, "udp4", at(vip4, echoPort).String())
		if err != nil {
			return packets, err
		}
		unanswered, err := l.exchange(conn, spreadSizes[:])
		if err := errors.Join(err, conn.Close()); err != nil {
			return packets, err
		}
		if len(unanswered) > 0 {
			return packets, fmt.Errorf("%d of %d datagrams had no answer", len(unanswered), len(spreadSizes))
		}
	}
	after, err := l.queuePackets()
	for i := range packets {
		packets[i] = after[i] - before[i]
	}
	return packets, err
}

// queuePackets returns the driver's counters for the queues of the clients' NIC.
func (l *lab) queuePackets() (packets [2]uint64, err error) {
	err = l.Gateway.Run(func() error {
		counted, err := ethtool.Statistics(left)
		if err != nil {
			return err
		}
		for i := range packets {
			name := fmt.Sprintf("rx_queue_%d_packets", i) // of igb
			n, ok := counted[name]
			if !ok {
				return fmt.Errorf("%s does not count %s", left, name)
			}
			packets[i] = n
		}
		return nil
	})
	return packets, err
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

// groOff does what doctor says where VLAN devices are the gateway's interfaces: the NIC below would
// merge packets first.
func (l *lab) groOff() (string, error) {
	said, err := l.command(l.Sluice, "doctor", "--config", l.gate.ConfigFile())
	if err == nil || !strings.Contains(said, "ethtool -K "+left+" gro off") {
		return "", fmt.Errorf("doctor does not fail with: ethtool -K %s gro off: %w", left, err)
	}
	for _, nic := range []string{left, right} {
		if err := l.ethtool("-K", nic, "gro", "off"); err != nil {
			return "", err
		}
	}
	return "doctor's ethtool -K gro off", nil
}

// mtuChanges makes the clients' link narrower than their own idea of it, so that path MTU discovery
// must work, and as wide as before.
func (l *lab) mtuChanges() (string, error) {
	for _, to := range []int{1400, l.MTU} {
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
	return fmt.Sprintf("left at 1400 and at %d again: %d MB each way, both families", l.MTU, l.Bytes/1_000_000), nil
}

// fewerQueues requests fewer queues while each has a socket, which the kernel refuses
// (ethnl_set_channels, net/ethtool/channels.c), in any mode of the sockets.
func (l *lab) fewerQueues() (string, error) {
	flows, err := l.hold()
	if err != nil {
		return "", err
	}
	defer flows.Stop()
	if l.ethtool("-L", left, "combined", "1") == nil {
		return "", errors.New("ethtool -L combined 1 took a queue away that has a socket")
	}
	if err := l.allAnswered(flows); err != nil {
		return "", err
	}
	return fmt.Sprintf("ethtool -L combined 1 refused by the kernel; %d connections, 0 broken", heldFlows), nil
}

// moreQueues adds a queue that no worker serves, which the daemon must report for as long as it is
// so.
func (l *lab) moreQueues() (string, error) {
	const condition = "queues"
	reported := func(s *status.StatusView) bool {
		return slices.ContainsFunc(s.Conditions, func(c status.ConditionView) bool {
			return c.Name == condition && strings.Contains(c.Detail, left+" receives on 2 queues and 1 are served")
		})
	}
	if err := l.ethtool("-L", left, "combined", "2"); err != nil {
		return "", err
	}
	if err := l.await("2 queues of which 1 is served to be reported", reported); err != nil {
		return "", err
	}
	if err := l.ethtool("-L", left, "combined", "1"); err != nil {
		return "", err
	}
	if err := l.await("the report to end", func(s *status.StatusView) bool { return !reported(s) }); err != nil {
		return "", err
	}
	if _, err := l.connect(); err != nil {
		return "", err
	}
	return "ethtool -L combined 2: a queue that is not served is reported; back at 1, all connect", nil
}

// unbindBind takes the clients' NIC from its driver and gives it back, under held connections.
func (l *lab) unbindBind() (string, error) {
	flows, err := l.hold()
	if err != nil {
		return "", err
	}
	defer flows.Stop()
	bus, device := "", ""
	if err := l.onLink(left, func(link netlink.Link) error {
		bus, device = link.Attrs().ParentDevBus, link.Attrs().ParentDev
		return nil
	}); err != nil {
		return "", err
	}
	driver := filepath.Join("/sys/bus", bus, "devices", device, "driver")
	if driver, err = filepath.EvalSymlinks(driver); err != nil { // the link goes with the driver
		return "", err
	}
	if err := os.WriteFile(filepath.Join(driver, "unbind"), []byte(device), 0); err != nil {
		return "", err
	}
	if err := l.await(left+" to be seen gone", func(s *status.StatusView) bool {
		return slices.ContainsFunc(s.Interfaces, func(i status.InterfaceView) bool {
			return i.Name == left &&
				i.Mode == ""
		})
	}); err != nil {
		return "", err
	}
	mac := net.HardwareAddr(l.Gateway.Interfaces[0].MAC[:])
	if err := os.WriteFile(filepath.Join(driver, "bind"), []byte(device), 0); err != nil {
		return "", err
	}
	if err := l.Replug(left, mac); err != nil {
		return "", err
	}
	if err := l.allAnswered(flows); err != nil {
		return "", fmt.Errorf("after unbind and bind: %w", err)
	}
	// Packets that arrive before the daemon has opened the new device go to the kernel.
	if err := l.countDamage(); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s taken from %s and given back under %d connections, 0 broken", left, filepath.Base(driver),
		heldFlows), nil
}

// genericMode configures generic mode for both NICs, before the start. Zero-copy sockets would send
// nothing then.
func (l *lab) genericMode() (string, error) {
	text := l.gate.Configuration()
	for _, nic := range l.interfaces() {
		auto := "- name: " + nic + "\n"
		if !strings.Contains(text, auto) {
			return "", fmt.Errorf("no interface %s in:\n%s", nic, text)
		}
		text = strings.Replace(text, auto, auto+"  mode: generic\n", 1)
	}
	return "mode: generic for both NICs", l.gate.WriteConfiguration(text)
}

// nativeRefused wants an MTU that the driver's native mode cannot take to be refused where that
// mode is wanted, by a message that names the driver.
func (l *lab) nativeRefused() (string, error) {
	const auto = "- name: " + left + "\n"
	text := l.gate.Configuration()
	if !strings.Contains(text, auto) {
		return "", fmt.Errorf("no interface %s in:\n%s", left, text)
	}
	if err := l.gate.WriteConfiguration(strings.Replace(text, auto, auto+"  mode: native\n", 1)); err != nil {
		return "", err
	}
	out, refusal := l.gate.Command(l.ctx, "run", "--config", l.gate.ConfigFile())
	if refusal == nil {
		return "", fmt.Errorf("sluice run does not refuse it: %s", out)
	}
	driver, err := l.driver(left)
	if err != nil {
		return "", err
	}
	said := strings.Split(strings.TrimSpace(refusal.Error()), "\n")
	message := said[len(said)-1]
	if !strings.Contains(message, driver) || !strings.Contains(message, fmt.Sprint("MTU ", l.MTU)) {
		return "", fmt.Errorf("the refusal does not name driver %s and MTU %d: %w", driver, l.MTU, refusal)
	}
	return message, l.gate.WriteConfiguration(text)
}

func (l *lab) driver(nic string) (driver string, err error) {
	err = l.Gateway.Run(func() (err error) {
		driver, err = ethtool.Driver(nic)
		return err
	})
	return driver, err
}
