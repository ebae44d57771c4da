//go:build root

package announce

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/test/bed/certs"
	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/machine"
	"sluice.dev/sluice/test/bed/topo"
)

// The networks of the source addresses of a group.
const sources4, sources6 = "198.18.0.0/24", "2001:db8:18::/64"

// grouped is a segment with a group of gateways, between a client that is the router and a backend
// whose servers echo nonces.
type grouped struct {
	*routed
	load           *echoes
	echo           launch.Service
	a4             netip.Addr // VIPs
	a6             netip.Addr
	failed, resets int
	protection     map[string]uint64 // flows of processes that have ended
}

// members is the list of members of the configuration.
func members(n int) string {
	text := "group:\n  members:\n"
	for i := range n {
		host := 1
		if i > 0 {
			host = 10 + i
		}
		text += fmt.Sprintf("  - {name: gateway-%[1]d, address: '10.71.0.%[2]d:9473', sources: [198.18.0.%[3]d, "+
			"198.18.0.%[4]d, '2001:db8:18::%[3]d', '2001:db8:18::%[4]d']}\n", i, host, 2*i, 2*i+1)
	}
	return text
}

// groupOptions configures a group of gateways, with certificates for more.
func groupOptions(t *testing.T, gateways, hosts int) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sluice-group-")
	must(t, err)
	t.Cleanup(func() { check(t, os.RemoveAll(dir)) })
	authority, err := certs.New()
	must(t, err)
	for i := range hosts {
		name := fmt.Sprintf("gateway-%d", i)
		must(t, os.Mkdir(filepath.Join(dir, name), 0o700))
		must(t, authority.Write(filepath.Join(dir, name), name))
	}
	return members(gateways) + fmt.Sprintf("  tls: {certFile: %[1]s/MEMBER/tls.crt, keyFile: %[1]s/MEMBER/tls.key, "+
		"caFile: %[1]s/MEMBER/ca.crt}\n  stateDir: %[1]s/MEMBER/disk\n", dir)
}

// echoPort is the port of the servers that echo; VIPs have another one.
const echoPort = 8090

// newGroup starts gateways, with hosts for more of them.
func newGroup(t *testing.T, kind string, gateways, hosts int, options string) *grouped {
	t.Helper()
	of := newSegmentOf(t, gateways, hosts, 0, groupOptions(t, gateways, hosts)+options, "--hold", "30s")
	g := &grouped{routed: newRoutedOf(t, kind, of, true), protection: map[string]uint64{}}
	g.a4, g.a6 = near(0)
	// The backend's packets pass the router, too.
	must(t, g.client.Forward(true))
	back := g.Backends[0]
	for host, names := range map[*topo.Host][]string{
		g.client: {"net.ipv4.conf.all.send_redirects", "net.ipv4.conf.eth0.send_redirects"},
		back:     {"net.ipv6.conf.all.accept_redirects", "net.ipv6.conf.eth0.accept_redirects"},
	} {
		for _, name := range names {
			must(t, host.SetSysctl(name, "0"))
		}
	}
	must(t, back.Route(netip.MustParsePrefix(sources4), g.client.Addr4()))
	must(t, back.Route(netip.MustParsePrefix(sources6), g.client.Addr6()))
	// Two endpoints of each family.
	i := back.Interfaces[0]
	second4, second6 := netip.MustParseAddr("10.71.0.150"), netip.MustParseAddr("fd71::150")
	must(t, back.AddAddresses(i.Name, netip.PrefixFrom(second4, i.Addr4.Bits()),
		netip.PrefixFrom(second6, i.Addr6.Bits())))
	g.echo = launch.Service{Name: "echo", Port: port, VIPs: []string{g.a4.String(), g.a6.String()}}
	var servers []netip.AddrPort
	for _, a := range []netip.Addr{back.Addr4(), back.Addr6(), second4, second6} {
		g.echo.Endpoints = append(g.echo.Endpoints, launch.Endpoint{Addr: a, Port: echoPort, Node: "other"})
		servers = append(servers, netip.AddrPortFrom(a, echoPort))
	}
	for _, m := range g.gateways {
		must(t, m.gate.Apply(g.echo))
	}
	var err error
	g.load, err = newEchoes(g.ctx, g.client, back, servers, []netip.AddrPort{netip.AddrPortFrom(g.a4, port),
		netip.AddrPortFrom(g.a6, port)})
	must(t, err)
	t.Cleanup(func() { check(t, g.load.Close()) })
	g.whole()
	return g
}

