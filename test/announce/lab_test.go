//go:build root

package announce

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"

	"sluice.dev/sluice/announce/view"
	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/machine"
	"sluice.dev/sluice/test/bed/routers"
	"sluice.dev/sluice/test/bed/topo"
)

const (
	vip4, vip6 = "203.0.113.10", "2001:db8:f::10"
	node       = "gateway"
	port       = 8080
)

var (
	packages  *routers.Packages
	announcer string
	gateway   string
)

func full() bool { return os.Getenv("SLUICE_ANNOUNCE") == "full" }

// onlyFull skips a test that takes too long to run with every change.
func onlyFull(t *testing.T) {
	t.Helper()
	if !full() {
		t.Skip("takes long: SLUICE_ANNOUNCE=full, or make -C test announce")
	}
}

// runs is how often a failure is repeated.
func runs() int {
	if full() {
		return 10
	}
	return 1
}

// few returns a number in full runs, and fewer otherwise.
func few(many, less int) int {
	if full() {
		return many
	}
	return less
}

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	fail := func(err error) int { fmt.Fprintln(os.Stderr, err); return 1 }
	dir, err := os.MkdirTemp("", "sluice-announce-")
	if err != nil {
		return fail(err)
	}
	defer os.RemoveAll(dir)
	var building errgroup.Group
	building.Go(func() (err error) { gateway, err = launch.Build(dir, false); return err })
	building.Go(func() (err error) { announcer, err = launch.BuildCommand(dir, "sluice-announcer"); return err })
	if err := building.Wait(); err != nil {
		return fail(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	if packages, err = routers.Fetch(ctx, os.Stderr); err != nil {
		return fail(err)
	}
	return m.Run()
}

// lab is a network with a gateway that forwards, a router in front of it, and an announcer.
type lab struct {
	*topo.Net
	t      *testing.T
	ctx    context.Context
	kind   string // of the router
	gate   *launch.Gateway
	router *routers.Router
	dir    string // state directory of the announcer
	ours   *launch.Announcer
	closed bool
}

// config has the differences between labs.
type config struct {
	kind    string   // bird, frr
	flags   []string // of the announcer
	options string   // of the gateway
	far     bool     // another router is between the gateway and the client's host, where BIRD or FRR runs
}

func newLab(t *testing.T, c config) *lab {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), machine.Slower(time.Duration(few(10, 3))*time.Minute))
	t.Cleanup(cancel)
	go latenessOf(t).Watch(ctx)
	n, err := topo.New(topo.Config{Router: c.far})
	must(t, err)
	dir, err := os.MkdirTemp("", "sluice-announce-") // short, for the paths of sockets
	must(t, err)
	l := &lab{Net: n, t: t, ctx: ctx, kind: c.kind, dir: dir}
	t.Cleanup(l.close)
	_, err = n.Backends[0].Serve(port)
	must(t, err)
	// The client has no other routes than the router's.
	must(t, n.Clients[0].Run(func() error {
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			routes, err := netlink.RouteList(nil, family)
			if err != nil {
				return err
			}
			for i := range routes {
				if d := routes[i].Dst; d == nil || d.IP.IsUnspecified() {
					if err := netlink.RouteDel(&routes[i]); err != nil {
						return err
					}
				}
			}
		}
		return nil
	}))
	l.gate, err = launch.New(launch.Config{Sluice: gateway, Host: n.Gateway, NodeName: node,
		Options: "flows: {ipv4: 65536, ipv6: 65536}\ntuning: {affinityClients: 4096}\n" + c.options})
	must(t, err)
	l.ours = &launch.Announcer{Path: announcer, Host: n.Gateway, Gateway: l.gate, Node: node, Dir: dir,
		Args: append([]string{"--config", l.objects()}, c.flags...)}
	l.apply(launch.Service{Name: "web", Port: port, VIPs: []string{vip4, vip6}})
	must(t, l.gate.Start(ctx))
	return l
}

// apply writes a Service with the backend as its endpoint.
func (l *lab) apply(s launch.Service) {
	l.t.Helper()
	b := l.Backends[0]
	if s.Endpoints == nil {
		for _, a := range []netip.Addr{b.Addr4(), b.Addr6()} {
			s.Endpoints = append(s.Endpoints, launch.Endpoint{Addr: a, Port: port, Node: "other"})
		}
	}
	must(l.t, l.gate.Apply(s))
}

// startRouter starts BIRD or FRR with its configuration.
func (l *lab) startRouter(bird, frr string) {
	l.t.Helper()
	dir := filepath.Join(l.dir, "router")
	must(l.t, os.MkdirAll(dir, 0o700))
	var err error
	if l.kind == "bird" {
		l.router, err = packages.BIRD(l.Clients[0], dir, l.fill(bird))
	} else {
		l.router, err = packages.FRR(l.Clients[0], dir, l.fill(frr))
	}
	must(l.t, err)
}

// fill puts addresses into a configuration.
func (l *lab) fill(text string) string {
	return strings.NewReplacer("GATEWAY4", l.Gateway.Addr4().String(), "GATEWAY6", l.Gateway.Addr6().String(),
		"CLIENT4", l.Clients[0].Addr4().String(), "CLIENT6", l.Clients[0].Addr6().String()).Replace(text)
}

