package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"sluice.dev/sluice/test/bed/machine"
	"sluice.dev/sluice/test/bed/topo"
)

// Address ranges of Services, IPv4 first: the sizes that most clusters have.
const (
	ServiceRange4 = "10.96.0.0/12"
	ServiceRange6 = "fd00:96::/112"
)

// Config describes the control plane to run. The zero value is good.
type Config struct {
	// Binaries to run; nil builds them, or finds them built.
	Binaries *Binaries
	// Host in whose namespace etcd and the API server listen on loopback; nil means
	// the caller's own namespace.
	Host *topo.Host
	// Address is one of the host's that nodes reach the API server at, beside loopback; none if it
	// is the zero value, and then nothing but loopback is listened on.
	Address netip.Addr
	// Controllers has kube-controller-manager and kube-scheduler run, too: then slices, pods and
	// accounts are theirs to write. The API server authorizes nodes and reaches kubelets then.
	Controllers bool
	// Flags are further flags of kube-apiserver; they win over those given here.
	Flags []string
}

// Cluster is a control plane that runs. One goroutine at a time calls its methods; any goroutine
// may use its clients.
type Cluster struct {
	binaries *Binaries
	flags    []string
	address  netip.Addr
	control  bool // controllers and scheduler run
	host     *topo.Host
	outside  *topo.Net // ours to close; nil if the host is the caller's
	dir      string
	ca       *authority
	port     *port // of the API server

	admin  User
	client *kubernetes.Clientset

	etcd, apiServer *topo.Process   // nil while none runs
	controllers     []*topo.Process // kube-controller-manager, kube-scheduler

	relays map[*topo.Host]*relay
}

// The time limits for starting and for stopping processes.
var (
	startTimeout = machine.Slower(60 * time.Second)
	stopTimeout  = machine.Slower(10 * time.Second)
)

// askEvery is the shortest interval between two polls of a condition.
const askEvery = 20 * time.Millisecond

// Start starts etcd and the API server and returns when it is ready. After an error it ends the
// processes that it started.
func Start(ctx context.Context, c Config) (*Cluster, error) {
	var err error
	if c.Binaries == nil {
		if c.Binaries, err = Build(ctx, os.Stderr); err != nil {
			return nil, err
		}
	}
	if err := sweep(tmpfs()); err != nil {
		return nil, err
	}
	k := &Cluster{binaries: c.Binaries, flags: c.Flags, host: c.Host, relays: map[*topo.Host]*relay{},
		address: c.Address, control: c.Controllers}
	if err := k.start(ctx); err != nil {
		return nil, errors.Join(err, k.Close())
	}
	return k, nil
}

func (c *Cluster) start(ctx context.Context) (err error) {
	if c.host == nil {
		if c.outside, c.host, err = topo.Outside(); err != nil {
			return err
		}
	}
	if c.dir, err = makeDirectory(); err != nil {
		return err
	}
	if err := c.writeSecrets(); err != nil {
		return err
	}
	if c.port, err = reservePort(c.host); err != nil {
		return err
	}
	if c.client, err = kubernetes.NewForConfig(c.RESTConfig(c.admin)); err != nil {
		return fmt.Errorf("cluster: make a client: %w", err)
	}
	// The API server waits for etcd, so both may start at once.
	if err := c.startEtcd(); err != nil {
		return err
	}
	if err := c.StartAPIServer(ctx); err != nil || !c.control {
		return err
	}
	return c.startControllers()
}

// writeSecrets makes the identities and writes the files that the API server reads of them.
func (c *Cluster) writeSecrets() (err error) {
	if c.ca, err = newAuthority(); err != nil {
		return err
	}
	if c.admin, err = c.CertificateUser("admin", "system:masters"); err != nil {
		return err
	}
	cert, key, err := c.ca.server(c.address)
	if err != nil {
		return err
	}
	_, tokenKey, err := newKey()
	if err != nil {
		return err
	}
	// The API server is a client of kubelets, which know its user by the same authority.
	toKubelets, err := c.CertificateUser("kube-apiserver", "system:masters")
	if err != nil {
		return err
	}
	for name, text := range map[string][]byte{
		"ca.crt": c.ca.pem, "server.crt": cert, "server.key": key, "token.key": tokenKey,
		"kubelet-client.crt": toKubelets.certificate, "kubelet-client.key": toKubelets.key,
	} {
		if err := os.WriteFile(c.path(name), text, 0o600); err != nil {
			return fmt.Errorf("cluster: %w", err)
		}
	}
	return nil
}

func (c *Cluster) path(name string) string { return filepath.Join(c.dir, name) }

// URL is where the API server is reached in the namespace that it runs in.
func (c *Cluster) URL() string { return fmt.Sprintf("https://127.0.0.1:%d", c.port.number) }

// Client is the client of an administrator, without a rate limit. It works wherever
// the API server runs, because it dials in that namespace.
func (c *Cluster) Client() *kubernetes.Clientset { return c.client }

// RESTConfig is the configuration of a client in this process for a user.
func (c *Cluster) RESTConfig(u User) *rest.Config {
	r := &rest.Config{Host: c.URL(), QPS: -1, Dial: c.host.Dial, BearerToken: u.token}
	r.CAData, r.CertData, r.KeyData = c.ca.pem, u.certificate, u.key
	return r
}

// Close kills all processes and removes everything. It may be called twice.
func (c *Cluster) Close() error {
	var errs []error
	for h, r := range c.relays {
		errs = append(errs, r.close())
		delete(c.relays, h)
	}
	for _, p := range c.controllers {
		errs = append(errs, p.Stop(0))
	}
	c.controllers = nil
	for _, p := range []**topo.Process{&c.apiServer, &c.etcd} {
		if *p != nil {
			errs = append(errs, (*p).Stop(0))
			*p = nil
		}
	}
	if c.port != nil {
		errs = append(errs, c.port.release())
	}
	if c.outside != nil {
		errs = append(errs, c.outside.Close()) // has no effect the second time
	}
	if c.dir != "" {
		errs = append(errs, os.RemoveAll(c.dir))
	}
	return errors.Join(errs...)
}