// addressesOf returns the first source address of a gateway in each family, which is open if it has
// never lost its memory.
func addressesOf(i int) []netip.Addr {
	return []netip.Addr{netip.MustParseAddr(fmt.Sprintf("198.18.0.%d", 2*i)),
		netip.MustParseAddr(fmt.Sprintf("2001:db8:18::%d", 2*i))}
}

// whole waits until all gateways are in step, and the router's routes are theirs. A gateway that is
// lost before others have its flows is a second failure.
func (g *grouped) whole() {
	g.t.Helper()
	g.inStep(g.gateways...)
	for _, vip := range []netip.Addr{g.a4, g.a6} {
		g.by(vip, 60*time.Second, g.gateways...)
	}
	for i, m := range g.gateways {
		for _, a := range addressesOf(i) {
			g.by(a, 30*time.Second, m)
			g.by(a.Next(), 30*time.Second, m)
		}
	}
}

// inStep waits until gateways have each other's flows.
func (g *grouped) inStep(gateways ...*member) {
	g.t.Helper()
	g.within(30*time.Second, "gateways in step", func() error {
		for _, m := range gateways {
			v, err := m.gate.Client.Status(g.ctx, false)
			if err != nil {
				return err
			}
			for _, o := range v.Group.Members {
				with := slices.ContainsFunc(gateways, func(m *member) bool { return m.name == o.Name })
				if with && (!o.HasOurFlows || !o.WeHaveItsFlows) {
					return fmt.Errorf("%s: %+v", m.name, o)
				}
			}
		}
		return nil
	})
}

// others returns all gateways but one.
func (g *grouped) others(but *member) (list []*member) {
	for _, m := range g.gateways {
		if m != but {
			list = append(list, m)
		}
	}
	return list
}

// lost waits until the router's routes lead around a gateway.
func (g *grouped) lost(m *member) {
	g.t.Helper()
	left := g.others(m)
	for _, vip := range []netip.Addr{g.a4, g.a6} {
		g.by(vip, 5*time.Second, left...)
	}
	for _, a := range addressesOf(slices.Index(g.gateways, m)) {
		g.within(5*time.Second, "another gateway to have "+a.String(), func() error {
			hops, err := g.router.NextHops(netip.PrefixFrom(a, a.BitLen()))
			if err == nil && (len(hops) != 1 || hops[0] == m.Addr4() || hops[0] == m.Addr6()) {
				err = fmt.Errorf("it is by %v", hops)
			}
			return err
		})
	}
}

// count adds the flows of a gateway that is about to end.
func (g *grouped) count(m *member) {
	v, err := m.gate.Client.Status(g.ctx, false)
	if err != nil {
		return
	}
	for reason, n := range v.Group.Flows {
		g.protection[reason] += n
	}
}

// step waits until all connections go on after a change, and returns the longest stall.
func (g *grouped) step(what string) time.Duration {
	g.t.Helper()
	must(g.t, g.load.AnsweredAgain(2))
	slowest, first := g.load.Slowest()
	g.t.Logf("%s: the slowest answer took %v, the slowest new connection %v", what, slowest.Round(time.Millisecond),
		first.Round(time.Millisecond))
	g.sound(what)
	return slowest
}

// sound fails the test if a connection that lasts has ended, or packets have reached another one's
// end, and counts new connections that have failed.
func (g *grouped) sound(what string) {
	g.t.Helper()
	e := g.load
	e.mu.Lock()
	defer e.mu.Unlock()
	say := func(list []error, say func(string, ...any), kind string) {
		if len(list) > 0 {
			say("%s: %d %s, of which %v", what, len(list), kind, errors.Join(list[:min(5, len(list))]...))
		}
	}
	say(e.wrong, g.t.Errorf, "connections have ended or got wrong nonces")
	say(e.failed, g.t.Logf, "new connections have failed")
	say(e.reset, g.t.Logf, "RSTs")
	if n := e.astray.Swap(0); n > 0 {
		g.t.Errorf("%s: %d packets have reached another connection's end", what, n)
	}
	g.failed += len(e.failed)
	g.resets += len(e.reset)
	e.wrong, e.failed, e.reset = nil, nil, nil
}

// finish ends the load, and reports.
func (g *grouped) finish() {
	g.t.Helper()
	g.load.Finish()
	g.sound("at the end")
	for _, m := range g.gateways {
		g.count(m)
	}
	e := g.load
	e.mu.Lock()
	defer e.mu.Unlock()
	g.t.Logf("%d lasting connections, %d new ones, of which %d have failed; %d RSTs; flows by protection: %v",
		len(e.lasting), e.opened+g.failed, g.failed, g.resets, g.protection)
	unprotected := -int(g.protection["protected"])
	for _, n := range g.protection {
		unprotected += int(n)
	}
	if e.opened == 0 || g.failed > unprotected { // also connections that have ended get RSTs
		g.t.Errorf("%d new connections have failed, with %d RSTs, and %d were unprotected", g.failed, g.resets,
			unprotected)
	}
}

