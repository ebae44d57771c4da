//go:build root

package announce

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/test/bed/machine"
	"sluice.dev/sluice/test/bed/topo"
)

// cut drops the packets between gateways of a group, until heal is called.
func (g *grouped) cut() (heal func()) {
	g.t.Helper()
	for _, m := range g.gateways {
		must(g.t, m.NFT(g.ctx, "table inet cut {\nchain in { type filter hook input priority 0;\n"+
			"tcp dport 9473 drop\ntcp sport 9473 drop\n}\n}\n"))
	}
	return func() {
		g.t.Helper()
		for _, m := range g.gateways {
			must(g.t, m.NFT(g.ctx, "delete table inet cut\n"))
		}
	}
}

// held returns the number of held ports of all gateways.
func (g *grouped) held() (n int) {
	g.t.Helper()
	for _, m := range g.gateways {
		v, err := m.gate.Client.Status(g.ctx, false)
		must(g.t, err)
		n += v.Group.HeldPorts
	}
	return n
}

// TestGroupCut: the network between three gateways is cut while new connections use 200 ports of
// the client again and again. Then it is whole again and a gateway is killed; or a gateway is
// killed while it is cut. No packet reaches another connection's end, and held ports become free.
func TestGroupCut(t *testing.T) {
	onlyFull(t)
	timed(t, func(t *testing.T, kind string) {
		g := newGroup(t, kind, 3, 3, "")
		must(t, g.load.Open(60, 100*time.Millisecond)) // from ports that the others do not get
		// Of each VIP the client's kernel uses a port again after a second (tcp_tw_reuse).
		must(t, g.client.SetSysctl("net.ipv4.ip_local_port_range", "10000 10259"))
		must(t, g.client.SetSysctl("net.ipv4.tcp_tw_reuse", "1"))
		stop := g.load.Rate(50)
		must(t, topo.Pause(g.ctx, 6*time.Second)) // the load has its usual number of flows
		g.step("at first")
		for i, during := range []bool{false, true} {
			heal := g.cut()
			hard := g.load.Rate(300)
			most := 0
			for end := time.Now().Add(machine.Slower(time.Minute)); time.Now().Before(end); {
				most = max(most, g.held())
				must(t, topo.Pause(g.ctx, time.Second))
			}
			if most == 0 {
				t.Error("no port is held while the network is cut")
			}
			t.Logf("up to %d ports are held while the network is cut for a minute", most)
			g.step("while the network is cut")
			m := g.gateways[i]
			fail := func(what string) {
				g.count(m)
				must(t, m.gate.Kill())
				// While others do not have its flows, its routes stay for --hold.
				if !during {
					g.lost(m)
					g.step(what)
				}
				must(t, topo.Pause(g.ctx, 2*time.Second))
				must(t, m.gate.Start(g.ctx))
				g.step(what + ", and started")
			}
			if during {
				fail(m.name + " is killed while the network is cut")
			}
			heal()
			g.whole()
			g.step("the network is whole")
			if !during {
				fail(m.name + " is killed after the network was cut")
				g.whole()
			}
			hard()
			g.within(30*time.Second, "no port to be held", func() error {
				if n := g.held(); n > 0 {
					return fmt.Errorf("%d are", n)
				}
				return nil
			})
		}
		stop()
		g.finish()
	})
}

// lossy loses a fifth of the packets on each of the four ways between client, gateways and backend.
// The gateways' own interfaces cannot: AF_XDP gets packets before netfilter.
func (g *grouped) lossy() error {
	const lost = "numgen random mod 100 < 20 drop"
	client := fmt.Sprintf(`table netdev loss {
	chain out {
		type filter hook egress device eth0 priority 0
		tcp dport %d %[2]s
		tcp sport %[3]d %[2]s
	}
}
table inet loss {
	chain in {
		type filter hook prerouting priority -300
		tcp sport %[1]d %[2]s
	}
}
`, port, lost, echoPort)
	backend := fmt.Sprintf(`table inet loss {
	chain in {
		type filter hook prerouting priority -300
		tcp dport %d %s
	}
}
`, echoPort, lost)
	return errors.Join(g.client.NFT(g.ctx, client), g.Backends[0].NFT(g.ctx, backend))
}

// spread sends each SYN of the client to a gateway by chance. Other packets go where ECMP leads.
func (g *grouped) spread() error {
	errs := []error{g.client.NFT(g.ctx, fmt.Sprintf("table inet spread {\nchain out {\n"+
		"type route hook output priority mangle;\n"+
		"tcp dport %d tcp flags & (syn|ack) == syn meta mark set numgen random mod %d offset 1\n}\n}\n", port,
		len(g.gateways)))}
	for i, m := range g.gateways {
		for _, a := range []struct{ vip, via netip.Addr }{{g.a4, m.Addr4()}, {g.a6, m.Addr6()}} {
			errs = append(errs, g.client.Run(func() error {
				l, err := netlink.LinkByName("eth0")
				if err != nil {
					return err
				}
				r := netlink.NewRule()
				r.Mark, r.Table, r.Priority, r.Family = uint32(i+1), 100+i, 100+i, netlink.FAMILY_V4
				if a.vip.Is6() {
					r.Family = netlink.FAMILY_V6
				}
				return errors.Join(netlink.RuleAdd(r), netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index,
					Table: r.Table, Gw: a.via.AsSlice(),
					Dst: &net.IPNet{IP: a.vip.AsSlice(), Mask: net.CIDRMask(a.vip.BitLen(), a.vip.BitLen())}}))
			}))
		}
	}
	return errors.Join(errs...)
}

// TestGroupHandshakes: handshakes lose a fifth of their packets on each way, and each SYN goes to a
// gateway by chance. Each connection has one backend, and none that is protected ends by an RST.
func TestGroupHandshakes(t *testing.T) {
	onlyFull(t)
	timed(t, func(t *testing.T, kind string) {
		g := newGroup(t, kind, 3, 3, "")
		must(t, g.spread())
		stop := g.load.Rate(100)
		must(t, topo.Pause(g.ctx, 5*time.Second))
		g.sound("without loss")
		must(t, g.lossy())
		must(t, topo.Pause(g.ctx, machine.Slower(100*time.Second)))
		stop()
		// With this loss some handshakes take longer than the client's patience.
		e := g.load
		e.mu.Lock()
		all := len(e.failed)
		e.failed = slices.DeleteFunc(e.failed, func(err error) bool {
			return !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE)
		})
		t.Logf("%d connections were too slow, and %d have ended by an RST", all-len(e.failed), len(e.failed))
		e.mu.Unlock()
		g.sound("with loss")
		g.finish()
	})
}
