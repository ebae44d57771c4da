//go:build root

package e2e

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/test/bed/topo"
)

// toVIPs opens connections to the VIPs of both families.
func (l *lab) toVIPs(open int) *topo.Flows {
	l.t.Helper()
	return l.to(open, at(vip4, webPort), at(vip6, webPort))
}

func (l *lab) to(open int, targets ...netip.AddrPort) *topo.Flows {
	l.t.Helper()
	flows, err := l.Clients[0].OpenTCP(l.ctx, topo.FlowLoad{Targets: targets, Flows: open,
		Interval: 100 * time.Millisecond})
	if err != nil {
		l.t.Fatal(err)
	}
	return flows
}

// TestSettingsKeepFlows: connections go on under settings that no longer have what they depend on.
func TestSettingsKeepFlows(t *testing.T) {
	t.Parallel()
	const open = 100
	const own = "snat: {addresses: [198.51.100.200, '2001:db8:5::200']}\n"
	const shared = "snat: {addresses: [10.71.0.1, 'fd71::1']}\n"
	const links = "hostLink: {addresses: [192.0.0.1/30, 'fd73:6c75:6963:6500::1/126']}\n"
	const ports = "proxy: {strictSourceRanges: false}\n"
	const noPorts = "nodeAddresses: [192.0.2.99/32]\nproxy: {externalIPs: [192.0.2.99/32]}\n"
	back := []string{"front0"} // backends are reached by the kernel
	for _, tc := range []struct {
		name       string
		interfaces []string
		was, next  string
		do         func(*lab)
	}{
		{"hand-over, no source addresses of its own", nil, own, "", (*lab).next},
		{"kill -9, no source addresses of its own", nil, own, "", (*lab).crash},
		{"hand-over, source addresses of its own", nil, shared, own, (*lab).next},
		{"kill -9, source addresses of its own", nil, shared, own, (*lab).crash},
		{"kill -9, other addresses of the host link", back, links,
			"hostLink: {addresses: [192.0.0.5/30, 'fd73:6c75:6963:6501::1/126']}\n", (*lab).crash},
		{"the node is given the source addresses", nil, own, own + "log: {level: debug}\n", (*lab).ownSources},
		{"reload, no external IPs and node ports", nil, ports, noPorts, (*lab).reloaded},
		{"hand-over, no external IPs and node ports", nil, ports, noPorts, (*lab).next},
		{"kill -9, no external IPs and node ports", nil, ports, noPorts, (*lab).crash},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, labConfig{Config: topo.Config{Backends: 2, Queues: 2}, interfaces: tc.interfaces,
				options: tc.was + handsOver, prepare: func(l *lab) {
					for _, b := range l.Backends { // replies to the gateway's own addresses come back to it
						for prefix, via := range map[string]netip.Prefix{
							"198.51.100.200/32": l.towards().Addr4, "2001:db8:5::200/128": l.towards().Addr6,
						} {
							if err := b.Route(netip.MustParsePrefix(prefix), via.Addr()); err != nil {
								t.Fatal(err)
							}
						}
					}
					if err := l.Gateway.Forward(tc.interfaces != nil); err != nil {
						t.Fatal(err)
					}
				}})
			flows := l.to(open, at(vip4, webPort), at(vip6, webPort), at(external4, webPort),
				netip.AddrPortFrom(l.Gateway.Addr4(), webNodePort), netip.AddrPortFrom(l.Gateway.Addr6(), webNodePort))
			l.reconfigure(tc.was, tc.next)
			tc.do(l)
			l.answered(flows, 5)
			l.crash()
			l.answered(flows, 5)
			fresh := l.toVIPs(20)
			l.answered(fresh, 5)
			fresh.Stop()
			l.wantUnbroken(flows, open, tc.name)
			l.handOverNoMore()
		})
	}
}

// reloaded waits until the daemon has read the configuration.
func (l *lab) reloaded() {
	l.t.Helper()
	l.logged("configuration changed", 1)
	l.applied()
}

// ownSources gives the node the source addresses of its flows.
func (l *lab) ownSources() {
	l.t.Helper()
	if err := l.Gateway.AddAddresses(l.towards().Name, netip.MustParsePrefix("198.51.100.200/32"),
		netip.MustParsePrefix("2001:db8:5::200/128")); err != nil {
		l.t.Fatal(err)
	}
}

// towards is the gateway's interface to the backends.
func (l *lab) towards() topo.Interface {
	return l.Gateway.Interfaces[len(l.Gateway.Interfaces)-1]
}

