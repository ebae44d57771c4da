//go:build root

package announce

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/announce/view"
	"sluice.dev/sluice/test/bed/certs"
	"sluice.dev/sluice/test/bed/cluster"
	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/machine"
	"sluice.dev/sluice/test/bed/reach"
	"sluice.dev/sluice/test/bed/topo"
)

// The programs of the campaign.
const (
	ofGateway    = "gateway"
	ofAnnouncer  = "announcer"
	ofController = "controller"
	ofAPIServer  = "API server"
)

// campaign is an API server, a controller, a gateway, its announcer and BIRD. Another gateway is in
// the group of the first one. It is not announced, so all packets are the first one's.
type campaign struct {
	*reach.Lab
	ctx   context.Context
	stops map[string]*launch.Stops // by program

	gate      *launch.Gateway
	host      *topo.Host // of gate
	announcer *launch.Announcer
	member    *launch.Gateway
	dir       string   // of files that gateways have on a disk
	mounted   []string // file systems of limited size

	well         bool            // no fault was reported before the last fault
	controllerAt string          // address of the controller's HTTP server
	services     int             // count of created Services
	base         netip.AddrPort  // address of a Service from before the fault
	usual        map[string]bool // names of conditions that warn without a fault
}

func newCampaign(t *testing.T) *campaign {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), machine.Slower(time.Hour))
	t.Cleanup(cancel)
	c := &campaign{ctx: ctx, stops: map[string]*launch.Stops{}, dir: t.TempDir()}
	for program, command := range map[string]string{ofGateway: "sluice", ofAnnouncer: "sluice-announcer",
		ofController: "sluice-controller"} {
		var places []launch.Stop
		for i := range faults {
			if faults[i].program == program && faults[i].stop.After != "" {
				places = append(places, faults[i].stop)
			}
		}
		var err error
		c.stops[program], err = launch.BuildWithStops(t.TempDir(), command, places)
		must(t, err)
	}
	c.start(t)
	// The first Service has health checks, so that these run all the time.
	must(t, topo.Until(ctx, machine.Slower(time.Minute), time.Second, func(context.Context) error {
		at, err := c.serve(func(s *corev1.Service, _ *discoveryv1.EndpointSlice) {
			s.Annotations = map[string]string{"sluice.dev/health-check": "tcp interval=1s"}
		})
		c.base = at
		return err
	}))
	must(t, topo.Until(ctx, machine.Slower(time.Minute), 100*time.Millisecond, c.inStep))
	v, err := c.gate.Client.Status(ctx, false)
	must(t, err)
	c.usual = map[string]bool{}
	for _, condition := range v.Conditions {
		c.usual[condition.Name] = condition.Level == "warn"
	}
	return c
}

// announcerAt is the address of the announcer's HTTP server, in its own namespace.
const announcerAt = "127.0.0.1:9472"

// stateSize is the size of the file systems for state: a few MiB more than the gateway needs.
const stateSize = "size=96m,mode=0700"

func (c *campaign) start(t *testing.T) {
	t.Helper()
	keys := filepath.Join(t.TempDir(), "key")
	must(t, os.WriteFile(keys, []byte(key+"\n"), 0o600))
	free, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	c.controllerAt = free.Addr().String()
	must(t, free.Close())
	authority, err := certs.New()
	must(t, err)
	ctx, cancel := context.WithTimeout(c.ctx, machine.Slower(2*time.Minute))
	defer cancel()
	c.Lab, err = reach.Start(ctx, reach.Config{Sluice: c.stops[ofGateway].Program(),
		Controller: c.stops[ofController].Program(), Announcer: c.stops[ofAnnouncer].Program(), Progress: os.Stderr,
		ControllerListen: c.controllerAt, Gateways: 2, Prepare: func(l *reach.Lab, g *reach.Gateway) error {
			if err := c.join(l, g, authority); err != nil || len(l.Gateways) > 1 {
				g.Use(gateway)
				return err
			}
			g.Announcer.Args = append(g.Announcer.Args, "--listen", announcerAt, "--layer2-key", keys,
				"--layer2-join", "300ms")
			return errors.Join(c.mount(g.StateDir()), c.mount(g.Announcer.StateDir()))
		}}, reach.Settings{Addresses: "198.18.0.0/20"})
	t.Cleanup(func() {
		if c.Lab != nil {
			check(t, c.Stop())
		}
		for _, dir := range c.mounted {
			check(t, unix.Unmount(dir, unix.MNT_DETACH))
		}
		if c.Lab != nil {
			check(t, c.Close())
		}
	})
	must(t, err)
	g := c.Gateways[0]
	c.gate, c.host, c.announcer, c.member = g.Gateway, g.Host, g.Announcer, c.Gateways[1].Gateway
	must(t, c.Gateways[1].Announcer.Stop())
	// BFD is slow: on a busy machine a fast session would fail without a fault.
	must(t, c.Cluster.Apply(ctx, fmt.Appendf(nil, "apiVersion: sluice.dev/v1alpha1\nkind: L2Advertisement\n"+
		"metadata: {name: all}\nspec: {interfaces: [%s]}\n---\napiVersion: sluice.dev/v1alpha1\nkind: BFDProfile\n"+
		"metadata: {name: fast}\nspec: {receiveInterval: 1000, transmitInterval: 1000, detectMultiplier: 3}\n",
		c.host.Interfaces[0].Name)))
}

