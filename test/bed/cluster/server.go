package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/test/bed/topo"
)

// launch starts a program of the control plane. Its log is appended to, because a restarted program
// continues the same file.
func (c *Cluster) launch(name, path string, args []string) (*topo.Process, error) {
	log, err := os.OpenFile(c.path(name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	defer log.Close() // the process has its own
	p, err := c.host.Start(topo.Command{Path: path, Args: args, Stdout: log, Stderr: log})
	if err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	return p, nil
}

// startEtcd starts etcd. Clients come by the Unix socket. Its one member has no peers,
// but must listen for some: the kernel chooses the port, and nobody is told. It also
// refuses to advertise a Unix socket, so it advertises what cannot be reached.
func (c *Cluster) startEtcd() (err error) {
	c.etcd, err = c.launch("etcd", c.binaries.Etcd, []string{
		"--name=sluice", "--data-dir=" + c.path("etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls=unix://" + c.path("etcd.sock"), "--advertise-client-urls=http://127.0.0.1:0",
		"--listen-peer-urls=http://127.0.0.1:0", "--initial-advertise-peer-urls=http://127.0.0.1:0",
		"--initial-cluster=sluice=http://127.0.0.1:0",
	})
	return err
}

// apiServerFlags leaves what decides about objects at its defaults.
func (c *Cluster) apiServerFlags() []string {
	return slices.Concat([]string{
		"--etcd-servers=unix://" + c.path("etcd.sock"),
		fmt.Sprintf("--secure-port=%d", c.port.number), "--permit-port-sharing",
		"--tls-cert-file=" + c.path("server.crt"), "--tls-private-key-file=" + c.path("server.key"),
		"--client-ca-file=" + c.path("ca.crt"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + c.path("token.key"),
		"--service-account-signing-key-file=" + c.path("token.key"),
		"--service-cluster-ip-range=" + ServiceRange4 + "," + ServiceRange6,
		"--v=1",
	}, c.reachFlags(), c.nodeFlags(), c.flags)
}

// reachFlags say where the API server listens, and the address of the kubernetes Service's
// endpoints.
func (c *Cluster) reachFlags() []string {
	if c.address.IsValid() {
		return []string{"--bind-address=0.0.0.0", "--advertise-address=" + c.address.String()}
	}
	// No endpoints are written. Their address may not be a loopback one, so it is one of RFC 5737.
	return []string{"--bind-address=127.0.0.1", "--advertise-address=192.0.2.1", "--endpoint-reconciler-type=none"}
}

// nodeFlags configure authorization: with kubelets, each may access what concerns its own node.
func (c *Cluster) nodeFlags() []string {
	if !c.control {
		return []string{"--authorization-mode=RBAC"}
	}
	return []string{
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--kubelet-client-certificate=" + c.path("kubelet-client.crt"), "--kubelet-client-key=" +
			c.path("kubelet-client.key"),
		"--kubelet-preferred-address-types=InternalIP",
		"--allow-privileged",
	}
}

var errRunning = errors.New("cluster: the API server runs already")

// StartAPIServer starts the API server again after it was stopped, on the same port
// and with everything that etcd has, and returns when it is ready.
func (c *Cluster) StartAPIServer(ctx context.Context) (err error) {
	if c.apiServer != nil {
		return errRunning
	}
	if c.apiServer, err = c.launch("kube-apiserver", c.binaries.APIServer, c.apiServerFlags()); err != nil {
		return err
	}
	if err := c.ready(ctx); err != nil {
		return err
	}
	return c.resumeRelays()
}

// ready waits until the API server reports that it is ready.
func (c *Cluster) ready(ctx context.Context) error {
	err := topo.Until(ctx, startTimeout, askEvery, func(ctx context.Context) error {
		for _, p := range [...]struct {
			name    string
			process *topo.Process
		}{{"etcd", c.etcd}, {"kube-apiserver", c.apiServer}} {
			select {
			case <-p.process.Done():
				return topo.Final(fmt.Errorf("%s ended: %w\n%s", p.name, p.process.Err(), c.Log(p.name)))
			default:
			}
		}
		if _, err := c.client.RESTClient().Get().AbsPath("/readyz").MaxRetries(0).Do(ctx).Raw(); err != nil {
			return err
		}
		// The API server makes its own Service when it finds itself ready. Waiting for
		// that, all that begin after us see the same objects.
		_, err := c.client.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("cluster: kube-apiserver is not ready: %w\n%s", err, c.Log("kube-apiserver"))
	}
	return nil
}

// StopAPIServer ends the API server, and nothing else: with a grace as a rolling
// upgrade does (watches are ended by it), without one as a crash does. Connections to
// it are refused from then on.
func (c *Cluster) StopAPIServer(grace time.Duration) error {
	if c.apiServer == nil {
		return nil
	}
	p := c.apiServer
	c.apiServer = nil
	err := p.Stop(grace)
	c.pauseRelays()
	return err
}

const logTailBytes = 8 << 10

// Log returns the end of the log of a process ("etcd", "kube-apiserver").
func (c *Cluster) Log(name string) string { return tail(c.path(name + ".log")) }

func tail(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-logTailBytes):])
}
