package vip

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/bench/demo/console"
	"sluice.dev/sluice/test/bed/reach"
	"sluice.dev/sluice/test/bed/topo"
)

// traffic sends requests to the VIPs, each over a new connection.
func (d *demo) traffic(ctx context.Context) error {
	r, err := d.ask(ctx, requests)
	if err != nil {
		return err
	}
	c := console.Columns{-10, 8}
	d.p.Head(c, "by", "answers")
	byBoth := true
	for _, g := range d.lab.Gateways {
		n := int64(0)
		for _, a := range backOf(g) {
			of := r.Clients[a]
			byBoth = byBoth && of > 0
			n += of
		}
		d.p.Row(c, g.Host.Name, n)
	}
	for _, b := range d.lab.Net.Backends {
		d.p.Row(c, b.Name, r.Shares[b.Name])
	}
	d.p.Say("")
	d.p.Expect(r.Failed() == 0 && r.Requests == requests, "%d requests to %s, %d errors, p50 %.1f ms, p99 %.1f ms",
		r.Requests, d.names(), r.Failed(), millis(r, 50), millis(r, 99))
	d.errors(r)
	d.p.Expect(byBoth, "both gateways forward, IPv4 and IPv6: the router distributes connections over them")
	return nil
}

// ask sends requests, each over a new connection.
func (d *demo) ask(ctx context.Context, n int) (*topo.Result, error) {
	return d.lab.Net.Clients[0].HTTP(ctx, topo.HTTPLoad{Targets: d.targets(), Requests: n,
		Concurrency: 8, Timeout: d.bound(5 * time.Second)})
}

// backOf returns a gateway's addresses on the backends' network, which backends see as sources.
func backOf(g *reach.Gateway) []string {
	i := g.Host.Interfaces[1]
	return []string{i.Addr4.Addr().String(), i.Addr6.Addr().String()}
}

func millis(r *topo.Result, quantile float64) float64 {
	return float64(r.Latency.ValueAtQuantile(quantile)) / 1000
}

// errors prints the errors by kind.
func (d *demo) errors(r *topo.Result) {
	for kind, n := range r.Errors {
		d.p.Say("   %s: %d", kind, n)
	}
}

// routeWithin is the time limit for the router to have one route: BFD detects the loss after three
// times 100 ms, and the rest is for BIRD and the kernel. routeWakeUps is how many times a process
// wakes for it: for the packets of BFD, BIRD's tables and the reader of the routes.
const (
	routeWithin  = time.Second
	routeWakeUps = 20
)

// settleTime is the time after which a lost SYN has been sent again (RFC 6298, section 2.1: after
// one second) and answered.
const settleTime = 1500 * time.Millisecond

// loss destroys a gateway while connections are open and new ones are made.
func (d *demo) loss(ctx context.Context) error {
	client, lost := d.lab.Net.Clients[0], d.lab.Gateways[len(d.lab.Gateways)-1]
	flows, err := client.OpenTCP(ctx, topo.FlowLoad{Targets: d.targets(), Flows: held,
		Interval: 50 * time.Millisecond, Timeout: d.bound(20 * time.Second)})
	if err != nil {
		return err
	}
	defer flows.Stop()
	open := func(context.Context) error { return answered(flows, nil) }
	if _, err := d.until(ctx, time.Now(), open); err != nil {
		return fmt.Errorf("open connections: %w", err)
	}
	before := flows.States()
	meanwhile, stop := context.WithCancel(ctx)
	defer stop()
	type outcome struct {
		r   *topo.Result
		err error
	}
	load := make(chan outcome, 1)
	go func() {
		r, err := client.HTTP(meanwhile, topo.HTTPLoad{Targets: d.targets(), Requests: 1_000_000,
			Concurrency: 4, Interval: 4 * time.Millisecond, Timeout: d.bound(5 * time.Second)})
		load <- outcome{r, err}
	}()
	d.p.Say("%d connections are open and send a request every 50 ms, and 4 clients make new ones continuously.", held)
	d.p.Say("%s is destroyed as by a power failure: links and processes disappear without notice.", lost.Host.Name)
	began := time.Now()
	destroyed := make(chan error, 1)
	d.left = d.lab.Gateways[:len(d.lab.Gateways)-1]
	go func() { destroyed <- lost.Destroy() }()
	took, err := d.until(ctx, began, func(context.Context) error { return d.hopsAre(len(d.lab.Gateways) - 1) })
	if err := errors.Join(err, <-destroyed); err != nil {
		return err
	}
	r, err := d.ask(ctx, requests)
	if err != nil {
		return err
	}
	if err := topo.Pause(ctx, d.bound(settleTime)); err != nil {
		return err
	}
	stop()
	during := <-load
	if during.err != nil {
		return during.err
	}
	if err := d.showRoutes(ctx); err != nil {
		return err
	}
	d.p.Say("")
	within := d.within(routeWithin, routeWakeUps)
	d.p.Expect(took < within, "the router has one route to each %d ms later (within %d ms): BFD missed three packets, "+
		"100 ms apart", took.Milliseconds(), within.Milliseconds())
	d.p.Expect(r.Failed() == 0 && r.Requests == requests, "then: %d new connections, %d errors, p99 %.1f ms",
		r.Requests, r.Failed(), millis(r, 99))
	d.errors(r)
	d.p.Say("   meanwhile: %d new connections, slowest %.1f s: a SYN that was sent to %s until then is sent",
		during.r.Requests, float64(during.r.Latency.Max())/1e6, lost.Host.Name)
	d.p.Say("   again after a second.")
	for _, line := range underWay(during.r, lost.Host.Name) {
		d.p.Say("   %s", line)
	}
	return d.checkHeld(ctx, flows, before, backOf(lost))
}

