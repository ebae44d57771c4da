package vip

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/bench/reach"
)

func (d *demo) apiServer(ctx context.Context) error {
	began := time.Now()
	if err := d.lab.StartAPIServer(ctx); err != nil {
		return err
	}
	version, err := d.lab.Cluster.Client().Discovery().ServerVersion()
	if err != nil {
		return err
	}
	d.p.Say("etcd and kube-apiserver %s answer after %.1f s.", version.GitVersion, time.Since(began).Seconds())
	if err := d.lab.Install(ctx); err != nil {
		return err
	}
	d.p.Say("deploy/manifests is applied, but for its workloads, for which there are no kubelets:")
	if err := d.kubectl(ctx, "crd", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"); err != nil {
		return err
	}
	return d.kubectl(ctx, "serviceaccounts -n sluice-system", "/api/v1/namespaces/sluice-system/serviceaccounts")
}

func (d *demo) objects(ctx context.Context) error {
	text := d.lab.Objects(settings)
	if err := d.lab.Cluster.Apply(ctx, []byte(text)); err != nil {
		return err
	}
	d.p.Say("$ kubectl apply -f -")
	d.block(text)
	return d.kubectl(ctx, "addresspools", "/apis/sluice.dev/v1alpha1/addresspools")
}

func (d *demo) router(ctx context.Context) error {
	if err := d.lab.StartRouter(ctx, settings); err != nil {
		return err
	}
	for _, line := range d.drawing() {
		d.p.Say("%s", line)
	}
	d.p.Say("")
	d.p.Say("bird.conf:")
	d.block(d.lab.RouterConfig(settings))
	return nil
}

// drawing is the network with its addresses.
func (d *demo) drawing() []string {
	n := d.lab.Net
	var lines []string
	for i, b := range n.Backends {
		g, edge := "", "    "
		if i < len(n.Gateways) {
			g = fmt.Sprintf("%s %s", n.Gateways[i].Name, n.Gateways[i].Addr4())
			edge = " ├─ "
		}
		left := ""
		if i == 0 {
			left, edge = fmt.Sprintf("%s %s ── router %s", n.Clients[0].Name, n.Clients[0].Addr4(),
				n.Router.Addr4()), "─┬─ "
		}
		lines = append(lines, fmt.Sprintf("%-42s%s%-20s├─ %s %s", left, edge, g, b.Name, b.Addr4()))
	}
	return lines
}

// gateways starts what is ours.
func (d *demo) gateways(ctx context.Context) error {
	began := time.Now()
	if err := d.lab.StartController(ctx); err != nil {
		return err
	}
	if err := d.lab.StartGateways(ctx); err != nil {
		return err
	}
	d.p.Say("sluice-controller, and on each gateway sluice and sluice-announcer, with the chart's accounts.")
	took := time.Since(began)
	established := 0
	if _, err := d.until(ctx, began, func(ctx context.Context) error {
		out, err := d.lab.Router.Ask(ctx, "show protocols")
		if established = strings.Count(out, "Established"); err == nil && established < len(d.lab.Gateways) {
			err = fmt.Errorf("%d sessions", established)
		}
		return err
	}); err != nil && ctx.Err() != nil {
		return err
	}
	if err := d.birdc(ctx, "show protocols", "BGP"); err != nil {
		return err
	}
	d.p.Expect(established == len(d.lab.Gateways), "the router has %d BGP sessions, %d ms after the start", established,
		took.Milliseconds())
	return nil
}

// service applies a Service, and waits for its address, the routes, and the first answer.
func (d *demo) service(ctx context.Context) error {
	_, slice := d.lab.Service("web")
	if err := d.lab.Cluster.Put(ctx, slice); err != nil {
		return err
	}
	d.p.Say("$ kubectl apply -f -")
	d.block(service)
	began := time.Now()
	if err := d.lab.Cluster.Apply(ctx, []byte(service)); err != nil {
		return err
	}
	address, err := d.until(ctx, began, d.hasAddress)
	if err != nil {
		return fmt.Errorf("an address: %w", err)
	}
	routes, err := d.until(ctx, began, func(context.Context) error { return d.hopsAre(len(d.lab.Gateways)) })
	if err != nil {
		return fmt.Errorf("routes to %s: %w", d.vip, err)
	}
	answer, err := d.until(ctx, began, func(ctx context.Context) error {
		conn, err := d.lab.Net.Clients[0].Dial(ctx, "tcp", d.target().String())
		if err == nil {
			err = conn.Close()
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("an answer of %s: %w", d.vip, err)
	}
	if err := d.kubectl(ctx, "service web", "/api/v1/namespaces/default/services/web"); err != nil {
		return err
	}
	if err := d.birdc(ctx, "show route "+d.prefix().String(), ""); err != nil {
		return err
	}
	for _, g := range d.lab.Gateways {
		out, err := g.Command(ctx, "announce", "--announcer", g.Announcer.Socket())
		if err != nil {
			return err
		}
		d.p.Say("$ sluice announce   # on %s", g.Host.Name)
		d.block(out)
	}
	d.p.Say("")
	d.p.Expect(answer < d.bound(time.Second), "after `kubectl apply`: address %s after %d ms, %d routes after %d ms, "+
		"first answer after %d ms", d.vip, address.Milliseconds(), len(d.lab.Gateways), routes.Milliseconds(),
		answer.Milliseconds())
	return nil
}

// hasAddress takes the Service's address.
func (d *demo) hasAddress(ctx context.Context) (err error) {
	s, err := d.lab.Cluster.Client().CoreV1().Services("default").Get(ctx, "web", metav1.GetOptions{})
	if err != nil {
		return err
	}
	if len(s.Status.LoadBalancer.Ingress) == 0 {
		return errors.New("the Service has no address yet")
	}
	d.vip, err = netip.ParseAddr(s.Status.LoadBalancer.Ingress[0].IP)
	return err
}

func (d *demo) prefix() netip.Prefix { return netip.PrefixFrom(d.vip, d.vip.BitLen()) }

func (d *demo) target() netip.AddrPort { return netip.AddrPortFrom(d.vip, reach.Port) }

// hopsAre returns an error unless the router's kernel has so many next hops towards the VIP.
func (d *demo) hopsAre(want int) error {
	hops, err := d.lab.Router.NextHops(d.prefix())
	if err == nil && len(hops) != want {
		err = fmt.Errorf("next hops: %v, want %d", hops, want)
	}
	return err
}