// loss is a way to lose a gateway of a group, and how it comes back.
type loss struct {
	name string
	most time.Duration // bounds the longest stall
	fail func(g *grouped, m *member) (back func() error, err error)
}

func starts(m *member) func() error { return func() error { return m.gate.Start(m.s.ctx) } }

// losses begin with an end of the process, after which the routes go at once.
var losses = []loss{
	{"it is killed", 500 * time.Millisecond, func(_ *grouped, m *member) (func() error, error) {
		return starts(m), m.gate.Kill()
	}},
	{"it is not heard", time.Second, func(g *grouped, m *member) (func() error, error) { return g.Isolate(m.Host) }},
	{"it loses its flow table", 500 * time.Millisecond, func(_ *grouped, m *member) (func() error, error) {
		return starts(m), errors.Join(m.gate.Kill(), os.RemoveAll(m.gate.StateDir()))
	}},
	{"its interface is down", time.Second, func(_ *grouped, m *member) (func() error, error) {
		return func() error { return m.setLink(netlink.LinkSetUp) }, m.setLink(netlink.LinkSetDown)
	}},
	{"it leaves in order", 500 * time.Millisecond, func(_ *grouped, m *member) (func() error, error) {
		return starts(m), m.gate.Stop()
	}},
}

// list gives gateways a list of members, one after another, by hand-overs.
func (g *grouped) list(n int, gateways ...*member) {
	g.t.Helper()
	for _, m := range gateways {
		g.count(m)
		must(g.t, m.gate.WriteConfiguration(strings.Replace(m.gate.Configuration(), members(3), members(n), 1)))
		must(g.t, m.gate.LaunchNext())
		must(g.t, m.gate.TakenOver(g.ctx))
		_, err := m.gate.Applied(g.ctx)
		must(g.t, err)
		g.whole()
		g.step(fmt.Sprintf("%s has %d members", m.name, n))
	}
}

// TestGroupJoins: a fourth gateway joins a group of three, whose members get their new lists by
// hand-overs, and leaves in order.
func TestGroupJoins(t *testing.T) {
	onlyFull(t)
	timed(t, func(t *testing.T, kind string) {
		g := newGroup(t, kind, 3, 4, "")
		must(t, g.load.Open(1000, 500*time.Millisecond))
		stop := g.load.Rate(200)
		g.step("at first")
		three := g.gateways
		var fourth *member
		for range runs() {
			g.list(4, three...)
			if fourth == nil {
				g.options = strings.Replace(g.options, members(3), members(4), 1)
				g.addNext(0)
				fourth = g.gateways[3]
				must(t, fourth.gate.Apply(g.echo))
			} else {
				g.gateways = append(slices.Clip(three), fourth)
				must(t, fourth.gate.Start(g.ctx))
			}
			g.whole()
			g.step("a fourth has joined")
			g.count(fourth)
			must(t, fourth.gate.Stop())
			g.lost(fourth)
			g.gateways = three
			g.step("the fourth has left")
			g.list(3, three...)
		}
		g.gateways = append(slices.Clip(three), fourth) // for close
		stop()
		g.finish()
	})
}

// TestGroup: a router whose ECMP is not resilient spreads connections over three gateways of a
// group, of which each is lost in each way and comes back. No connection ends, old or new.
func TestGroup(t *testing.T) {
	timed(t, func(t *testing.T, kind string) {
		g := newGroup(t, kind, 3, 3, "")
		must(t, g.load.Open(few(1000, 150), machine.Slower(time.Duration(few(500, 100))*time.Millisecond)))
		stop := g.load.Rate(few(200, 40))
		g.step("at first")
		for n, l := range losses {
			var stalls []time.Duration
			for round := range few(10, 1) {
				m := g.gateways[(n+round)%len(g.gateways)]
				g.count(m)
				back, err := l.fail(g, m)
				must(t, err)
				g.lost(m)
				stalls = append(stalls, g.step(m.name+": "+l.name))
				must(t, back())
				g.whole()
				g.step(m.name + " is back")
			}
			if full() {
				report(t, l.name+", longest stall", l.most, stalls)
			}
		}
		stop()
		g.finish()
	})
}
