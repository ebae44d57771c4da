package compare

import (
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/test/bed/cluster"
)

// control is the control plane from which kube-proxies get their Services. All measurements of a
// round share it. It is stopped (SIGSTOP) while packets are sent: in production it runs on other
// machines.
type control struct {
	cluster  *cluster.Cluster
	services int // number of Services in the API server
	protocol corev1.Protocol
	progress io.Writer
}

// startControl starts a control plane without Services.
func startControl(ctx context.Context, protocol corev1.Protocol, progress io.Writer) (*control, error) {
	k, err := cluster.Start(ctx, cluster.Config{})
	if err != nil {
		return nil, err
	}
	return &control{cluster: k, protocol: protocol, progress: progress}, nil
}

// hold makes the control plane serve exactly this number of Services.
func (c *control) hold(ctx context.Context, services int) error {
	began := time.Now()
	if err := c.cluster.Thaw(); err != nil {
		return err
	}
	if c.services == services {
		return nil
	}
	if c.services != 0 {
		if err := c.cluster.Reset(ctx); err != nil {
			return err
		}
	}
	var list []cluster.Object
	for _, o := range objects(services, c.protocol) {
		list = append(list, o.service, o.slice)
	}
	if err := c.cluster.Put(ctx, list...); err != nil {
		return err
	}
	c.services = services
	fmt.Fprintf(c.progress, "API server: %d Services written in %.0f s\n", services, time.Since(began).Seconds())
	return nil
}

func (c *control) close() error { return c.cluster.Close() }

// kubeProxy is the released kube-proxy with its defaults. Between measurements it is stopped with
// SIGSTOP; its rules stay, and cost nothing while no packet passes.
type kubeProxy struct {
	mode    string
	control *control
	proxy   *cluster.Proxy
	frozen  bool
}

func (k *kubeProxy) start(ctx context.Context, p *place) error {
	if err := p.gateway.Forward(true); err != nil {
		return err
	}
	node := cluster.NewNode(gatewayNode, "", p.gateway.Addr4())
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	if err := k.control.cluster.Put(ctx, node); err != nil {
		return err
	}
	began := time.Now()
	var err error
	k.proxy, err = k.control.cluster.KubeProxy(ctx, cluster.ProxyConfig{
		Host: p.gateway, Node: gatewayNode, Mode: k.mode, Timeout: 10 * time.Minute,
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(k.control.progress, "kube-proxy %s: %d Services programmed in %.0f s\n", k.mode, k.control.services,
		time.Since(began).Seconds())
	return nil
}

// freeze stops the process, or resumes it.
func (k *kubeProxy) freeze(on bool) error {
	if k.proxy == nil || k.frozen == on {
		return nil
	}
	signal := syscall.SIGCONT
	if on {
		signal = syscall.SIGSTOP
	}
	if err := syscall.Kill(k.proxy.PID(), signal); err != nil {
		return fmt.Errorf("kube-proxy %s: %s: %w", k.mode, signal, err)
	}
	k.frozen = on
	return nil
}

func (k *kubeProxy) stop() error {
	if k.proxy == nil {
		return nil
	}
	err := errors.Join(k.freeze(false), k.proxy.Stop())
	k.proxy = nil
	return err
}

func (*kubeProxy) counters(context.Context) (map[string]uint64, error) { return nil, nil }

func (k *kubeProxy) diagnosis() string {
	if k.proxy == nil {
		return ""
	}
	return k.proxy.Log()
}
