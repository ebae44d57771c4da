//go:build root

package e2e

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/machine"
	"sluice.dev/sluice/test/bed/topo"
)

// within asks until the answer is yes, at most 5 s.
func (l *lab) within(what string, yes func() bool) {
	l.t.Helper()
	l.eventually(5*time.Second, what, yes)
}

// eventually asks until the answer is yes, at most for a time, which counts as in topo.Until.
func (l *lab) eventually(limit time.Duration, what string, yes func() bool) {
	l.t.Helper()
	began := time.Now()
	err := topo.Until(l.ctx, machine.Slower(limit), 10*time.Millisecond, func(context.Context) error {
		if !yes() {
			return errors.New(what)
		}
		return nil
	})
	if err != nil {
		l.t.Fatalf("not within %v: %v\n%s", limit, err, l.gate.Log())
	}
	l.t.Logf("%s after %v", what, time.Since(began).Round(time.Millisecond))
}

// condition finds what the daemon reports under a name.
func (l *lab) condition(name string) (found status.ConditionView) {
	l.t.Helper()
	st, err := l.gate.Client.Status(l.ctx, false)
	if err != nil {
		l.t.Fatal(err)
	}
	return conditionOf(&st, name)
}

// conditionOf is the last condition of a name; without one, it has no name.
func conditionOf(st *status.StatusView, name string) (found status.ConditionView) {
	for _, c := range st.Conditions {
		if c.Name == name {
			found = c
		}
	}
	return found
}

