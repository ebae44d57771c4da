package updates

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/cluster"
	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/observer"
	"sluice.dev/sluice/test/bed/topo"
)

// lab is the network and its measurement.
type lab struct {
	*Config
	result *Result
	source source
	net    *topo.Net
	gate   *launch.Gateway
	probes *probes
	tcp    *topo.Flows
	udp    *topo.Flows
}

// build makes everything except the daemon.
func (l *lab) build(ctx context.Context) (err error) {
	if l.net, err = topo.New(topo.Config{Clients: 2, Backends: 2, Queues: 2}); err != nil {
		return err
	}
	if l.source, err = newSource(ctx, l.Server); err != nil {
		return err
	}
	gateway, steady := l.net.Gateway, l.net.Backends[1]
	if _, err := steady.Serve(podPort); err != nil {
		return err
	}
	if l.probes, err = newProbes(l.Probed, gateway, l.net.Backends[0]); err != nil {
		return err
	}
	for _, v := range l.probes.versions {
		v.send(time.Now()) // the first, which is not a change
	}
	began := time.Now()
	node := cluster.NewNode(gatewayNode, "", gateway.Addr4(), gateway.Addr6())
	if err := l.source.fill(ctx, append(l.population(steady.Addr4()), node)); err != nil {
		return err
	}
	l.say("%d Services of %d endpoints written: %.1f s", l.Services, l.Endpoints, time.Since(began).Seconds())
	kubeconfig, err := l.source.start(ctx, gateway)
	if err != nil {
		return err
	}
	l.gate, err = launch.New(launch.Config{
		Sluice: l.Sluice, Host: gateway, NodeName: gatewayNode, Env: l.Env,
		Options: fmt.Sprintf("kubernetes: {enabled: true, kubeconfig: %q}\n", kubeconfig),
	})
	return err
}

func (l *lab) say(format string, args ...any) { fmt.Fprintf(l.Progress, format+"\n", args...) }

// measure starts the daemon, and then traffic and changes.
func (l *lab) measure(ctx context.Context) error {
	if err := l.start(ctx); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	sending, stop := context.WithCancel(ctx)
	defer stop()
	group.Go(func() error { return l.probes.send(sending, l.net.Clients[0], l.Probe) })
	group.Go(func() error {
		defer stop()
		if err := l.steadyFlows(ctx); err != nil {
			return err
		}
		return l.underLoad(ctx)
	})
	if err := group.Wait(); err != nil {
		return err
	}
	for _, v := range l.probes.versions {
		list, unseen := v.latencies()
		l.result.latencies = append(l.result.latencies, list...)
		l.result.Unseen += unseen
	}
	l.result.Latency = quantiles(l.result.latencies)
	l.result.ProbesApart = quantiles(l.probes.apart)
	return nil
}

// start starts the daemon.
func (l *lab) start(ctx context.Context) error {
	began := time.Now()
	if err := l.gate.Launch(); err != nil {
		return err
	}
	st, err := l.gate.Applied(ctx)
	if err != nil {
		return err
	}
	l.result.Started = time.Since(began)
	l.result.Services, l.result.Frontends, l.result.Backends = st.Snapshot.Services, st.Snapshot.Frontends,
		st.Snapshot.Backends
	l.result.MemoryFirst, err = observer.ProcessMemory(l.gate.PID())
	return err
}

// metricsURL is of the default of the daemon's metrics.address.
const metricsURL = "http://127.0.0.1:9470/metrics"

// scrape reads the daemon's metrics, once and last: with this number of Services that costs the
// daemon more than all changes. The metrics include the times in which full tables were compiled,
// published and first used. The first is the table of all objects, begun when all lists were read;
// there are more if addresses of the node came later.
func (l *lab) scrape(ctx context.Context) error {
	began := time.Now()
	_, text, err := l.net.Gateway.Get(ctx, metricsURL)
	if err != nil {
		return fmt.Errorf("the daemon's metrics: %w", err)
	}
	r := l.result
	r.Scrape, r.ScrapeBytes = time.Since(began), len(text)
	if r.MemoryScraped, err = observer.ProcessMemory(l.gate.PID()); err != nil {
		return err
	}
	sum, err := metric(text, "kubeproxy_sync_full_proxy_rules_duration_seconds_sum")
	if err != nil {
		return err
	}
	count, err := metric(text, "kubeproxy_sync_full_proxy_rules_duration_seconds_count")
	r.FirstTable, r.FullTables = time.Duration(sum*float64(time.Second)), int(count)
	return err
}

