//go:build root

package e2e

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"sluice.dev/sluice/host/nic/ethtool"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/topo"
)

// The third interface of the gateway, which comes and goes: its other end is in the
// client's namespace.
const (
	spare       = "spare0"
	spareGate   = "10.73.0.1/24"
	spareClient = "10.73.0.2/24"
)

// addSpare creates the pair.
func addSpare(t *testing.T, gateway, client *topo.Host) {
	t.Helper()
	var to netns.NsHandle
	err := client.Run(func() (err error) { to, err = netns.Get(); return err })
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	err = gateway.Run(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.NumTxQueues, attrs.NumRxQueues = spare, 2, 2
		v := netlink.NewVeth(attrs)
		v.PeerName, v.PeerNamespace = spare, netlink.NsFd(to)
		if err := netlink.LinkAdd(v); err != nil {
			return err
		}
		return configureSpare(spareGate)
	})
	if err == nil {
		err = client.Run(func() error { return configureSpare(spareClient) })
	}
	if err != nil {
		t.Fatal(err)
	}
}

func configureSpare(prefix string) error {
	link, err := netlink.LinkByName(spare)
	if err != nil {
		return err
	}
	addr, err := netlink.ParseAddr(prefix)
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(link, addr); err != nil {
		return err
	}
	if err := ethtool.OffloadsOff(spare); err != nil {
		return err
	}
	return netlink.LinkSetUp(link)
}

// TestDeviceDeletedAndCreated: one interface goes for good and comes back under
// its name. The others forward all the while.
func TestDeviceDeletedAndCreated(t *testing.T) {
	t.Parallel()
	c := labConfig{Config: topo.Config{Backends: 2, Queues: 2}, interfaces: []string{"front0", "back0", spare}}
	c.prepare = func(l *lab) { addSpare(t, l.Gateway, l.Clients[0]) }
	l := newLab(t, c)
	load := l.hammer(at(vip4, webPort), time.Millisecond)
	for round := range 3 {
		l.onLink(spare, netlink.LinkDel)
		l.waitFor("the loss is reported", func(v *status.InterfaceView) bool { return v.Mode == "" && v.Reason != "" })
		addSpare(t, l.Gateway, l.Clients[0])
		began := time.Now()
		l.waitFor("the interface is open again", func(v *status.InterfaceView) bool { return v.Mode != "" })
		t.Logf("round %d: open again %v after it was created", round, time.Since(began).Round(time.Millisecond))
	}
	if r := load.stop(t); r.Failed() > 0 {
		t.Errorf("other interfaces suffered: %v", r.Errors)
	}
	// Node ports of the new device's address are served through the new device, once the address is
	// known.
	ask := func(requests int) *topo.Result {
		r, err := l.Clients[0].HTTP(l.ctx, topo.HTTPLoad{Targets: []netip.AddrPort{at("10.73.0.1", webNodePort)},
			Requests: requests, Concurrency: 2})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	l.within("the node port is served at the new device's address", func() bool { return ask(1).Failed() == 0 })
	if r := ask(50); r.Failed() > 0 {
		t.Errorf("through the new device: %v", r.Errors)
	}
}

// waitFor polls the state of the spare interface until it is as wanted, at most 5 s.
func (l *lab) waitFor(what string, is func(*status.InterfaceView) bool) {
	l.t.Helper()
	l.within(what, func() bool {
		st, err := l.gate.Client.Status(l.ctx, false)
		return err == nil && slices.ContainsFunc(st.Interfaces, func(i status.InterfaceView) bool {
			return i.Name == spare && is(&i)
		})
	})
}

// TestMTUChange: the gateway follows its devices' MTU while it runs, also where that takes other
// sockets.
func TestMTUChange(t *testing.T) {
	t.Parallel()
	l := newLab(t, labConfig{Config: topo.Config{Backends: 1, Queues: 2}})
	for _, mtu := range []int{1400, 1500, 9000, 1300} {
		l.onLink("back0", func(link netlink.Link) error { return netlink.LinkSetMTU(link, mtu) })
		l.within(fmt.Sprint("served with an MTU of ", mtu), func() bool {
			st, err := l.gate.Client.Status(l.ctx, false)
			return err == nil && slices.ContainsFunc(st.Interfaces, func(i status.InterfaceView) bool {
				q := i.Queues[0]
				return i.Name == "back0" && i.MTU == mtu && q.Bound &&
					strings.Contains(q.Reason, "several frames") == (mtu == 9000)
			})
		})
		for _, vip := range []string{vip4, vip6} {
			if _, err := l.Clients[0].Upload(l.ctx, at(vip, webPort), 1<<20); err != nil {
				t.Errorf("MTU %d, %s: %v", mtu, vip, err)
			}
		}
	}
}

// TestMissingInterface: one message with the remedy, and nothing is left.
func TestMissingInterface(t *testing.T) {
	t.Parallel()
	l := newLab(t, labConfig{Config: topo.Config{Queues: 1}})
	if err := l.gate.Stop(); err != nil {
		t.Fatal(err)
	}
	links := func() (names []string) {
		_ = l.Gateway.Run(func() error {
			all, err := net.Interfaces()
			for _, i := range all {
				names = append(names, i.Name)
			}
			return err
		})
		return names
	}
	before := links()
	config := strings.ReplaceAll(l.gate.Configuration(), "back0", "nothere0")
	if err := l.gate.WriteConfiguration(config); err != nil {
		t.Fatal(err)
	}
	if err := l.gate.Start(l.ctx); err == nil || !strings.Contains(l.gate.Log(), "no interface nothere0") {
		t.Errorf("started: %v; it said\n%s", err, l.gate.Log())
	}
	if after := links(); len(after) != len(before) {
		t.Errorf("interfaces before %v, after %v", before, after)
	}
	if err := l.gate.WriteConfiguration(l.gate.Configuration()); err != nil {
		t.Fatal(err)
	}
	if err := l.gate.Start(l.ctx); err != nil {
		t.Fatal(err)
	}
	l.wantServed("after the mistake was mended")
}