// join makes a gateway a member of the group, and gives it a flow log. The first of two source
// addresses is for the flows of a gateway whose memory was not lost.
func (c *campaign) join(l *reach.Lab, g *reach.Gateway, authority *certs.Authority) error {
	const label = "sluice.dev/gateway"
	name, n := g.Host.Name, len(l.Gateways)
	node := cluster.NewNode(name, "", g.Host.Addr4(), g.Host.Addr6())
	node.Labels[label] = "true"
	node.Annotations = map[string]string{"sluice.dev/group-sources": fmt.Sprintf("198.51.100.%d,198.51.100.%d",
		2*n, 2*n+1)}
	dir := filepath.Join(c.dir, name)
	return errors.Join(l.Cluster.Put(c.ctx, node), os.Mkdir(dir, 0o700), authority.Write(dir, name),
		g.WriteConfiguration(g.Configuration()+fmt.Sprintf("flowLog: {directory: %[1]s/flows}\ngroup:\n"+
			"  nodes: %[2]s=true\n  tls: {certFile: %[1]s/%[3]s, keyFile: %[1]s/%[4]s, caFile: %[1]s/%[5]s}\n"+
			"  stateDir: %[1]s/group\n", dir, label, certs.CertFile, certs.KeyFile, certs.CAFile)))
}

// inStep fails until both gateways of the group have each other's flows.
func (c *campaign) inStep(ctx context.Context) error {
	for _, g := range []*launch.Gateway{c.gate, c.member} {
		v, err := g.Client.Status(ctx, false)
		if err != nil {
			return err
		}
		if v.Group == nil || len(v.Group.Members) != 1 || !v.Group.Members[0].HasOurFlows ||
			!v.Group.Members[0].WeHaveItsFlows {
			return fmt.Errorf("the group is not in step: %+v", v.Group)
		}
	}
	return nil
}

// change edits the Services and endpoints that serve requested.
type change func(*corev1.Service, *discoveryv1.EndpointSlice)

// newService requests a Service, and returns when its address answers the client.
func (c *campaign) newService() error {
	_, err := c.serve(nil)
	return err
}

// order requests a Service.
func (c *campaign) order(edit change) (*corev1.Service, *discoveryv1.EndpointSlice, error) {
	c.services++
	s, slice := c.Service(fmt.Sprint("more-", c.services))
	if edit != nil {
		edit(s, slice)
	}
	ctx, cancel := context.WithTimeout(c.ctx, machine.Slower(proofTime))
	defer cancel()
	_, err := c.Cluster.Client().CoreV1().Services(s.Namespace).Create(ctx, s, metav1.CreateOptions{})
	if err != nil {
		return nil, nil, err
	}
	return s, slice, c.Cluster.Put(ctx, slice)
}

// serve requests a Service, and returns its address when that answers the client.
func (c *campaign) serve(edit change) (at netip.AddrPort, err error) {
	s, _, err := c.order(edit)
	if err != nil {
		return at, err
	}
	return at, c.eventually(func(ctx context.Context) error {
		o, err := c.Cluster.Client().CoreV1().Services(s.Namespace).Get(ctx, s.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		a, err := addressOf(o)
		if err != nil {
			return err
		}
		at = netip.AddrPortFrom(a, reach.Port)
		return c.answers(ctx, at)
	})
}

// eventually waits for a condition, for proofTime.
func (c *campaign) eventually(is func(context.Context) error) error {
	return topo.Until(c.ctx, machine.Slower(proofTime), 50*time.Millisecond, is)
}

// answers sends a request to an address over a new connection.
func (c *campaign) answers(ctx context.Context, at netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(ctx, machine.Slower(time.Second))
	defer cancel()
	return get(ctx, c.Net.Clients[0].Dial, "http://"+at.String()+"/")
}

// get returns an error for any answer but 200.
func get(
	ctx context.Context, dial func(ctx context.Context, network, address string) (net.Conn, error), url string,
) error {
	code, text, err := topo.Get(ctx, dial, url)
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("%d: %s", code, text)
	}
	return err
}

