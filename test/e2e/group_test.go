//go:build root

package e2e

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/announce/pulse"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/certs"
	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/machine"
	"sluice.dev/sluice/test/bed/topo"
)

// groupLab is a network with a group of gateways. Its routes are the test's: no router decides.
type groupLab struct {
	*topo.Net
	t     *testing.T
	ctx   context.Context
	gates []*launch.Gateway
	dir   string
	ca    *certs.Authority
}

// groupSources returns the source addresses of a gateway.
func groupSources(i int) (list []netip.Addr) {
	for j := range 2 {
		list = append(list, netip.AddrFrom4([4]byte{198, 51, 100, byte(1 + 2*i + j)}),
			netip.MustParseAddr(fmt.Sprintf("2001:db8:5::%x", 1+2*i+j)))
	}
	return list
}

func newGroupLab(t *testing.T, gateways int) *groupLab {
	t.Helper()
	l := newGroupNet(t, gateways)
	var members strings.Builder
	for i, h := range l.Gateways {
		fmt.Fprintf(&members, "  - {name: gw-%d, address: %q, sources: [", i, netip.AddrPortFrom(h.Addr4(), 9473))
		for _, a := range groupSources(i) {
			fmt.Fprintf(&members, "%q, ", a)
		}
		members.WriteString("]}\n")
	}
	for i := range l.Gateways {
		l.must(l.gateway(i, "  members:\n"+members.String(), "").Start(l.ctx))
	}
	return l
}

// announces waits until a gateway announces exactly the addresses as its sources.
func (l *groupLab) announces(i int, want []netip.Addr) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.ctx, machine.Slower(20*time.Second))
	defer cancel()
	var got []netip.Addr
	pulse.Follow(ctx, l.gates[i].PulseSocket(), func(s pulse.Sight) {
		if s.State == nil || s.State.Phase != pulse.Serving {
			return
		}
		got = nil
		for _, s := range s.State.Sources {
			got = append(got, s.Address)
		}
		if slices.Equal(got, want) {
			cancel()
		}
	}, nil)
	if !slices.Equal(got, want) {
		l.t.Errorf("gw-%d announces %v, want %v", i, got, want)
	}
}

// newGroupNet makes the network, without gateways.
func newGroupNet(t *testing.T, gateways int) *groupLab {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), machine.Slower(5*time.Minute))
	t.Cleanup(cancel)
	n, err := topo.New(topo.Config{Gateways: gateways, Backends: 2})
	if err != nil {
		t.Fatal(err)
	}
	l := &groupLab{Net: n, t: t, ctx: ctx}
	t.Cleanup(l.close)
	l.dir, err = os.MkdirTemp("", "sluice-group-")
	l.must(err)
	for _, b := range n.Backends {
		_, err := b.Serve(backendPort)
		l.must(err)
	}
	l.ca, err = certs.New()
	l.must(err)
	return l
}

// gateway makes the next gateway, i. group has the members, as YAML, options other settings.
func (l *groupLab) gateway(i int, group, options string) *launch.Gateway {
	l.t.Helper()
	name := fmt.Sprintf("gw-%d", i)
	dir := filepath.Join(l.dir, name)
	l.must(os.Mkdir(dir, 0o700))
	l.must(l.ca.Write(dir, name))
	g, err := launch.New(launch.Config{Sluice: daemonBinary, Host: l.Gateways[i], NodeName: name, Options: fmt.Sprintf(
		"%sflows: {ipv4: 65536, ipv6: 65536}\ntuning: {affinityClients: 4096}\ngroup:\n%s"+
			"  tls: {certFile: %s/tls.crt, keyFile: %s/tls.key, caFile: %s/ca.crt}\n  stateDir: %s/disk\n",
		options, group, dir, dir, dir, dir)})
	l.must(err)
	l.gates = append(l.gates, g)
	web := launch.Service{Name: "web", Port: webPort, VIPs: []string{vip4, vip6}}
	for _, b := range l.Backends {
		for _, a := range []netip.Addr{b.Addr4(), b.Addr6()} {
			web.Endpoints = append(web.Endpoints, launch.Endpoint{Addr: a, Port: backendPort, Node: "other"})
		}
	}
	l.must(g.Apply(web))
	return g
}

func (l *groupLab) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

