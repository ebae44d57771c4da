//go:build root

package e2e

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/test/bed/topo"
)

// TestDirectReturnUnderChanges: what changes around flows with direct return breaks none of them: a
// hand-over, a table of another size after kill -9, and a Service that changes from NAT to direct
// return and back, except as documented. Fragments reach the node in any order.
func TestDirectReturnUnderChanges(t *testing.T) {
	t.Parallel()
	l, _ := directLab(t, false, handsOver)
	tcp := []netip.AddrPort{at(keepVIP4, directPort), at(keepVIP6, directPort)}
	open := func(n int) *topo.Flows {
		t.Helper()
		load := topo.FlowLoad{Targets: tcp, Flows: n, Interval: 200 * time.Millisecond}
		flows, err := l.Clients[0].OpenTCP(l.ctx, load)
		if err != nil {
			t.Fatal(err)
		}
		return flows
	}
	flows := open(120)
	// Most flows are now on nodes that the hash would not give them.
	l.apply(directServices(l.Backends[1:2]...)...)
	l.applied()
	answered := func(flows *topo.Flows, after string) {
		t.Helper()
		if err := flows.AnsweredAgain(l.ctx, 20*time.Second, 2); err != nil {
			t.Errorf("after %s: %v, %d broken", after, err, flows.Broken())
		}
	}
	answered(flows, "endpoints went")
	l.takeOver()
	answered(flows, "a hand-over")
	was := l.gate.Configuration()
	changed := strings.Replace(was, "flows: {ipv4: 65536, ipv6: 65536}", "flows: {ipv4: 131072, ipv6: 32768}", 1)
	if changed == was {
		t.Fatal("the configuration has another table")
	}
	if err := l.gate.WriteConfiguration(changed); err != nil {
		t.Fatal(err)
	}
	l.killAndStart()
	l.applied()
	answered(flows, "kill -9 and a table of another size")
	if r := flows.Finish(); r.Failed() > 0 || flows.Broken() > 0 {
		t.Errorf("%d broken, %v", flows.Broken(), r)
	}
	l.directFragments()

	nat := directServices(l.Backends[:directNodes]...)
	for i := range nat {
		nat[i].Local, nat[i].Annotations = false, nil
	}
	l.apply(nat...)
	l.applied()
	translated := open(120)
	l.apply(directServices(l.Backends[:directNodes]...)...)
	l.applied()
	answered(translated, "NAT became direct return")
	flows = open(120)
	l.apply(nat...)
	l.applied()
	answered(translated, "direct return became NAT")
	answered(open(120), "new connections by NAT")
	if r := translated.Finish(); r.Failed() > 0 || translated.Broken() > 0 {
		t.Errorf("%d translated ones broken, %v", translated.Broken(), r)
	}
	flows.Finish() // they end by an RST: docs/client-address.md
	l.handOverNoMore()
}

// directFragments sends datagrams of 4 KiB in three fragments to a direct Service.
func (l *lab) directFragments() {
	l.t.Helper()
	l.apply(directServices(l.Backends[:directNodes]...)...)
	l.applied()
	client := l.Clients[0]
	w := openWire(l.t, client, l.Gateway.Interfaces[0].MAC)
	for _, c := range []struct {
		src netip.Addr
		vip string
	}{{client.Addr4(), keepVIP4}, {client.Addr6(), keepVIP6}} {
		for n, order := range [][]int{{0, 1, 2}, {2, 1, 0}, {1, 0, 2}, {0, 2, 1}} {
			conn, err := client.ListenPacket("udp", netip.AddrPortFrom(c.src, 0).String())
			if err != nil {
				l.t.Fatal(err)
			}
			payload := fmt.Sprintf("%06d", n) + strings.Repeat("x", 4090)
			from := conn.LocalAddr().(*net.UDPAddr).AddrPort()
			whole := headertest.UDP(from.String(), at(c.vip, directUDP).String(), payload).Bytes()
			parts := headertest.Split(whole, 1400, uint32(7000+n))
			for _, at := range order {
				if err := w.send(parts[at]); err != nil {
					l.t.Fatal(err)
				}
			}
			if !answer(conn, payload) {
				l.t.Errorf("%s, order %v: no answer", c.vip, order)
			}
			conn.Close()
		}
	}
}
