package reach

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sluice.dev/sluice/test/bed/cluster"
	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/machine"
	"sluice.dev/sluice/test/bed/routers"
	"sluice.dev/sluice/test/bed/scratch"
	"sluice.dev/sluice/test/bed/topo"
)

// Config says what to run. The paths are required.
type Config struct {
	Sluice, Controller, Announcer string // paths of the programs
	Gateways, Backends            int    // 1
	Named                         bool   // namespaces have names for ip-netns(8)
	ControllerListen              string // address of the controller's metrics and health; "": none
	// Prepare, unless nil, is called before a gateway and its announcer are started.
	Prepare func(*Lab, *Gateway) error
	// Progress gets a line for each file that is built or downloaded once; nil for none.
	Progress io.Writer
}

// Lab is what runs. Its parts are nil until they are started, in the order of Start.
type Lab struct {
	Net        *topo.Net
	Cluster    *cluster.Cluster
	Router     *routers.Router
	Controller *topo.Process
	Gateways   []*Gateway

	config  Config
	dir     string
	outside *topo.Net
	here    *topo.Host // the caller's namespace, where the controller runs
}

// Gateway is one machine.
type Gateway struct {
	*launch.Gateway
	Host      *topo.Host
	Announcer *launch.Announcer
}

// Backends' port, and the port of Services.
const (
	TargetPort = 8080
	Port       = 80
)

// prefix begins the names of labs' directories: short, for the paths of sockets.
const prefix = "sluice-reach-"

// New makes the network and its backends, and starts nothing else.
func New(c Config) (*Lab, error) {
	c.Gateways, c.Backends = max(1, c.Gateways), max(1, c.Backends)
	if c.Progress == nil {
		c.Progress = io.Discard
	}
	l := &Lab{config: c}
	if err := l.build(); err != nil {
		return nil, errors.Join(fmt.Errorf("reach: %w", err), l.Close())
	}
	return l, nil
}

func (l *Lab) build() (err error) {
	if l.dir, err = scratch.Temporary(prefix); err != nil {
		return err
	}
	if l.outside, l.here, err = topo.Outside(); err != nil {
		return err
	}
	if l.Net, err = topo.New(topo.Config{Gateways: l.config.Gateways, Backends: l.config.Backends,
		Router: true, Named: l.config.Named}); err != nil {
		return err
	}
	for _, h := range l.Net.Backends {
		if _, err := h.Serve(TargetPort); err != nil {
			return err
		}
	}
	return nil
}

// Start starts everything, and returns when each gateway's session is up.
func Start(ctx context.Context, c Config, s Settings) (*Lab, error) {
	l, err := New(c)
	if err != nil {
		return nil, err
	}
	for _, step := range []func(context.Context) error{
		l.StartAPIServer,
		l.Install,
		func(ctx context.Context) error { return l.Cluster.Apply(ctx, []byte(l.Objects(s))) },
		func(ctx context.Context) error { return l.StartRouter(ctx, s) },
		l.StartController,
		l.StartGateways,
	} {
		if err := step(ctx); err != nil {
			return nil, errors.Join(fmt.Errorf("reach: %w", err), l.Close())
		}
	}
	return l, nil
}

// StartAPIServer starts etcd and kube-apiserver.
func (l *Lab) StartAPIServer(ctx context.Context) error {
	binaries, err := cluster.Build(ctx, l.config.Progress)
	if err != nil {
		return err
	}
	l.Cluster, err = cluster.Start(ctx, cluster.Config{Binaries: binaries})
	return err
}

// StartRouter starts BIRD, and returns when it answers.
func (l *Lab) StartRouter(ctx context.Context, s Settings) error {
	packages, err := routers.Fetch(ctx, l.config.Progress)
	if err != nil {
		return err
	}
	dir, err := l.directory("router")
	if err != nil {
		return err
	}
	if l.Router, err = packages.BIRD(l.Net.Router, dir, l.RouterConfig(s)); err != nil {
		return err
	}
	err = topo.Until(ctx, machine.Slower(10*time.Second), 5*time.Millisecond, func(ctx context.Context) error {
		_, err := l.Router.Ask(ctx, "show status")
		return err
	})
	if err != nil {
		return fmt.Errorf("BIRD does not start: %w\n%s", err, l.Router.Log())
	}
	return nil
}

// StartController starts sluice-controller with the chart's account.
func (l *Lab) StartController(ctx context.Context) error {
	user, err := l.Cluster.ServiceAccount(ctx, namespace, "sluice-controller")
	if err != nil {
		return err
	}
	kubeconfig, err := l.Cluster.Kubeconfig(user, "")
	if err != nil {
		return err
	}
	log, err := os.Create(l.controllerLog())
	if err != nil {
		return err
	}
	defer log.Close() // the process has its own
	l.Controller, err = l.here.Start(topo.Command{Path: l.config.Controller, Stdout: log, Stderr: log, Args: []string{
		"--kubeconfig", kubeconfig, "--namespace", namespace, "--listen", l.config.ControllerListen, "--log",
		"text"}})
	return err
}

func (l *Lab) controllerLog() string { return filepath.Join(l.dir, "controller.log") }

// StartGateways starts the gateways, each with its announcer, and returns when all sessions are up.
func (l *Lab) StartGateways(ctx context.Context) error {
	for _, h := range l.Net.Gateways {
		if err := l.startGateway(ctx, h); err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
	}
	for _, g := range l.Gateways {
		if _, err := g.Applied(ctx); err != nil {
			return fmt.Errorf("%s: %w", g.Host.Name, err)
		}
		if err := g.sessionUp(ctx); err != nil {
			return fmt.Errorf("%s: %w", g.Host.Name, err)
		}
	}
	return nil
}