func (l *groupLab) close() {
	for i, g := range l.gates {
		if l.t.Failed() {
			out, _ := g.Command(context.Background(), "status")
			l.t.Logf("gw-%d:\n%s\n%s", i, g.Log(), out)
		}
		if g.Running() {
			if err := g.Stop(); err != nil {
				l.t.Error(err)
			}
		}
		if err := g.Close(); err != nil {
			l.t.Error(err)
		}
	}
	if err := l.Net.Close(); err != nil {
		l.t.Error(err)
	}
	_ = os.RemoveAll(l.dir)
}

// lead sets a host's route to an address.
func lead(h *topo.Host, to netip.Addr, via netip.Addr) error {
	r := &netlink.Route{Dst: &net.IPNet{IP: to.AsSlice(), Mask: net.CIDRMask(to.BitLen(), to.BitLen())},
		Gw: via.AsSlice()}
	return h.Run(func() error { return netlink.RouteReplace(r) })
}

// vipsBy leads the client's packets to a gateway.
func (l *groupLab) vipsBy(i int) {
	l.t.Helper()
	g := l.Gateways[i]
	l.must(lead(l.Clients[0], netip.MustParseAddr(vip4), g.Addr4()))
	l.must(lead(l.Clients[0], netip.MustParseAddr(vip6), g.Addr6()))
}

// sourcesBy leads the packets of backends to a gateway's source addresses by another one.
func (l *groupLab) sourcesBy(of, by int) {
	l.t.Helper()
	back := l.Gateways[by].Interfaces[1]
	for _, b := range l.Backends {
		for _, a := range groupSources(of) {
			via := back.Addr4.Addr()
			if a.Is6() {
				via = back.Addr6.Addr()
			}
			l.must(lead(b, a, via))
		}
	}
}

// group waits until the status of a gateway's group satisfies a condition.
func (l *groupLab) group(i int, what string, is func(v *status.GroupView) bool) (last *status.GroupView) {
	l.t.Helper()
	err := topo.Until(l.ctx, machine.Slower(20*time.Second), 10*time.Millisecond, func(ctx context.Context) error {
		v, err := l.gates[i].Client.Status(ctx, false)
		if err != nil {
			return err
		}
		if last = v.Group; last == nil || !is(last) {
			return fmt.Errorf("it has %+v", v.Group)
		}
		return nil
	})
	if err != nil {
		l.t.Fatalf("gw-%d: not %s: %v", i, what, err)
	}
	return last
}

// inStep waits until all gateways have all flows of each other, and open source addresses.
func (l *groupLab) inStep() {
	l.t.Helper()
	for i := range l.gates {
		l.group(i, "in step", func(v *status.GroupView) bool {
			for _, m := range v.Members {
				if !m.HasOurFlows || !m.WeHaveItsFlows || m.Lag > 0 {
					return false
				}
			}
			return v.Complete && (v.Sources[0].State == "open" || v.Sources[1].State == "open")
		})
	}
}

// connect opens connections to the VIPs of both families.
func (l *groupLab) connect(flows int) *topo.Flows {
	l.t.Helper()
	load, err := l.Clients[0].OpenTCP(l.ctx, topo.FlowLoad{Flows: flows, Interval: 50 * time.Millisecond,
		Targets: []netip.AddrPort{at(vip4, webPort), at(vip6, webPort)}})
	l.must(err)
	return load
}

