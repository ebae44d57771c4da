package single

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/vishvananda/netns"
	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/test/bed/cluster"
	"sluice.dev/sluice/test/bed/cluster/nodes"
	"sluice.dev/sluice/test/bed/scratch"
	"sluice.dev/sluice/test/bed/topo"
)

// GatewayLabel and GatewayTaint are the chart's, of nodes that are gateways.
const (
	GatewayLabel = "node-restriction.kubernetes.io/sluice-gateway"
	GatewayTaint = "sluice.dev/gateway"
)

// Config describes the cluster to run. The zero value is good.
type Config struct {
	// Workers are the nodes beside the gateway's, 1.
	Workers int
	// Names of the nodes, the gateway's first; nil for gateway, worker0 and so on.
	Names []string
	// DNS: pods ask their node's address (Address) for names. Somebody must answer there.
	DNS bool
	// Images that all nodes have from the start, in addition to this package's own.
	Images []*nodes.Image
	// Named binds the network's namespaces to names, for people.
	Named bool
	// Flags are further flags of kube-apiserver.
	Flags []string
	// Progress gets a line for each step; nil for none.
	Progress io.Writer
}

// Cluster is a cluster that runs. It belongs to one goroutine.
type Cluster struct {
	*cluster.Cluster
	Net     *topo.Net
	Client0 *topo.Host // outside of the cluster
	Gateway *nodes.Node
	Workers []*nodes.Node
	// AdminConfig is the path of an administrator's kubeconfig, for programs in this one's
	// namespace.
	AdminConfig string

	config  Config
	began   time.Time
	dir     string
	runtime *cluster.Runtime
	control *topo.Host
	outside *topo.Net
	images  []*nodes.Image
	first   string
	proxies map[string]*cluster.Proxy // by node
}

// prefix begins the names of directories, and networkFile in one has the ID of the run's network.
const (
	prefix      = "sluice-single-"
	networkFile = "network"
)

// removeRun removes the remains of a run that was killed: its directory, and the names of its
// namespaces, if they had any. Everything else ended with it, or the packages that made it remove
// it.
func removeRun(dir string) error {
	var errs []error
	if id, err := os.ReadFile(filepath.Join(dir, networkFile)); err == nil && len(id) > 0 {
		names, _ := filepath.Glob("/run/netns/" + topo.Prefix + string(id) + "-*") // the pattern is well-formed
		for _, name := range names {
			errs = append(errs, netns.DeleteNamed(filepath.Base(name)))
		}
	}
	return errors.Join(append(errs, os.RemoveAll(dir))...)
}

// Start builds what there is to build, starts the cluster and returns when all nodes are Ready.
// After an error it ends the processes that it started.
func Start(ctx context.Context, config Config) (*Cluster, error) {
	if config.Workers == 0 {
		config.Workers = 1
	}
	if config.Progress == nil {
		config.Progress = io.Discard
	}
	c := &Cluster{config: config, began: time.Now(), proxies: map[string]*cluster.Proxy{}}
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("single: %w", err), c.Close())
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context) error {
	binaries, err := cluster.Build(ctx, c.config.Progress)
	if err != nil {
		return err
	}
	if c.runtime, err = cluster.FetchRuntime(ctx, c.config.Progress); err != nil {
		return err
	}
	c.step("programs are there")
	if err := c.build(ctx); err != nil {
		return err
	}
	c.step("the nodes' programs and images are built")
	if err := c.network(); err != nil {
		return err
	}
	c.Cluster, err = cluster.Start(ctx, cluster.Config{
		Binaries: binaries, Host: c.control, Address: c.control.Addr4(), Controllers: true, Flags: c.config.Flags,
	})
	if err != nil {
		return err
	}
	c.step("the control plane is ready")
	if err := c.startNodes(ctx, binaries.Kubelet); err != nil {
		return err
	}
	for _, w := range c.Workers {
		if err := c.Proxy(ctx, w, true, ""); err != nil {
			return err
		}
	}
	c.step("kube-proxy runs on the workers")
	return c.exposeOutside()
}

// step reports the progress.
func (c *Cluster) step(format string, args ...any) {
	fmt.Fprintf(c.config.Progress, "%6.1fs  %s\n", time.Since(c.began).Seconds(), fmt.Sprintf(format, args...))
}

// build builds what runs on nodes and in pods, from this tree.
func (c *Cluster) build(ctx context.Context) (err error) {
	if _, err := scratch.Sweep(os.TempDir(), prefix, removeRun); err != nil {
		return err
	}
	if c.dir, err = scratch.Make(os.TempDir(), prefix); err != nil {
		return err
	}
	c.first = filepath.Join(c.dir, "first")
	pod := filepath.Join(c.dir, "pod")
	for path, pkg := range map[string]string{c.first: "nodes/first", pod: "pod"} {
		b := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", path,
			"sluice.dev/sluice/test/bed/cluster/"+pkg)
		b.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := b.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w\n%s", pkg, err, out)
		}
	}
	program, err := os.ReadFile(pod)
	if err != nil {
		return err
	}
	c.images = append([]*nodes.Image{
		{Names: []string{nodes.PauseImage}, Files: map[string][]byte{"pod": program}, Entrypoint: []string{"/pod"},
			Cmd: []string{"pause"}},
		{Names: []string{ServerImage}, Files: map[string][]byte{"pod": program}, Entrypoint: []string{"/pod", "serve"},
			Cmd: []string{"server"}},
	}, c.config.Images...)
	return nil
}

