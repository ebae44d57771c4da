//go:build root

package e2e

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/topo"
)

// TestUnreachable: while packets cannot reach backends or clients, /readyz, /healthz and health
// check node ports say so, and say otherwise when the interface is back. A process that a restart
// would not mend stays alive.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, link string
		oneArmed   bool
		want       string
	}{
		{"backend side", "back0", false, "no packet reaches a backend: interface back0 is down"},
		{"client side", "front0", false, "no packet reaches a client: interface front0 is down"},
		{"one-armed", "eth0", true, "no packet reaches a backend: interface eth0 is down"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLab(t, labConfig{Config: topo.Config{Queues: 1, OneArmed: c.oneArmed}, small: true})
			l.checkable()
			l.wantHealth(200, "ok")
			l.onLink(c.link, netlink.LinkSetDown)
			l.wantHealth(503, c.want)
			l.wantCondition("link", c.link)
			l.onLink(c.link, netlink.LinkSetUp)
			l.wantHealth(200, "ok")
		})
	}
}

// TestUnreachableByHostLink: somebody took the name of the host link, so that it cannot be made
// again.
func TestUnreachableByHostLink(t *testing.T) {
	t.Parallel()
	l := newLab(t, labConfig{Config: topo.Config{Queues: 1}, small: true})
	l.checkable()
	l.wantHealth(200, "ok")
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "sluice1"
	other := &netlink.Bridge{LinkAttrs: attrs}
	l.onLink("sluice0", func(link netlink.Link) error {
		if err := netlink.LinkDel(link); err != nil {
			return err
		}
		return netlink.LinkAdd(other)
	})
	l.wantHealth(503, "the host link is lost: interface sluice0 ")
	l.onLink("sluice1", netlink.LinkDel)
	l.wantHealth(200, "ok")
}

// TestOneOfSeveralDown: an interface that is down is a condition while another one of its side
// works.
func TestOneOfSeveralDown(t *testing.T) {
	t.Parallel()
	c := labConfig{Config: topo.Config{Queues: 1}, interfaces: []string{"front0", "back0", spare}, small: true}
	c.prepare = func(l *lab) { addSpare(t, l.Gateway, l.Clients[0]) }
	l := newLab(t, c)
	l.checkable()
	l.onLink(spare, netlink.LinkSetDown)
	l.wantCondition("link", spare)
	l.wantHealth(200, "ok")
	l.wantServed("by the others")
}

// checkable adds a Service with a health check node port.
func (l *lab) checkable() {
	l.apply(launch.Service{Name: "pods", Port: 81, VIPs: []string{keepVIP4}, Local: true, HealthCheck: healthPort,
		Endpoints: l.serveLocallyAnd(l.Backends...)})
	l.applied()
}

// serveLocallyAnd returns the endpoints of hosts, as if they were pods of this node.
func (l *lab) serveLocallyAnd(hosts ...*topo.Host) []launch.Endpoint {
	list := endpoints(hosts...)
	for i := range list {
		list[i].Node = gatewayNode
	}
	return list
}

// wantHealth asks from the gateway itself: the way of clients may be what is down.
func (l *lab) wantHealth(code int, why string) {
	l.t.Helper()
	for _, c := range []struct {
		port uint16
		path string
	}{{9470, "/readyz"}, {10256, "/healthz"}, {healthPort, "/"}} {
		at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), c.port)
		l.within(c.path+" to change", func() bool {
			got, body, err := l.healthFrom(l.Gateway, at, c.path)
			return err == nil && got == code && (c.path == "/" || code == 200 || strings.Contains(body, why))
		})
	}
	if code, body, err := l.healthFrom(l.Gateway, netip.MustParseAddrPort("127.0.0.1:10256"), "/livez"); code != 200 {
		l.t.Errorf("/livez: %d %s %v", code, body, err)
	}
}

func (l *lab) wantCondition(name, about string) {
	l.t.Helper()
	l.within("the condition", func() bool {
		st, err := l.gate.Client.Status(l.ctx, false)
		return err == nil && slices.ContainsFunc(st.Conditions, func(c status.ConditionView) bool {
			return c.Name == name && c.Level == "fail" && strings.Contains(c.Detail, about)
		})
	})
}