// underWay describes the new connections that failed: the ones between handshake and answer on the
// destroyed gateway.
func underWay(r *topo.Result, gateway string) (lines []string) {
	for _, kind := range slices.Sorted(maps.Keys(r.Errors)) {
		was := "it was"
		if r.Errors[kind] > 1 {
			was = "they were"
		}
		lines = append(lines, fmt.Sprintf("%d failed: %s under way on %s (%s)", r.Errors[kind], was, gateway, kind))
	}
	return lines
}

// answered returns an error unless each unbroken flow has been answered again.
func answered(flows *topo.Flows, before []topo.FlowState) error {
	if n := flows.Waiting(before, 1); n > 0 {
		return fmt.Errorf("%d connections wait for an answer", n)
	}
	return nil
}

// checkHeld checks the connections that were open when a gateway was destroyed. lost are the source
// addresses of that gateway, as backends saw them.
func (d *demo) checkHeld(ctx context.Context, flows *topo.Flows, before []topo.FlowState, lost []string) error {
	_, waiting := d.until(ctx, time.Now(), func(context.Context) error { return answered(flows, before) })
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var kept, keptBroken, gone, reset int
	for i, s := range flows.States() {
		switch {
		case !slices.Contains(lost, before[i].Client):
			kept++
			if s.Broken != nil {
				keptBroken++
			}
		default:
			gone++
			if s.Broken != nil {
				reset++
			}
		}
	}
	d.p.Expect(kept > 0 && keptBroken == 0 && waiting == nil,
		"%d open connections through the remaining gateway: %d broken", kept, keptBroken)
	d.p.Expect(reset == gone, "%d open connections through the destroyed gateway: %d ended. Gateways share no flows:",
		gone, reset)
	d.p.Say("   the other has no entries for them, and answers with a reset, so that clients connect again at once.")
	return nil
}

// end deletes the Service and stops everything.
func (d *demo) end(ctx context.Context) error {
	began := time.Now()
	services := d.lab.Cluster.Client().CoreV1().Services("default")
	if err := services.Delete(ctx, "web", metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return err // with KEEP=1 the user may have deleted it before
	}
	took, err := d.until(ctx, began, func(context.Context) error { return d.hopsAre(0) })
	if ctx.Err() != nil {
		return ctx.Err()
	}
	d.p.Expect(err == nil, "the router has no route to %s any more, %d ms after `kubectl delete`", d.names(),
		took.Milliseconds())
	err = d.lab.Stop()
	d.p.Expect(err == nil, "controller, announcer and gateway end after SIGTERM%s", becauseOf(err))
	for _, g := range d.left {
		left, err := g.Leftovers()
		if err != nil {
			return err
		}
		d.p.Expect(len(left) == 0, "%s is clean: no interface, program, mount or file of Sluice is left%s",
			g.Host.Name, strings.Join(append([]string{""}, left...), ", "))
	}
	return nil
}

// becauseOf formats an error after a colon; "" without one.
func becauseOf(err error) string {
	if err != nil {
		return ": " + err.Error()
	}
	return ""
}