// ServerImage is an image of a backend (test/bed/topo, Server): its arguments are [-port 8080]
// NAME.
const ServerImage = "sluice.test/server:1"

// network builds the network. The last backend is the control plane's host.
func (c *Cluster) network() (err error) {
	if c.Net, err = topo.New(topo.Config{Backends: c.config.Workers + 1, Named: c.config.Named}); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(c.dir, networkFile), []byte(c.Net.ID), 0o644); err != nil {
		return err
	}
	c.Client0, c.control = c.Net.Clients[0], c.Net.Backends[c.config.Workers]
	return c.route()
}

func (c *Cluster) startNodes(ctx context.Context, kubelet string) error {
	config := nodes.Config{
		Cluster: c.Cluster, Runtime: c.runtime, First: c.first, Kubelet: kubelet,
		Server: c.Server(), Images: c.images,
	}
	for i, h := range c.nodeHosts() {
		config.Host, config.Pods = h, podRanges(i)
		config.Name = fmt.Sprintf("worker%d", i-1)
		config.Labels, config.Taints = nil, nil
		if i == 0 {
			config.Name = "gateway"
			config.Labels = map[string]string{GatewayLabel: "true"}
			config.Taints = []corev1.Taint{{Key: GatewayTaint, Value: "true", Effect: corev1.TaintEffectNoSchedule}}
		}
		if c.config.Names != nil {
			config.Name = c.config.Names[i]
		}
		if c.config.DNS {
			config.DNS = Address(h)
		}
		n, err := nodes.Start(ctx, config)
		if err != nil {
			return err
		}
		c.step("node %s is Ready", n.Name)
		if i == 0 {
			c.Gateway = n
			continue
		}
		c.Workers = append(c.Workers, n)
	}
	return nil
}

// Server is the API server's URL for nodes and pods with the host's network.
func (c *Cluster) Server() string {
	return fmt.Sprintf("https://%s", netip.AddrPortFrom(c.control.Addr4(), c.Port()))
}

// exposeOutside makes the API server reachable where this program runs.
func (c *Cluster) exposeOutside() error {
	outside, here, err := topo.Outside()
	if err != nil {
		return err
	}
	c.outside = outside
	c.AdminConfig, err = c.KubeconfigIn(here)
	return err
}

// KubeconfigIn writes an administrator's kubeconfig for programs in a host's namespace, which reach
// the API server by loopback there, independently of the network.
func (c *Cluster) KubeconfigIn(h *topo.Host) (path string, err error) {
	url, err := c.Expose(h)
	if err != nil {
		return "", err
	}
	return c.Kubeconfig(c.Admin(), url)
}

// Address is the address of a node on a host, on the segment of the workers.
func Address(h *topo.Host) netip.Addr { return h.Interfaces[len(h.Interfaces)-1].Addr4.Addr() }

// Proxy starts kube-proxy on a node with options of its own (cluster.ProxyConfig), or ends it and
// removes its rules. It does nothing if the node is in that state already.
func (c *Cluster) Proxy(ctx context.Context, n *nodes.Node, on bool, options string) error {
	p := c.proxies[n.Name]
	if on == (p != nil) {
		return nil
	}
	if !on {
		delete(c.proxies, n.Name)
		return errors.Join(p.Stop(), p.Cleanup(ctx))
	}
	p, err := c.KubeProxy(ctx, cluster.ProxyConfig{Host: n.Host(), Node: n.Name, Runtime: c.runtime,
		Options: "clusterCIDR: " + cluster.PodRange4 + "," + cluster.PodRange6 + "\n" + options})
	if err == nil {
		c.proxies[n.Name] = p
	}
	return err
}

// Nodes are all nodes, the gateway's first.
func (c *Cluster) Nodes() []*nodes.Node { return append([]*nodes.Node{c.Gateway}, c.Workers...) }

// Close ends the cluster and removes everything. It may be called twice.
func (c *Cluster) Close() error {
	var errs []error
	for _, p := range c.proxies {
		errs = append(errs, p.Stop())
	}
	c.proxies = map[string]*cluster.Proxy{}
	for _, n := range append(c.Workers, c.Gateway) {
		if n != nil {
			errs = append(errs, n.Stop())
		}
	}
	if c.Cluster != nil {
		errs = append(errs, c.Cluster.Close())
	}
	for _, n := range [...]*topo.Net{c.outside, c.Net} {
		if n != nil {
			errs = append(errs, n.Close())
		}
	}
	if c.dir != "" {
		errs = append(errs, os.RemoveAll(c.dir))
	}
	return errors.Join(errs...)
}