// write replaces the announcer's objects.
func (l *lab) write(text string) {
	l.t.Helper()
	path := l.objects()
	must(l.t, os.WriteFile(path+".new", []byte(l.fill(text)), 0o600))
	must(l.t, os.Rename(path+".new", path))
}

// objects is the announcer's file.
func (l *lab) objects() string { return filepath.Join(l.dir, "objects.yaml") }

// start starts the announcer.
func (l *lab) start() {
	l.t.Helper()
	must(l.t, l.ours.Start())
}

// forget ends a lab before its test ends, so that the machine is free for the next one.
func (l *lab) forget() {
	l.close()
	l.closed = true
}

func (l *lab) close() {
	if l.closed {
		return
	}
	if l.t.Failed() && l.ours != nil {
		l.t.Logf("announcer:\n%s", l.ours.Log())
		if v, err := l.ours.Ask(l.ctx); err == nil {
			var b bytes.Buffer
			_ = view.Print(&b, v)
			l.t.Logf("status:\n%s", b.String())
		}
		if l.router != nil {
			l.t.Logf("router:\n%s", l.router.Log())
			for _, command := range map[string][]string{"bird": {"show protocols all", "show route all"},
				"frr": {"show bgp ipv4 unicast", "show bgp ipv6 unicast", "show bgp neighbors"}}[l.kind] {
				out, err := l.router.Ask(l.ctx, command)
				l.t.Logf("%s: %v\n%s", command, err, out)
			}
		}
	}
	if l.ours != nil {
		check(l.t, l.ours.Stop())
	}
	if l.router != nil {
		check(l.t, l.router.Stop())
	}
	if l.gate != nil {
		if l.gate.Running() {
			check(l.t, l.gate.Stop())
		}
		check(l.t, l.gate.Close())
	}
	check(l.t, l.Net.Close())
	check(l.t, os.RemoveAll(l.dir))
}

// within waits until a condition holds, and returns how long that took.
func (l *lab) within(most time.Duration, what string, is func() (bool, error)) time.Duration {
	l.t.Helper()
	begin := time.Now()
	err := topo.Until(l.ctx, machine.Slower(most), 2*time.Millisecond, func(context.Context) error {
		select {
		case <-l.ours.Ended():
			return topo.Final(fmt.Errorf("the announcer has ended: %w", l.ours.Err()))
		default:
		}
		yes, err := is()
		if yes {
			return nil
		}
		if err == nil {
			err = errors.New("it is not so")
		}
		return err
	})
	if err != nil {
		l.t.Fatalf("%s: not within %v: %v", what, most, err)
	}
	return time.Since(begin)
}

// routed waits until the router's kernel has a route, or no longer has it.
func (l *lab) routed(prefix string, want bool, most time.Duration) time.Duration {
	l.t.Helper()
	p := netip.MustParsePrefix(prefix)
	return l.within(most, fmt.Sprintf("route to %s: %v", prefix, want), func() (bool, error) {
		has, err := l.router.HasRoute(p)
		return has == want, err
	})
}

// asked waits until the router's answer contains all of some words.
func (l *lab) asked(command string, words ...string) {
	l.t.Helper()
	var out string
	l.within(20*time.Second, fmt.Sprintf("%q has %q", command, words), func() (bool, error) {
		var err error
		if out, err = l.router.Ask(l.ctx, command); err != nil {
			return false, err
		}
		for _, w := range words {
			if !strings.Contains(out, w) {
				return false, fmt.Errorf("no %q in %s", w, out)
			}
		}
		return true, nil
	})
}

// answers checks that a VIP answers the client.
func (l *lab) answers(vip string) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.ctx, 5*time.Second)
	defer cancel()
	_, _, err := l.Clients[0].Get(ctx, "http://"+netip.AddrPortFrom(netip.MustParseAddr(vip), port).String()+"/")
	must(l.t, err)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// both runs a test with each router, beside other tests.
func both(t *testing.T, test func(t *testing.T, kind string)) {
	t.Parallel()
	for _, kind := range []string{"bird", "frr"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			test(t, kind)
		})
	}
}

// beside runs a test that hardly depends on the router in parallel with others: with BIRD, and in
// full runs with each router.
func beside(t *testing.T, test func(t *testing.T, kind string)) {
	for _, kind := range kinds() {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			test(t, kind)
		})
	}
}

// timed runs a test that measures times alone: with BIRD, and in full runs with each router.
func timed(t *testing.T, test func(t *testing.T, kind string)) {
	for _, kind := range kinds() {
		t.Run(kind, func(t *testing.T) { test(t, kind) })
	}
}

// kinds returns the routers for tests that hardly depend on them.
func kinds() []string {
	if full() {
		return []string{"bird", "frr"}
	}
	return []string{"bird"}
}

// replaceWords replaces words, each by the next one.
func replaceWords(text string, pairs ...string) string {
	return strings.NewReplacer(pairs...).Replace(text)
}

const pools = `
apiVersion: sluice.dev/v1alpha1
kind: AddressPool
metadata: {name: public, labels: {tier: front}}
spec: {addresses: [203.0.113.0/24, "2001:db8:f::/64"]}
---
`
