package demo

import (
	"context"
	"fmt"
	"time"

	"sluice.dev/sluice/bench/demo/console"
	"sluice.dev/sluice/test/bed/topo"
)

// churn rewrites the manifest of web's endpoints while connections are open and new ones are made.
func (d *demo) churn(ctx context.Context) (err error) {
	d.flows, err = d.client.OpenTCP(ctx, topo.FlowLoad{
		Targets: webVIP, Flows: d.longFlows, Interval: 100 * time.Millisecond, Timeout: d.bound(2 * answerTimeout),
	})
	if err != nil {
		return err
	}
	d.p.Say("%d TCP connections are opened, with a request every 100 ms each; they stay open in acts 5 to 7.",
		d.longFlows)
	d.p.Say("Meanwhile 8 clients make new connections continuously.")
	load := d.load(ctx, webVIP)
	defer load.cancel()
	c := console.Columns{-16, -36, 10, -34}
	d.p.Head(c, "change", "endpoints then", "applied in", "new connections afterwards")
	toRemoved := int64(0)
	for i := range d.changes {
		n, err := d.change(ctx, c, d.net.Backends[toggled[i%len(toggled)]])
		if err != nil {
			return err
		}
		toRemoved += n
	}
	r, err := load.stop()
	if err != nil {
		return err
	}
	d.p.Say("")
	d.p.Expect(toRemoved == 0, "after each change was applied, new connections to removed endpoints: %d", toRemoved)
	d.p.Expect(r.Failed() == 0 && r.Requests > 0, "%s new connections meanwhile, %s errors",
		console.Grouped(r.Requests), console.Grouped(r.Failed()))
	d.errors(r)
	d.unbroken(ctx)
	return nil
}

// toggled are the numbers of the backends that are added to the endpoints, or removed from them, in
// turn. The first three are endpoints at the start, and again at the end; there are always two.
var toggled = [...]int{3, 0, 1, 0, 2, 1, 3, 2, 0, 0}

// change adds an endpoint, or removes it if it is one, and returns the number of new connections to
// a removed endpoint afterwards.
func (d *demo) change(ctx context.Context, c console.Columns, which *topo.Host) (toRemoved int64, err error) {
	next, added := without(d.web, which), false
	if len(next) == len(d.web) {
		next, added = append(next, which), true
	}
	began := time.Now()
	if err := d.gw.Apply(webService(next)); err != nil {
		return 0, err
	}
	if _, err := d.gw.Applied(ctx); err != nil {
		return 0, err
	}
	took := time.Since(began)
	d.web = next
	r, err := d.probe(ctx)
	if err != nil {
		return 0, err
	}
	listed := int64(0)
	for _, h := range next {
		listed += r.Shares[h.Name]
	}
	removed := r.Requests - r.Failed() - listed
	what := "- " + which.Name
	if added {
		what = "+ " + which.Name
	}
	d.p.Row(c, what, names(next), fmt.Sprintf("%d ms", took.Milliseconds()),
		fmt.Sprintf("%d, %d to %s, %d errors", r.Requests, r.Shares[which.Name], which.Name, r.Failed()))
	d.errors(r)
	if r.Failed() > 0 {
		d.p.Fail("0 errors of new connections after a change")
	}
	if added && r.Shares[which.Name] == 0 {
		d.p.Fail("new connections come to an endpoint that was added: " + which.Name)
	}
	return removed, nil
}

// drain drains a backend by the operator's command, and undoes that.
func (d *demo) drain(ctx context.Context) error {
	b := d.web[0]
	had := d.flows.ByBackend()[b.Name]
	if err := d.operate(ctx, "drain", b); err != nil {
		return err
	}
	r, err := d.probe(ctx)
	if err != nil {
		return err
	}
	d.p.Expect(r.Shares[b.Name] == 0 && r.Failed() == 0, "%d new connections: %d to %s, %d errors", r.Requests,
		r.Shares[b.Name], b.Name, r.Failed())
	d.errors(r)
	d.unbroken(ctx)
	has := d.flows.ByBackend()[b.Name]
	d.p.Expect(has == had, "%d of them are with %s, as before (%d)", has, b.Name, had)
	if err := d.operate(ctx, "undrain", b); err != nil {
		return err
	}
	if r, err = d.probe(ctx); err != nil {
		return err
	}
	d.p.Expect(r.Shares[b.Name] > 0 && r.Failed() == 0, "%d new connections: %d to %s, %d errors", r.Requests,
		r.Shares[b.Name], b.Name, r.Failed())
	d.errors(r)
	return nil
}

// operate runs an operator's command for both addresses of a backend.
func (d *demo) operate(ctx context.Context, verb string, b *topo.Host) error {
	for _, a := range []string{b.Addr4().String(), b.Addr6().String()} {
		d.p.Say("$ sluice %s %s", verb, a)
		out, err := d.gw.Command(ctx, verb, a)
		if err != nil {
			return err
		}
		d.p.Say("  %s", out)
	}
	_, err := d.gw.Applied(ctx)
	return err
}

// restartWithin is the limit of the forwarding gap of a restart on an idle machine. On a busy
// machine the limit is restartsOfFirst times the duration of the demo's first start.
const (
	restartWithin   = time.Second
	restartsOfFirst = 3
)

// retransmitted is the time after which a lost SYN has been sent again (RFC 6298 section 2.1: after
// one second) and answered.
const retransmitted = 1500 * time.Millisecond

// crash kills the daemon under load, starts it again, and measures the gap.
func (d *demo) crash(ctx context.Context) error {
	if err := d.laws(ctx, "before the kill"); err != nil {
		return err
	}
	probe, err := d.client.Number(topo.NumberedLoad{From: d.client.Addr4(), To: echoVIP4, Rate: probeRate,
		Patience: probePatience})
	if err != nil {
		return err
	}
	if _, err := d.answered(ctx, probe, 0); err != nil {
		return err
	}
	load := d.load(ctx, webVIP)
	defer load.cancel()
	d.silent(ctx) // one answer on every connection, under load
	d.p.Say("$ kill -9 %d", d.gw.PID())
	killed := time.Now()
	if err := d.gw.Kill(); err != nil {
		return err
	}
	dead := time.Now()
	if err := d.gw.Launch(); err != nil {
		return err
	}
	answers := probe.Answered() // none comes until the new daemon forwards
	first, err := d.answered(ctx, probe, answers)
	if err != nil {
		return err
	}
	_, _, _, _ = probe.Finish() // datagrams of the outage are lost
	d.p.Say("killed; the process was gone after %d ms and was started again at once, pid %d",
		dead.Sub(killed).Milliseconds(), d.gw.PID())
	within := max(d.bound(restartWithin), restartsOfFirst*d.started)
	d.p.Expect(first.Sub(dead) < within, "the next packet is forwarded %d ms after the new start (within %d ms)",
		first.Sub(dead).Milliseconds(), within.Milliseconds())
	if _, err := d.gw.Applied(ctx); err != nil {
		return err
	}
	d.unbroken(ctx)
	select { // the load continues, so that its result includes connections that wait for a second SYN
	case <-time.After(d.bound(retransmitted)):
	case <-ctx.Done():
	}
	r, err := load.stop()
	if err != nil {
		return err
	}
	d.p.Expect(r.Failed() == 0 && r.Requests > 0,
		"%s new connections meanwhile, %s errors, slowest %.1f s (a lost SYN is sent again after 1 s)",
		console.Grouped(r.Requests), console.Grouped(r.Failed()), float64(r.Latency.Max())/1e6)
	d.errors(r)
	return nil
}