// TestGatewayOfGroupDies: one of two gateways is killed, and its connections go on at the other
// one, and back when it has returned: with its flow table, and after a loss of its memory.
func TestGatewayOfGroupDies(t *testing.T) {
	const flows = 200
	l := newGroupLab(t, 2)
	l.vipsBy(0)
	l.sourcesBy(0, 0)
	l.sourcesBy(1, 1)
	l.inStep()
	load := l.connect(flows)
	goOn := func(when string) {
		t.Helper()
		began := time.Now()
		l.must(load.AnsweredAgain(l.ctx, machine.Slower(20*time.Second), 2))
		for i, s := range load.States() {
			if s.Broken != nil {
				t.Errorf("%s connection %d has ended: %v", when, i, s.Broken)
			}
		}
		t.Logf("%s all connections have two more answers after %v", when, time.Since(began).Round(time.Millisecond))
	}
	goOn("at first")
	l.group(1, "with a copy of each", func(v *status.GroupView) bool { return v.Members[0].Copies == flows })
	l.inStep()
	v := l.group(0, "counting", func(v *status.GroupView) bool { return true })
	if v.Flows["protected"] == 0 {
		t.Errorf("no SYN-ACK has waited for a copy: %v", v.Flows)
	}
	t.Logf("SYN-ACKs: %v", v.Flows)

	l.must(l.gates[0].Kill())
	l.vipsBy(1)
	l.sourcesBy(0, 1)
	goOn("after the death of the first gateway")
	l.group(1, "without the other one", func(v *status.GroupView) bool { return !v.Members[0].HasOurFlows })
	more, err := l.Clients[0].OpenTCP(l.ctx, topo.FlowLoad{Flows: 20, Interval: 50 * time.Millisecond,
		Targets: []netip.AddrPort{at(vip4, webPort), at(vip6, webPort)}})
	l.must(err)
	l.must(more.AnsweredAgain(l.ctx, machine.Slower(20*time.Second), 2))

	for _, memory := range []string{"kept", "lost"} {
		if memory == "lost" {
			l.must(os.RemoveAll(l.gates[0].StateDir()))
		}
		l.must(l.gates[0].Start(l.ctx))
		l.inStep()
		l.vipsBy(0)
		l.sourcesBy(0, 0)
		goOn("when the first gateway is back, with its memory " + memory + ",")
		l.must(more.AnsweredAgain(l.ctx, machine.Slower(20*time.Second), 2))
		l.must(l.gates[0].Kill())
		l.vipsBy(1)
		l.sourcesBy(0, 1)
		goOn("after another death")
	}
	if more.Broken()+load.Broken() > 0 {
		t.Errorf("%d and %d connections have ended", load.Broken(), more.Broken())
	}
	more.Finish()
	load.Finish()
	l.must(l.gates[0].Start(l.ctx))
	l.inStep()
	for i := range l.gates {
		l.group(i, "without held ports", func(v *status.GroupView) bool { return v.HeldPorts == 0 })
	}
}

// TestAnswersWaitForCopies: the backend's answer to a SYN waits for the other gateway's copy of the
// flow. In the full form nearly all flows are copied in time.
func TestAnswersWaitForCopies(t *testing.T) {
	requests := 2000
	if full() {
		requests = 20_000
	}
	l := newGroupLab(t, 2)
	l.vipsBy(0)
	l.sourcesBy(0, 0)
	l.sourcesBy(1, 1)
	l.inStep()
	began := time.Now()
	r, err := l.Clients[0].HTTP(l.ctx, topo.HTTPLoad{Requests: requests, Concurrency: 8,
		Targets: []netip.AddrPort{at(vip4, webPort), at(vip6, webPort)}})
	l.must(err)
	took := time.Since(began)
	if r.Failed() > 0 {
		t.Errorf("of %d requests failed: %v", requests, r.Errors)
	}
	v := l.group(0, "counting", func(v *status.GroupView) bool { return true })
	n := uint64(0)
	for _, flows := range v.Flows {
		n += flows
	}
	t.Logf("%.0f new flows a second; SYN-ACKs %v; they waited for %d us (median) and %d us (p99)",
		float64(requests)/took.Seconds(), v.Flows, v.AnswerWait.MedianMicros, v.AnswerWait.P99Micros)
	if n != uint64(requests) {
		t.Errorf("%d SYN-ACKs have left, want %d", n, requests)
	}
	// Clients and backends have the same CPUs as the gateways, and want all of them.
	if share := float64(v.Flows["protected"]) / float64(n); full() && share < 0.9 {
		t.Errorf("others had a copy of %.4f of the flows in time, want 0.9", share)
	}
}

