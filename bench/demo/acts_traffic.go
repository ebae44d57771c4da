package demo

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"sluice.dev/sluice/bench/demo/console"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/topo"
)

// place starts the gateway and shows the network.
func (d *demo) place(ctx context.Context) error {
	began := time.Now()
	if err := d.gw.Launch(); err != nil {
		return err
	}
	v, err := d.gw.Applied(ctx)
	if err != nil {
		return err
	}
	d.started, d.applied = time.Since(began), v
	for _, line := range d.drawing() {
		d.p.Say("%s", line)
	}
	d.p.Say("")
	d.modes(v.Interfaces)
	d.p.Say("")
	d.p.Expect(v.Ready, "the gateway serves %d services, %d frontends, %d endpoints, %d ms after its start",
		v.Snapshot.Services, v.Snapshot.Frontends, v.Snapshot.Backends, d.started.Milliseconds())
	d.p.Expect(len(v.Problems) == 0, "the manifests have no problems: %d", len(v.Problems))
	for _, problem := range v.Problems {
		d.p.Say("   %s %s %s: %s", problem.Source, problem.Object, problem.Field, problem.Message)
	}
	for _, c := range v.Conditions {
		if c.Level != "ok" {
			d.p.Say("%s: %s: %s", c.Level, c.Name, c.Detail)
		}
	}
	return nil
}

// drawing is the network with its addresses.
func (d *demo) drawing() []string {
	front, back := d.net.Gateway.Interfaces[0], d.net.Gateway.Interfaces[1]
	c := d.client
	left := []string{c.Name, c.Addr4().String(), c.Addr6().String()}
	lines := []string{
		fmt.Sprintf("%-12s      ┌─────────── gateway ───────────┐", ""),
		fmt.Sprintf("%-12s      │ front0    sluice run    back0 │", left[0]),
		fmt.Sprintf("%-12s ─────┤ %-13s  %14s ├──┬─", left[1], front.Addr4.Addr(), back.Addr4.Addr()),
		fmt.Sprintf("%-12s      │ %-13s  %14s │  ├─", left[2], front.Addr6.Addr(), back.Addr6.Addr()),
		fmt.Sprintf("%-12s      └───────────────────────────────┘  ├─", ""),
	}
	for len(lines) < 2+len(d.net.Backends) {
		lines = append(lines, strings.Repeat(" ", 53)+"├─")
	}
	for i, b := range d.net.Backends {
		lines[2+i] += fmt.Sprintf(" %s  %-12s %s", b.Name, b.Addr4(), b.Addr6())
	}
	last := 1 + len(d.net.Backends)
	lines[last] = strings.Replace(lines[last], "├─ ", "└─ ", 1)
	return append(lines,
		"",
		fmt.Sprintf("demo/web    TCP 80   VIPs %s %s   external IPs %s %s   node port %d", webVIP4.Addr(),
			webVIP6.Addr(), webExt4.Addr(), webExt6.Addr(), nodePort),
		fmt.Sprintf("demo/echo   UDP 7    VIPs %s %s", echoVIP4.Addr(), echoVIP6.Addr()),
		fmt.Sprintf("demo/local  TCP 81   VIPs %s %s   external traffic policy Local", localVIP4.Addr(),
			localVIP6.Addr()),
	)
}

// modes shows how each queue is served, and why.
func (d *demo) modes(interfaces []status.InterfaceView) {
	c := console.Columns{-9, 5, 6, -7, -9}
	d.p.Head(c, "interface", "queue", "worker", "xdp", "socket", "why")
	for _, i := range interfaces {
		for _, q := range i.Queues {
			d.p.Row(c, i.Name, q.Queue, q.Worker, i.Mode, q.SocketMode(), i.Why(&q))
		}
	}
}

// maxDeviation is the accepted deviation of a share from its fair value, in standard deviations: a
// fair gateway exceeds it once in a million tables.
const maxDeviation = 5

// http sends requests to every kind of address.
func (d *demo) http(ctx context.Context) error {
	gw := d.net.Gateway
	ways := []struct {
		name   string
		target netip.AddrPort
	}{
		{"VIP", webVIP4}, {"VIP", webVIP6},
		{"node port", netip.AddrPortFrom(gw.Addr4(), nodePort)},
		{"node port", netip.AddrPortFrom(gw.Addr6(), nodePort)},
		{"external IP", webExt4}, {"external IP", webExt6},
	}
	c := console.Columns{-11, -22, 8, 6, 8, 8, 8, 5, 8, 8}
	d.p.Head(c, "way in", "", "requests", "errors", d.web[0].Name, d.web[1].Name, d.web[2].Name, "worst", "p50", "p99")
	var requests, failed int64
	worst, rate := 0.0, 0.0
	for _, way := range ways {
		r, err := d.client.HTTP(ctx, topo.HTTPLoad{Targets: []netip.AddrPort{way.target}, Requests: d.requests,
			Concurrency: 16})
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		deviation := r.Deviation(d.fair())
		d.shares(c, r, r, deviation, way.name, way.target, console.Grouped(r.Requests), console.Grouped(r.Failed()))
		requests, failed, worst = requests+r.Requests, failed+r.Failed(), max(worst, deviation)
		rate += float64(r.Requests) / r.Elapsed.Seconds() / float64(len(ways))
	}
	d.p.Say("")
	d.p.Expect(requests == int64(len(ways)*d.requests) && failed == 0,
		"%s requests, %s errors (%s new connections a second)", console.Grouped(requests), console.Grouped(failed),
		console.Grouped(int64(rate)))
	d.p.Expect(worst <= maxDeviation, "every share is within %d standard deviations of fair: the worst is %.1f off",
		maxDeviation, worst)
	return nil
}