func (l *Lab) startGateway(ctx context.Context, h *topo.Host) error {
	node := cluster.NewNode(h.Name, "", h.Addr4(), h.Addr6())
	if err := l.Cluster.Put(ctx, node); err != nil {
		return err
	}
	kubeconfigs := map[string]string{}
	for _, account := range []string{"sluice", "sluice-announcer"} {
		user, err := l.Cluster.ServiceAccount(ctx, namespace, account)
		if err != nil {
			return err
		}
		url, err := l.Cluster.Expose(h)
		if err != nil {
			return err
		}
		if kubeconfigs[account], err = l.Cluster.Kubeconfig(user, url); err != nil {
			return err
		}
	}
	gate, err := launch.New(launch.Config{Sluice: l.config.Sluice, Host: h, NodeName: h.Name,
		Options: fmt.Sprintf("kubernetes: {enabled: true, kubeconfig: %q}\n"+
			"flows: {ipv4: 65536, ipv6: 65536}\ntuning: {affinityClients: 4096}\n", kubeconfigs["sluice"])})
	if err != nil {
		return err
	}
	dir, err := l.directory(h.Name)
	if err != nil {
		return errors.Join(err, gate.Close())
	}
	g := &Gateway{Gateway: gate, Host: h, Announcer: &launch.Announcer{Path: l.config.Announcer, Host: h, Gateway: gate,
		Node: h.Name, Dir: dir, Args: []string{"--kubeconfig", kubeconfigs["sluice-announcer"], "--namespace",
			namespace}}}
	l.Gateways = append(l.Gateways, g)
	if l.config.Prepare != nil {
		if err := l.config.Prepare(l, g); err != nil {
			return err
		}
	}
	return errors.Join(gate.Launch(), g.Announcer.Start())
}

// sessionUp waits until the announcer has its session, or has ended.
func (g *Gateway) sessionUp(ctx context.Context) error {
	return topo.Until(ctx, machine.Slower(30*time.Second), 10*time.Millisecond, func(ctx context.Context) error {
		select {
		case <-g.Announcer.Ended():
			return topo.Final(fmt.Errorf("the announcer has ended: %w", g.Announcer.Err()))
		default:
		}
		v, err := g.Announcer.Ask(ctx)
		switch {
		case err != nil:
			return err
		case v.Waiting != "":
			return fmt.Errorf("the announcer waits for %s", v.Waiting)
		case len(v.Peers) != 1 || !v.Peers[0].Up:
			return fmt.Errorf("the session is not up: %+v", v.Peers)
		}
		return nil
	})
}

// Destroy ends a gateway as the loss of its power does: nothing is said to anybody, and its cables
// have no other end for those beside it.
func (g *Gateway) Destroy() error {
	var errs []error
	for _, i := range g.Host.Interfaces {
		errs = append(errs, g.Host.Unplug(i.Name))
	}
	return errors.Join(append(errs, g.Announcer.Kill(), g.Kill())...)
}

// Stop ends controller, announcers and gateways, as Kubernetes would, and returns how each ended
// badly.
func (l *Lab) Stop() error {
	var errs []error
	for _, g := range l.Gateways {
		errs = append(errs, g.Announcer.Stop())
		if g.Running() {
			errs = append(errs, g.Gateway.Stop())
		}
	}
	if l.Controller != nil {
		errs = append(errs, l.Controller.Stop(5*time.Second))
		l.Controller = nil
	}
	return errors.Join(errs...)
}

// directory makes one for a part's files.
func (l *Lab) directory(name string) (string, error) {
	dir := filepath.Join(l.dir, name)
	return dir, os.Mkdir(dir, 0o700)
}

// logTail is how many lines Logs has of each.
const logTail = 25

// Logs is the end of all logs, for people.
func (l *Lab) Logs() string {
	var b strings.Builder
	add := func(name, text string) {
		lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
		fmt.Fprintf(&b, "%s:\n", name)
		for _, line := range lines[max(0, len(lines)-logTail):] {
			fmt.Fprintf(&b, "| %s\n", line)
		}
	}
	if l.Cluster != nil {
		add("kube-apiserver", l.Cluster.Log("kube-apiserver"))
	}
	if text, err := os.ReadFile(l.controllerLog()); err == nil {
		add("controller", string(text))
	}
	for _, g := range l.Gateways {
		add(g.Host.Name, g.Log())
		add("announcer of "+g.Host.Name, g.Announcer.Log())
	}
	if l.Router != nil {
		add("router", l.Router.Log())
	}
	return b.String()
}

// Close ends everything, however that goes, and removes it. It may be called twice.
func (l *Lab) Close() error {
	var errs []error
	for _, g := range l.Gateways {
		errs = append(errs, g.Announcer.Stop(), g.Close())
	}
	l.Gateways = nil
	if l.Controller != nil {
		errs = append(errs, l.Controller.Stop(5*time.Second))
		l.Controller = nil
	}
	if l.Router != nil {
		errs = append(errs, l.Router.Stop())
		l.Router = nil
	}
	if l.Cluster != nil {
		errs = append(errs, l.Cluster.Close())
	}
	for _, n := range []*topo.Net{l.Net, l.outside} {
		if n == nil {
			continue
		}
		errs = append(errs, n.Close())
		left, err := n.Leftovers()
		errs = append(errs, err)
		if len(left) > 0 {
			errs = append(errs, fmt.Errorf("left over: %v", left))
		}
	}
	return errors.Join(append(errs, os.RemoveAll(l.dir))...)
}