// TestHostLinkDeleted: somebody deletes the way back into the kernel. It is made
// again, and endpoints on the node are served again, with and without the client's
// address.
func TestHostLinkDeleted(t *testing.T) {
	t.Parallel()
	l := newLab(t, labConfig{Config: topo.Config{Queues: 2}})
	own := l.serveLocally()
	const other4, other6 = "203.0.113.40", "2001:db8:f::40"
	l.apply(
		launch.Service{Name: "keep", Port: webPort, Local: true, VIPs: []string{keepVIP4, keepVIP6}, Endpoints: own},
		launch.Service{Name: "cluster", Port: webPort, VIPs: []string{other4, other6}, Endpoints: own})
	l.applied()
	served := func(vip string, n int) bool {
		r, err := l.Clients[0].HTTP(l.ctx, topo.HTTPLoad{Targets: []netip.AddrPort{at(vip, webPort)}, Requests: n,
			Concurrency: 2, Timeout: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		return r.Failed() == 0
	}
	all := []string{keepVIP4, keepVIP6, other4, other6}
	for _, vip := range all {
		if !served(vip, 20) {
			t.Fatalf("%s is not served before", vip)
		}
	}
	l.onLink("sluice0", netlink.LinkDel)
	for _, vip := range all {
		l.within(vip+" is served again", func() bool { return served(vip, 1) })
		if !served(vip, 50) {
			t.Errorf("%s is not served well after the repair", vip)
		}
	}
	// It is wide enough for what the interfaces may send.
	l.onLink("front0", func(f netlink.Link) error { return netlink.LinkSetMTU(f, 1700) })
	l.within("the host link is widened", func() bool {
		wide := false
		l.onLink("sluice1", func(f netlink.Link) error { wide = f.Attrs().MTU == 1700; return nil })
		return wide
	})
	l.within("the host link's port is open", func() bool {
		st, err := l.gate.Client.Status(l.ctx, false)
		return err == nil && st.Ready && l.condition("host-link").Name == ""
	})
}

// TestQueueWithoutSocket: of two queues one is served. Nothing that arrives on the
// other is dropped: it is the kernel's, which has nothing there and refuses it.
func TestQueueWithoutSocket(t *testing.T) {
	t.Parallel()
	l := newLab(t, labConfig{Config: topo.Config{Queues: 2}})
	if err := l.gate.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := l.gate.WriteConfiguration(strings.Replace(l.gate.Configuration(), "- name: front0\n",
		"- name: front0\n  queues: 1\n", 1)); err != nil {
		t.Fatal(err)
	}
	if err := l.gate.Start(l.ctx); err != nil {
		t.Fatal(err)
	}
	target := netip.AddrPortFrom(l.Gateway.Addr4(), webNodePort)
	r, err := l.Clients[0].HTTP(l.ctx, topo.HTTPLoad{Targets: []netip.AddrPort{target}, Requests: 200, Concurrency: 4,
		Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	var refused int64
	for kind, n := range r.Errors {
		if !strings.Contains(kind, "refused") {
			t.Errorf("%d requests: %s", n, kind)
		}
		refused += n
	}
	t.Logf("of 200 connections %d came on the queue without a socket and were refused by the kernel", refused)
	if refused == 0 || refused == 200 {
		t.Error("the load does not reach both queues")
	}
	if c := l.condition("queues"); c.Level != "warn" ||
		!strings.Contains(c.Detail, "front0 receives on 2 queues and 1 are served") {
		t.Errorf("condition %+v", c)
	}
}

// TestSourceOnNoInterface: a source address of the gateway's own. The kernel sends
// to us what it gets for it.
func TestSourceOnNoInterface(t *testing.T) {
	t.Parallel()
	const source = "198.51.100.7"
	l := newLab(t, labConfig{Config: topo.Config{Queues: 2}, options: "snat: {addresses: [" + source + "]}\n",
		prepare: func(l *lab) {
			gateway := l.Gateway.Interfaces[len(l.Gateway.Interfaces)-1].Addr4.Addr()
			err := l.Backends[0].Run(func() error {
				return netlink.RouteAdd(&netlink.Route{Dst: &net.IPNet{IP: net.ParseIP(source),
					Mask: net.CIDRMask(32, 32)}, Gw: gateway.AsSlice()})
			})
			if err != nil {
				l.t.Fatal(err)
			}
		}})
	r, err := l.Clients[0].HTTP(l.ctx, topo.HTTPLoad{Targets: []netip.AddrPort{at(vip4, webPort)}, Requests: 100,
		Concurrency: 2})
	if err != nil {
		t.Fatal(err)
	}
	if r.Failed() > 0 || r.Clients[source] != 100 {
		t.Errorf("errors %v, client addresses seen %v", r.Errors, r.Clients)
	}
	err = l.Gateway.Run(func() error {
		peer, err := netlink.LinkByName("sluice1")
		if err != nil {
			return err
		}
		routes, err := netlink.RouteGet(net.ParseIP(source))
		if err != nil || len(routes) != 1 || routes[0].LinkIndex != peer.Attrs().Index {
			t.Errorf("the kernel sends %s by %v, %v", source, routes, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(l.gate.Log(), "source addresses that no interface has") {
		t.Error("the log does not say so")
	}
}

// TestDrainWaitsForConnections: SIGTERM with UDP flows that live on, and nothing else.
func TestDrainWaitsForConnections(t *testing.T) {
	t.Parallel()
	l := newLab(t, labConfig{Config: topo.Config{Queues: 2}, options: "drain: {timeout: 15s}\n"})
	flows, err := l.Clients[0].OpenUDP(l.ctx, topo.FlowLoad{Targets: []netip.AddrPort{at(vip4, dnsPort)}, Flows: 10,
		Interval: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	l.within("UDP flows exist", func() bool {
		n := 0
		err := l.gate.Client.Flows(l.ctx, status.FlowFilter{Protocol: "udp", State: "UDP_ASSURED"},
			func(*status.FlowView) error { n++; return nil })
		return err == nil && n == 10
	})
	flows.Finish() // the gateway's kernel would take an ICMP error that comes once the daemon is gone for damage
	began := time.Now()
	if err := l.gate.Stop(); err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	t.Logf("stopped after %v", took.Round(time.Millisecond))
	if took > 5*time.Second {
		t.Error("the daemon waited for UDP flows")
	}
	if err := l.gate.Start(l.ctx); err != nil {
		t.Fatal(err)
	}
}
