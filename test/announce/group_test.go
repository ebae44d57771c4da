//go:build root

package announce

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"sluice.dev/sluice/test/bed/certs"
	"sluice.dev/sluice/test/bed/machine"
	"sluice.dev/sluice/test/bed/topo"
)

// sourcesOf are the networks of the source addresses of groupOptions.
const sources4, sources6 = "198.18.0.0/24", "2001:db8:18::/64"

// groupOptions configures a group of the two gateways of a segment, with their certificates.
func groupOptions(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sluice-group-")
	must(t, err)
	t.Cleanup(func() { check(t, os.RemoveAll(dir)) })
	authority, err := certs.New()
	must(t, err)
	text := "group:\n  members:\n"
	for i, address := range []string{"10.71.0.1", "10.71.0.11"} {
		name := fmt.Sprintf("gateway-%d", i)
		must(t, os.Mkdir(filepath.Join(dir, name), 0o700))
		must(t, authority.Write(filepath.Join(dir, name), name))
		text += fmt.Sprintf("  - {name: %s, address: '%s:9473', sources: [198.18.0.%d, 198.18.0.%d, "+
			"'2001:db8:18::%d', '2001:db8:18::%d']}\n", name, address, 2*i, 2*i+1, 2*i, 2*i+1)
	}
	return text + fmt.Sprintf("  tls: {certFile: %[1]s/MEMBER/tls.crt, keyFile: %[1]s/MEMBER/tls.key, caFile: "+
		"%[1]s/MEMBER/ca.crt}\n  stateDir: %[1]s/MEMBER/disk\n", dir)
}

// TestGroup: a router spreads connections over two gateways of a group, of which each is killed and
// comes back. The router's routes decide where packets go, and no connection ends.
func TestGroup(t *testing.T) {
	timed(t, func(t *testing.T, kind string) {
		s := newRoutedOf(t, kind, 1, groupOptions(t), "--hold", "30s")
		// The backend's packets pass the router, too.
		must(t, s.client.Forward(true))
		back := s.Backends[0]
		for host, names := range map[*topo.Host][]string{
			s.client: {"net.ipv4.conf.all.send_redirects", "net.ipv4.conf.eth0.send_redirects"},
			back:     {"net.ipv6.conf.all.accept_redirects", "net.ipv6.conf.eth0.accept_redirects"},
		} {
			for _, name := range names {
				must(t, host.SetSysctl(name, "0"))
			}
		}
		must(t, back.Route(netip.MustParsePrefix(sources4), s.client.Addr4()))
		must(t, back.Route(netip.MustParsePrefix(sources6), s.client.Addr6()))
		a4, a6 := near(0)
		one, other := s.gateways[0], s.gateways[1]
		address := func(member, i int) (list []netip.Addr) {
			return []netip.Addr{netip.MustParseAddr(fmt.Sprintf("198.18.0.%d", 2*member+i)),
				netip.MustParseAddr(fmt.Sprintf("2001:db8:18::%d", 2*member+i))}
		}
		// A gateway that is lost before others have its flows is a second failure.
		inStep := func(m *member) error {
			v, err := m.gate.Client.Status(s.ctx, false)
			if err != nil {
				return err
			}
			for _, o := range v.Group.Members {
				if !o.HasOurFlows || !o.WeHaveItsFlows {
					return fmt.Errorf("%s: %+v", m.name, o)
				}
			}
			return nil
		}
		both := func() {
			t.Helper()
			s.within(30*time.Second, "both in step", func() error { return errors.Join(inStep(one), inStep(other)) })
			s.by(a4, 60*time.Second, one, other)
			s.by(a6, 60*time.Second, one, other)
			for i := range 2 {
				for j := range 2 {
					for _, a := range address(i, j) {
						s.by(a, 30*time.Second, s.gateways[i])
					}
				}
			}
		}
		both()
		load, err := s.client.OpenTCP(s.ctx, topo.FlowLoad{Flows: 200, Interval: 50 * time.Millisecond,
			Timeout: machine.Slower(20 * time.Second),
			Targets: []netip.AddrPort{netip.AddrPortFrom(a4, port), netip.AddrPortFrom(a6, port)}})
		must(t, err)
		goOn := func(when string) {
			t.Helper()
			began := time.Now()
			must(t, load.AnsweredAgain(s.ctx, machine.Slower(20*time.Second), 2))
			t.Logf("%s all connections have two more answers after %v", when, time.Since(began).Round(time.Millisecond))
			for i, f := range load.States() {
				if f.Broken != nil {
					t.Errorf("%s connection %d has ended: %v", when, i, f.Broken)
				}
			}
		}
		goOn("at first")
		for round := range few(10, 2) {
			m := s.gateways[round%2]
			left := s.gateways[1-round%2]
			must(t, m.gate.Kill())
			began := time.Now()
			s.by(a4, 5*time.Second, left)
			s.by(address(round%2, 0)[0], 5*time.Second, left)
			t.Logf("%s is killed, and its routes lead elsewhere after %v", m.name,
				time.Since(began).Round(time.Millisecond))
			goOn("after it")
			must(t, m.gate.Start(s.ctx))
			both()
			goOn("when it is back,")
		}
		load.Finish()
	})
}
