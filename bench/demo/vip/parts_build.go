package vip

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/test/bed/reach"
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
	d.p.Say("deploy/manifests is applied without its workloads, because there are no kubelets:")
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
		left, edge, g := "", "    ", ""
		if i < len(n.Gateways) {
			g = fmt.Sprintf("%s %s", n.Gateways[i].Name, n.Gateways[i].Addr4())
			edge = " " + branch(i, len(n.Gateways)) + " "
		}
		if i == 0 {
			left = fmt.Sprintf("%s %s ── router %s", n.Clients[0].Name, n.Clients[0].Addr4(), n.Router.Addr4())
			edge = "─" + branch(i, len(n.Gateways)) + " "
		}
		lines = append(lines, fmt.Sprintf("%-42s%s%-20s%s %s %s", left, edge, g, branch(i, len(n.Backends)), b.Name,
			b.Addr4()))
	}
	return lines
}

// branch is the character at which branch i of n leaves a line from top to bottom.
func branch(i, n int) string {
	switch {
	case n == 1:
		return "──"
	case i == 0:
		return "┬─"
	case i == n-1:
		return "└─"
	}
	return "├─"
}

// gateways starts Sluice's processes.
func (d *demo) gateways(ctx context.Context) error {
	began := time.Now()
	if err := d.lab.StartController(ctx); err != nil {
		return err
	}
	if err := d.lab.StartGateways(ctx); err != nil {
		return err
	}
	d.left = d.lab.Gateways
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
	for _, slice := range d.lab.Slices("web") {
		if err := d.lab.Cluster.Put(ctx, slice); err != nil {
			return err
		}
	}
	d.p.Say("$ kubectl apply -f -")
	d.block(service)
	began := time.Now()
	if err := d.lab.Cluster.Apply(ctx, []byte(service)); err != nil {
		return err
	}
	address, err := d.until(ctx, began, d.hasAddress)
	if err != nil {
		return fmt.Errorf("addresses: %w", err)
	}
	routes, err := d.until(ctx, began, func(context.Context) error { return d.hopsAre(len(d.lab.Gateways)) })
	if err != nil {
		return fmt.Errorf("routes to %s: %w", d.names(), err)
	}
	answer, err := d.until(ctx, began, func(ctx context.Context) (err error) {
		for _, target := range d.targets() {
			conn, dialed := d.lab.Net.Clients[0].Dial(ctx, "tcp", target.String())
			if dialed == nil {
				dialed = conn.Close()
			}
			err = errors.Join(err, dialed)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("an answer of %s: %w", d.names(), err)
	}
	if err := d.kubectl(ctx, "service web", "/api/v1/namespaces/default/services/web"); err != nil {
		return err
	}
	if err := d.showRoutes(ctx); err != nil {
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
	within := d.within(answerWithin, answerWakeUps)
	d.p.Expect(answer < within, "after `kubectl apply`: %s after %d ms, %d routes to each after %d ms, "+
		"both answer after %d ms (within %d ms)", d.names(), address.Milliseconds(), len(d.lab.Gateways),
		routes.Milliseconds(), answer.Milliseconds(), within.Milliseconds())
	return nil
}

// answerWithin is the time limit for a new Service to answer. answerWakeUps is how many times a
// process wakes for it: etcd, the API server, controller, announcers, BIRD and gateways, each for
// several messages.
const (
	answerWithin  = time.Second
	answerWakeUps = 50
)

// hasAddress reads the Service's addresses, and returns an error while it has none.
func (d *demo) hasAddress(ctx context.Context) (err error) {
	s, err := d.lab.Cluster.Client().CoreV1().Services("default").Get(ctx, "web", metav1.GetOptions{})
	if err != nil {
		return err
	}
	if n := len(s.Status.LoadBalancer.Ingress); n != families {
		return fmt.Errorf("the Service has %d addresses of %d", n, families)
	}
	d.vips = nil
	for _, i := range s.Status.LoadBalancer.Ingress {
		a, err := netip.ParseAddr(i.IP)
		if err != nil {
			return err
		}
		d.vips = append(d.vips, a)
	}
	return nil
}

// families is the number of address families of the Service.
const families = 2

// names lists the VIPs for messages.
func (d *demo) names() string {
	var names []string
	for _, vip := range d.vips {
		names = append(names, vip.String())
	}
	return strings.Join(names, " and ")
}

// prefixes are the prefixes of the routes to the VIPs.
func (d *demo) prefixes() (list []netip.Prefix) {
	for _, vip := range d.vips {
		list = append(list, netip.PrefixFrom(vip, vip.BitLen()))
	}
	return list
}

func (d *demo) targets() (list []netip.AddrPort) {
	for _, vip := range d.vips {
		list = append(list, netip.AddrPortFrom(vip, reach.Port))
	}
	return list
}

// showRoutes prints BIRD's routes to the VIPs.
func (d *demo) showRoutes(ctx context.Context) error {
	for _, prefix := range d.prefixes() {
		if err := d.birdc(ctx, "show route "+prefix.String(), ""); err != nil {
			return err
		}
	}
	return nil
}

// hopsAre returns an error unless the router's kernel has want next hops for each VIP.
func (d *demo) hopsAre(want int) error {
	for _, prefix := range d.prefixes() {
		hops, err := d.lab.Router.NextHops(prefix)
		if err != nil {
			return err
		}
		if len(hops) != want {
			return fmt.Errorf("next hops to %v: %v, want %d", prefix, hops, want)
		}
	}
	return nil
}