// metric is the value of a metric for IPv4.
func metric(text, name string) (float64, error) {
	_, rest, found := strings.Cut(text, "\n"+name+`{ip_family="IPv4"} `)
	if !found {
		return 0, fmt.Errorf("the daemon has no metric %s for IPv4", name)
	}
	value, _, _ := strings.Cut(rest, "\n")
	return strconv.ParseFloat(value, 64)
}

// Flows of each protocol to the steady Service, which send requests continuously.
const (
	steadyFlows  = 20
	steadyEvery  = 20 * time.Millisecond
	steadyAnswer = time.Second
)

func (l *lab) steadyFlows(ctx context.Context) (err error) {
	load := topo.FlowLoad{
		Targets: []netip.AddrPort{netip.AddrPortFrom(cluster.NumberedVIP(l.steady()), servicePort)},
		Flows:   steadyFlows, Interval: steadyEvery, Timeout: steadyAnswer,
	}
	if l.udp, err = l.net.Clients[1].OpenUDP(ctx, load); err != nil {
		return err
	}
	load.Timeout *= 10 // TCP retransmits lost segments, which its counters show
	l.tcp, err = l.net.Clients[1].OpenTCP(ctx, load)
	return err
}

// settle is how long traffic runs before the first change and after the last.
const settle = time.Second

// underLoad makes the changes and compares the counters before and after.
func (l *lab) underLoad(ctx context.Context) error {
	if err := topo.Pause(ctx, settle); err != nil {
		return err
	}
	if !l.probes.arrived() {
		return errors.New("datagrams to a probed Service do not arrive")
	}
	before, err := l.reading(ctx)
	if err != nil {
		return err
	}
	if err := l.change(ctx); err != nil {
		return err
	}
	if err := topo.Pause(ctx, settle); err != nil {
		return err
	}
	after, err := l.reading(ctx)
	if err != nil {
		return err
	}
	l.compare(before, after)
	if l.result.Memory, err = observer.ProcessMemory(l.gate.PID()); err != nil {
		return err
	}
	return l.scrape(ctx)
}

// reading holds the counters at a time.
type reading struct {
	stats  status.StatsView
	used   observer.Usage
	client topo.Counters
}

func (l *lab) reading(ctx context.Context) (r reading, err error) {
	if r.stats, err = l.gate.Client.Stats(ctx); err != nil {
		return r, err
	}
	if r.used, err = observer.ProcessUsage(l.gate.PID()); err != nil {
		return r, err
	}
	r.client, err = l.net.Clients[1].Counters()
	return r, err
}

// compare sets the differences between two readings.
func (l *lab) compare(before, after reading) {
	r := l.result
	used := after.used.Sub(before.used)
	r.CPU, r.CPUWorkers, r.Waited = used.Own, used.Pinned, used.Waited
	r.Dropped = map[string]uint64{}
	for i := range after.stats.Workers {
		a, b := &after.stats.Workers[i], &before.stats.Workers[i]
		r.Received += a.Rx - b.Rx
		for name, n := range a.Drops {
			if n -= b.Drops[name]; n > 0 {
				r.Dropped[name] += n
			}
		}
	}
	for i := range after.stats.Queues {
		a, b := &after.stats.Queues[i], &before.stats.Queues[i]
		r.RingLost += a.RxDropped - b.RxDropped + a.RxRingFull - b.RxRingFull
	}
	r.Tables = after.stats.Snapshot.Published - before.stats.Snapshot.Published
	r.Repeated = after.client.Since(before.client).Retransmitted()
	r.Broken = l.tcp.Broken() + l.udp.Broken()
	for _, s := range l.udp.States() {
		r.Asked += s.Answers + s.Lost
		r.Unanswered += s.Lost
	}
	for _, s := range l.tcp.States() {
		r.AskedTCP += s.Answers
	}
	answers := l.udp.Stop().Latency // in microseconds
	micros := func(v int64) time.Duration { return time.Duration(v) * time.Microsecond }
	r.Answers = Quantiles{
		Count: int(answers.TotalCount()), P50: micros(answers.ValueAtQuantile(50)),
		P99:  micros(answers.ValueAtQuantile(99)),
		P999: micros(answers.ValueAtQuantile(99.9)), Max: micros(answers.Max()),
	}
}

func (l *lab) close() error {
	var errs []error
	for _, f := range []*topo.Flows{l.tcp, l.udp} {
		if f != nil {
			f.Stop()
		}
	}
	if l.gate != nil {
		errs = append(errs, l.gate.Close())
	}
	if l.probes != nil {
		errs = append(errs, l.probes.close())
	}
	if l.source != nil {
		errs = append(errs, l.source.close())
	}
	if l.net != nil {
		errs = append(errs, l.net.Close())
	}
	return errors.Join(errs...)
}