// TestSettingsThatCannotKeepFlows: a start that cannot serve the flows of the process before says
// so, with their number, or is refused before it changes anything.
func TestSettingsThatCannotKeepFlows(t *testing.T) {
	t.Parallel()
	const open = 50
	l := newLab(t, labConfig{Config: topo.Config{Backends: 2, Queues: 2}, small: true, options: handsOver})
	flows := l.toVIPs(open)
	was := l.gate.Configuration()
	put := func(text string) {
		t.Helper()
		if err := l.gate.WriteConfiguration(text); err != nil {
			t.Fatal(err)
		}
	}

	// Another name of the host link: refused, and the flows go on when it is taken back.
	if err := l.gate.Kill(); err != nil {
		t.Fatal(err)
	}
	put(strings.Replace(was, "tuning: {", "tuning: {hostLinkName: other, ", 1))
	if err := l.gate.Start(l.ctx); err == nil || !strings.Contains(l.gate.Log(), "restore tuning.hostLinkName") {
		t.Fatalf("started, or another reason: %v\n%s", err, l.gate.Log())
	}
	put(was)
	if err := l.gate.Start(l.ctx); err != nil {
		t.Fatal(err)
	}
	l.answered(flows, 5)

	// Without the clients' interface: the status counts them. They go on when it is back.
	front, back := l.Gateway.Interfaces[0].Name, l.towards().Name
	if err := l.gate.Kill(); err != nil {
		t.Fatal(err)
	}
	put(strings.Replace(was, "- name: "+front+"\n", "", 1))
	if err := l.gate.Start(l.ctx); err != nil {
		t.Fatal(err)
	}
	if text := l.condition("flows").Detail; !strings.Contains(text, "50 flows") || !strings.Contains(text, front) ||
		strings.Contains(text, back) {
		t.Errorf("condition flows: %q", text)
	}
	l.damaged = true // the last segments of connections reach a kernel that has no VIP
	flows.Stop()
	l.handOverNoMore()
}

// TestNoHostLinkAnyMore: flows that the kernel carries on end without the host link, and the status
// counts them.
func TestNoHostLinkAnyMore(t *testing.T) {
	t.Parallel()
	const links = "hostLink: {addresses: [192.0.0.1/30, 'fd73:6c75:6963:6500::1/126']}\n"
	l := newLab(t, labConfig{Config: topo.Config{Backends: 2, Queues: 2}, small: true, interfaces: []string{"front0"},
		options: links + handsOver, prepare: func(l *lab) {
			if err := l.Gateway.Forward(true); err != nil {
				t.Fatal(err)
			}
		}})
	flows := l.toVIPs(20)
	l.damaged = true // without a gateway, segments of the connections reach a kernel that has no VIP
	if err := l.gate.Kill(); err != nil {
		t.Fatal(err)
	}
	l.reconfigure(links, "hostLink: {addresses: []}\n")
	if err := l.gate.Start(l.ctx); err != nil {
		t.Fatal(err)
	}
	if text := l.condition("flows").Detail; !strings.Contains(text, "20 flows") {
		t.Errorf("condition flows: %q", text)
	}
	flows.Stop()
	if err := l.gate.Kill(); err != nil { // a process with the host link removes it at its end
		t.Fatal(err)
	}
	if err := l.gate.WriteConfiguration(l.gate.Configuration()); err != nil {
		t.Fatal(err)
	}
	if err := l.gate.Start(l.ctx); err != nil {
		t.Fatal(err)
	}
	l.handOverNoMore()
}

// TestStateDirOfAnother: a start says that the flow table is missing of a process whose programs
// are at work.
func TestStateDirOfAnother(t *testing.T) {
	t.Parallel()
	l := newLab(t, labConfig{Config: topo.Config{Backends: 1, Queues: 1}, small: true, options: handsOver})
	flows := l.toVIPs(10)
	if text := l.condition("flow-table").Detail; text != "" {
		t.Errorf("at the first start: %q", text)
	}
	if err := l.gate.Kill(); err != nil {
		t.Fatal(err)
	}
	table := filepath.Join(l.gate.StateDir(), "flows") // as with another stateDir
	if err := os.Rename(table, table+".away"); err != nil {
		t.Fatal(err)
	}
	if err := l.gate.Start(l.ctx); err != nil {
		t.Fatal(err)
	}
	if text := l.condition("flow-table").Detail; !strings.Contains(text, "start again with that stateDir") {
		t.Errorf("condition flow-table: %q", text)
	}
	flows.Stop()
	if err := os.Remove(table + ".away"); err != nil {
		t.Fatal(err)
	}
	l.handOverNoMore()
}