// reporters returns one of each kind.
func (c *campaign) reporters() []*reporter {
	command := func(args ...string) func(context.Context) error {
		return func(ctx context.Context) error { _, err := c.gate.Command(ctx, args...); return err }
	}
	at := func(url string) func(context.Context) error {
		return func(ctx context.Context) error { return get(ctx, c.host.Dial, url) }
	}
	atController := func(path string) func(context.Context) error {
		var d net.Dialer
		return func(ctx context.Context) error { return get(ctx, d.DialContext, "http://"+c.controllerAt+path) }
	}
	return []*reporter{
		{name: "status", of: ofGateway, ask: c.status},
		{name: "status --wait", of: ofGateway, ask: command("status", "--wait", "--timeout", "4s")},
		{name: "probe live", of: ofGateway, ask: command("probe", "live")},
		{name: "probe ready", of: ofGateway, ask: command("probe", "ready")},
		{name: "/readyz", of: ofGateway, ask: at("http://127.0.0.1:9470/readyz")},
		{name: ":10256", of: ofGateway, ask: at("http://127.0.0.1:10256/healthz")},
		{name: "announce", of: ofGateway + ofAnnouncer, ask: c.announced},
		{name: "announcer /readyz", of: ofAnnouncer, ask: at("http://" + announcerAt + "/readyz")},
		{name: "announcer /healthz", of: ofAnnouncer, ask: at("http://" + announcerAt + "/healthz")},
		{name: "route", of: ofGateway + ofAnnouncer, ask: c.routed},
		{name: "controller /readyz", of: ofController, ask: atController("/readyz")},
		{name: "controller /healthz", of: ofController, ask: atController("/healthz")},
		{name: "Lease", of: ofController, ask: c.leads},
	}
}

// status fails if `sluice status` shows a fault: the gateway is not ready, a condition has failed,
// or a source cannot be read.
func (c *campaign) status(ctx context.Context) error {
	v, err := c.gate.Client.Status(ctx, false)
	if err != nil {
		return err
	}
	if !v.Ready {
		return fmt.Errorf("not ready: %s", strings.Join(v.NotReady, "; "))
	}
	for _, condition := range v.Conditions {
		if condition.Level != "ok" && !c.usual[condition.Name] {
			return fmt.Errorf("%s: %s: %s", condition.Level, condition.Name, condition.Detail)
		}
	}
	for _, s := range v.Sources {
		if s.Error != "" {
			return fmt.Errorf("%s: %s", s.Name, s.Error)
		}
	}
	return nil
}

// announced fails unless `sluice announce` shows that the gateway is announced, its session is up,
// and the address of the first Service is announced, not as the last resort.
func (c *campaign) announced(ctx context.Context) error {
	v, err := c.announcer.Ask(ctx)
	switch {
	case err != nil:
		return err
	case v.Gateway != "yes" || v.Why != "":
		return fmt.Errorf("gateway: %s: %s", v.Gateway, v.Why)
	case len(v.Problems) > 0:
		return fmt.Errorf("%+v", v.Problems[0])
	case len(v.Stalled) > 0:
		return errors.New(v.Stalled[0])
	}
	for _, p := range v.Peers {
		if !p.Up {
			return fmt.Errorf("the session is not up: %s", p.Why)
		}
	}
	for _, vip := range v.VIPs {
		for _, line := range vip.To {
			if vip.Address == c.base.Addr() && line.To == "router" && line.State != view.Announced {
				return fmt.Errorf("%s: %s", line.State, line.Why)
			}
		}
	}
	return nil
}

func (c *campaign) routed(context.Context) error {
	has, err := c.Router.HasRoute(netip.PrefixFrom(c.base.Addr(), c.base.Addr().BitLen()))
	if err == nil && !has {
		err = errors.New("it is gone")
	}
	return err
}

// leads fails if another controller could lead now, or this one has ended.
func (c *campaign) leads(ctx context.Context) error {
	select {
	case <-c.Controller.Done():
		return fmt.Errorf("the controller has ended: %w", c.Controller.Err())
	default:
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	l, err := c.Cluster.Client().CoordinationV1().Leases("sluice-system").Get(ctx, "sluice-controller",
		metav1.GetOptions{})
	if err != nil {
		return nil // the API server is away, which is not a fault of the controller
	}
	duration := time.Duration(*l.Spec.LeaseDurationSeconds) * time.Second
	if age := time.Since(l.Spec.RenewTime.Time); age > duration {
		return fmt.Errorf("not renewed for %v", age.Round(time.Second))
	}
	return nil
}

// restart starts a program that has ended, as the kubelet and systemd do.
func (c *campaign) restart() error {
	select {
	case <-c.Controller.Done():
		return c.StartController(c.ctx)
	case <-c.announcer.Ended():
		return c.announcer.Start()
	default:
	}
	if !c.gate.Running() {
		return c.gate.Launch()
	}
	return nil
}
