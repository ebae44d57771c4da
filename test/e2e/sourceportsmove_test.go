//go:build root

package e2e

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/test/bed/topo"
)

// reconfigure replaces a part of the configuration file. A running daemon reads it: what takes a
// restart stays.
func (l *lab) reconfigure(from, to string) {
	l.t.Helper()
	was := l.gate.Configuration()
	now := strings.Replace(was, from, to, 1)
	if now == was {
		l.t.Fatalf("the configuration has no %q", from)
	}
	if err := l.gate.WriteConfiguration(now); err != nil {
		l.t.Fatal(err)
	}
}

// crash ends the daemon by kill -9 and starts another one.
func (l *lab) crash() {
	l.t.Helper()
	if err := l.gate.Kill(); err != nil {
		l.t.Fatal(err)
	}
	if err := l.gate.Start(l.ctx); err != nil {
		l.t.Fatal(err)
	}
}

// TestSourcePortsMove: connections and datagrams of both families go on when the next process has
// other source ports, by a hand-over and after a crash: all of them elsewhere, or half of them.
// New connections work meanwhile.
func TestSourcePortsMove(t *testing.T) {
	t.Parallel()
	const open = 200
	const first = "snat: {ports: 20000-20999}\n"
	for _, step := range []struct {
		name string
		next string
		do   func(*lab)
	}{
		{"hand-over, other ports", "snat: {ports: 22000-22999}\n", (*lab).next},
		{"hand-over, half of the ports", "snat: {ports: 20500-21499}\n", (*lab).next},
		{"kill -9, other ports", "snat: {ports: 22000-22999}\n", (*lab).crash},
		{"kill -9, half of the ports", "snat: {ports: 20500-21499}\n", (*lab).crash},
	} {
		t.Run(step.name, func(t *testing.T) {
			l := newLab(t, labConfig{Config: topo.Config{Backends: 2, Queues: 2}, small: true,
				options: first + handsOver})
			client := l.Clients[0]
			flows, err := client.OpenTCP(l.ctx, topo.FlowLoad{Targets: []netip.AddrPort{at(vip4, webPort),
				at(vip6, webPort)}, Flows: open, Interval: 100 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			datagrams, err := client.OpenUDP(l.ctx, topo.FlowLoad{Targets: []netip.AddrPort{at(vip4, dnsPort),
				at(vip6, dnsPort)}, Flows: 20, Interval: 100 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			fresh := l.hammer(at(vip4, webPort), time.Millisecond)
			l.reconfigure(first, step.next)
			step.do(l)
			l.answered(flows, 5)
			l.answered(datagrams, 5)
			if r := fresh.stop(t); r.Failed() > 0 {
				t.Errorf("new connections: %v", r.Errors)
			}
			l.crash() // what stays for the flows outlives the next process, too
			l.answered(flows, 5)
			datagrams.Stop()
			l.wantUnbroken(flows, open, step.name)
			l.handOverNoMore()
		})
	}
}