// shares prints a row of a client's results: some cells, each backend's share of the drawn flows,
// the greatest deviation from fair, and times; errors follow below it.
func (d *demo) shares(c console.Columns, r, drawn *topo.Result, deviation float64, cells ...any) {
	for _, b := range d.web {
		cells = append(cells, share(drawn, b.Name))
	}
	d.p.Row(c, append(cells, fmt.Sprintf("%.1fσ", deviation), quantile(r, 50), quantile(r, 99))...)
	d.errors(r)
}

// fair returns equal weights for web's endpoints.
func (d *demo) fair() map[string]float64 {
	weights := make(map[string]float64)
	for _, b := range d.web {
		weights[b.Name] = 1
	}
	return weights
}

func share(r *topo.Result, backend string) string {
	answers := r.Requests - r.Failed()
	return fmt.Sprintf("%.1f %%", 100*float64(r.Shares[backend])/float64(max(1, answers)))
}

func quantile(r *topo.Result, q float64) string {
	return fmt.Sprintf("%.2f ms", float64(r.Latency.ValueAtQuantile(q))/1000)
}

// errors prints the errors by kind.
func (d *demo) errors(r *topo.Result) {
	for kind, n := range r.Errors {
		d.p.Say("   %s: %d", kind, n)
	}
}

// udpRounds is the least number of datagrams that each UDP flow exchanges.
const udpRounds = 5

// udpTimeout is the time after which a datagram without an answer counts as lost. A late answer on
// a busy machine must not count.
const udpTimeout = 5 * time.Second

// udp opens flows to the echo service and exchanges some datagrams on each.
func (d *demo) udp(ctx context.Context) error {
	c := console.Columns{-11, -22, 8, 9, 6, 8, 8, 8, 5, 8, 8}
	d.p.Head(c, "way in", "", "flows", "datagrams", "lost", d.web[0].Name, d.web[1].Name, d.web[2].Name, "worst", "p50",
		"p99")
	var lost int64
	worst, moves := 0.0, 0
	for _, target := range []netip.AddrPort{echoVIP4, echoVIP6} {
		f, err := d.client.OpenUDP(ctx, topo.FlowLoad{
			Targets: []netip.AddrPort{target}, Flows: d.udpFlows, Interval: 200 * time.Millisecond,
			Timeout: d.bound(udpTimeout),
		})
		if err != nil {
			return err
		}
		d.rounds(ctx, f, udpRounds)
		r := f.Stop()
		// Each flow is drawn once, regardless of its number of datagrams.
		drawn := &topo.Result{Shares: map[string]int64{}}
		for _, s := range f.States() {
			drawn.Shares[s.Backend]++
			drawn.Requests++
			moves += s.Moves
		}
		deviation := drawn.Deviation(d.fair())
		d.shares(c, r, drawn, deviation, "VIP", target, d.udpFlows, console.Grouped(r.Requests),
			console.Grouped(r.Failed()))
		lost, worst = lost+r.Failed(), max(worst, deviation)
	}
	d.p.Say("")
	d.p.Expect(lost == 0, "every datagram was answered: %d lost", lost)
	d.p.Expect(moves == 0, "every flow stayed with its backend: %d moves", moves)
	d.p.Expect(worst <= maxDeviation, "every share is within %d standard deviations of fair: the worst is %.1f off",
		maxDeviation, worst)
	return nil
}

// rounds waits until every flow has been answered n times, or has lost a datagram.
func (d *demo) rounds(ctx context.Context, f *topo.Flows, n int64) {
	_ = topo.Until(ctx, d.bound(answerTimeout), 10*time.Millisecond, func(context.Context) error {
		if slices.ContainsFunc(f.States(), func(s topo.FlowState) bool { return s.Answers+s.Lost < n }) {
			return errWaiting
		}
		return nil
	})
}

// clientAddress compares the source addresses that backends see under the two external traffic
// policies.
func (d *demo) clientAddress(ctx context.Context) error {
	gw := d.net.Gateway
	c := console.Columns{-8, -22, 8, 6, -26, -12}
	d.p.Head(c, "policy", "VIP", "requests", "errors", "answered by", "which saw")
	right := map[string]int{} // requests by policy whose answers were correct
	for _, w := range []struct {
		policy string
		target netip.AddrPort
		by     []*topo.Host
		seen   *topo.Host
	}{
		{"Cluster", webVIP4, d.web, gw},
		{"Cluster", webVIP6, d.web, gw},
		{"Local", localVIP4, []*topo.Host{gw}, d.client},
		{"Local", localVIP6, []*topo.Host{gw}, d.client},
	} {
		r, err := d.client.HTTP(ctx, topo.HTTPLoad{Targets: []netip.AddrPort{w.target}, Requests: d.probes,
			Concurrency: 8})
		if err != nil {
			return err
		}
		var by, seen int64
		for _, h := range w.by {
			by += r.Shares[h.Name]
		}
		for _, i := range w.seen.Interfaces { // the route determines the source address
			seen += r.Clients[i.Addr4.Addr().String()] + r.Clients[i.Addr6.Addr().String()]
		}
		right[w.policy] += int(min(by, seen))
		d.p.Row(c, w.policy, w.target, r.Requests, r.Failed(), keys(r.Shares), keys(r.Clients))
		d.errors(r)
	}
	d.p.Say("")
	n := 2 * d.probes
	d.p.Expect(right["Cluster"] == n, "Cluster: %d of %d answered by backends, which saw an address of the gateway's",
		right["Cluster"], n)
	d.p.Expect(right["Local"] == n,
		"Local: %d of %d answered by the endpoint on the gateway, which saw the client's own", right["Local"], n)
	return nil
}

// keys lists the keys of counts.
func keys(m map[string]int64) string {
	return strings.Join(slices.Sorted(maps.Keys(m)), " ")
}