// TestGatewayOfGroupHandsOver: a hand-over keeps connections, and the next process is in step with
// the other gateway, which has all flows when it takes over from there.
func TestGatewayOfGroupHandsOver(t *testing.T) {
	const flows = 100
	l := newGroupLab(t, 2)
	l.vipsBy(0)
	l.sourcesBy(0, 0)
	l.sourcesBy(1, 1)
	l.inStep()
	load := l.connect(flows)
	l.must(load.AnsweredAgain(l.ctx, machine.Slower(20*time.Second), 2))
	for range 2 {
		l.must(l.gates[0].LaunchNext())
		l.must(l.gates[0].TakenOver(l.ctx))
		l.must(load.AnsweredAgain(l.ctx, machine.Slower(20*time.Second), 2))
		l.inStep()
	}
	l.group(1, "with a copy of each", func(v *status.GroupView) bool { return v.Members[0].Copies == flows })
	l.must(l.gates[0].Kill())
	l.vipsBy(1)
	l.sourcesBy(0, 1)
	l.must(load.AnsweredAgain(l.ctx, machine.Slower(20*time.Second), 2))
	if n := load.Broken(); n > 0 {
		t.Errorf("%d connections have ended", n)
	}
	load.Finish()
	l.must(l.gates[0].Start(l.ctx))
	l.inStep()
}

// reload writes the configuration of a gateway, waits until a change of the group is pending, and
// lets the next process take over with it.
func (l *groupLab) reload(i int, text, pending string) {
	l.t.Helper()
	g := l.gates[i]
	l.must(g.WriteConfiguration(text))
	l.must(topo.Until(l.ctx, machine.Slower(20*time.Second), 10*time.Millisecond, func(ctx context.Context) error {
		v, err := g.Client.Status(ctx, false)
		if err != nil {
			return err
		}
		if all := strings.Join(v.Config.NeedRestart, "\n"); !strings.Contains(all, pending) {
			return fmt.Errorf("pending are %q, error %q, want %q", all, v.Config.Error, pending)
		}
		return nil
	}))
	l.must(g.LaunchNext())
	l.must(g.TakenOver(l.ctx))
}

// TestGroupIsSwitchedOn: gateways become a group, and stop to be one, by hand-overs with another
// configuration, under connections. Certificates of another authority are used for the next
// connection.
func TestGroupIsSwitchedOn(t *testing.T) {
	const flows = 50
	l := newGroupLab(t, 2)
	l.vipsBy(0)
	l.sourcesBy(0, 0)
	l.sourcesBy(1, 1)
	l.inStep()
	open := func() *topo.Flows {
		load := l.connect(flows)
		l.must(load.AnsweredAgain(l.ctx, machine.Slower(20*time.Second), 2))
		return load
	}
	goOn := func(when string, load *topo.Flows) {
		t.Helper()
		l.must(load.AnsweredAgain(l.ctx, machine.Slower(20*time.Second), 2))
		if n := load.Broken(); n > 0 {
			t.Errorf("%s %d connections have ended", when, n)
		}
	}
	grouped := open()
	for i, g := range l.gates {
		alone, _, _ := strings.Cut(g.Configuration(), "group:")
		l.reload(i, alone, fmt.Sprintf("group.members[gw-%d]: is removed when the daemon restarts", 1-i))
		if v, err := g.Client.Status(l.ctx, false); err != nil || v.Group != nil {
			t.Errorf("gw-%d: %v, it has a group: %+v", i, err, v.Group)
		}
	}
	goOn("without a group", grouped)
	l.announces(0, groupSources(0)[:2]) // of both families
	alone := open()
	for i, g := range l.gates {
		l.reload(i, g.Configuration(), fmt.Sprintf("group.members[gw-%d]: is added when the daemon restarts", 1-i))
	}
	l.inStep()
	goOn("with a group again", grouped)
	goOn("with a group again", alone)
	again := open()
	l.group(1, "with copies", func(v *status.GroupView) bool { return v.Members[0].Copies >= flows })

	next, err := certs.New()
	l.must(err)
	for _, trusted := range [][]*certs.Authority{{l.ca, next}, {next}} { // first the authorities of both
		for i := range l.gates {
			name := fmt.Sprintf("gw-%d", i)
			l.must(next.WriteSigned(filepath.Join(l.dir, name), certs.Template(name), trusted...))
		}
		l.inStep()
		l.must(l.gates[1].Kill())
		l.must(l.gates[1].Start(l.ctx))
		l.inStep()
	}
	l.must(l.gates[0].Kill())
	l.vipsBy(1)
	l.sourcesBy(0, 1)
	goOn("after the death of a gateway", again)
	for _, load := range []*topo.Flows{grouped, alone, again} {
		load.Finish()
	}
	l.must(l.gates[0].Start(l.ctx))
	l.inStep()
}
