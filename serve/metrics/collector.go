// Package metrics serves metrics for Prometheus and health checks of the process: /metrics,
// /healthz and /readyz on one configurable address.
//
// The collector reads the same views as the status API (package status) when it is scraped. It
// counts nothing itself, so metrics and status always agree, and metrics cost nothing without
// scrapes.
//
// A released name does not change. The form is sluice_<subject>_<unit>; counters end in _total;
// drop reasons have the names of package stats.
package metrics

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"sluice.dev/sluice/nat/reason"
	"sluice.dev/sluice/serve/status"
)

// Source is the part of status.Gateway that metrics read.
type Source interface {
	Services() []status.ServiceView
	Backends() []status.BackendView
	ServiceTimes() []status.ServiceTimesView
	Stats() status.StatsView
	SourcePorts() []status.SourcePortsView
	Status() status.StatusView
}

// NewRegistry returns a new registry with the metrics of the gateway, its extras, and the metrics
// of every Go process (go_*, process_*).
func NewRegistry(s Source, x Extras) *prometheus.Registry {
	r := prometheus.NewRegistry()
	x.register(r)
	r.MustRegister(
		&collector{source: s, extras: x, d: newDescs()},
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return r
}

type collector struct {
	source Source
	extras Extras
	d      descs
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.d.all {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	e := emitter{ch}
	c.services(e, c.source.Services())
	c.times(e, c.source.ServiceTimes())
	if c.extras.Backends != nil && c.extras.Backends() {
		c.backends(e, c.source.Backends())
	}
	st := c.source.Stats()
	for i := range st.Workers {
		c.worker(e, &st.Workers[i])
	}
	c.flowTables(e, &st)
	c.sourcePorts(e, c.source.SourcePorts())
	c.kernel(e, &st)
	view := c.source.Status()
	c.state(e, &view)
	c.extras.collect(e, &c.d)
}

// emitter writes metrics to one scrape.
type emitter struct{ ch chan<- prometheus.Metric }

func (e emitter) count(d *prometheus.Desc, v float64, labels ...string) {
	e.ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
}

func (e emitter) gauge(d *prometheus.Desc, v float64, labels ...string) {
	e.ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

// histogram emits a histogram with upper bounds in µs, which are bounds of stats.Histogram, so that
// no time is in two buckets.
func (e emitter) histogram(d *prometheus.Desc, v *status.HistogramView, bounds []uint64, labels ...string) {
	const microsPerSecond = 1e6
	buckets, sum, next := map[float64]uint64{}, uint64(0), v.Buckets
	for _, bound := range bounds {
		for len(next) > 0 && next[0].ToMicros != 0 && next[0].ToMicros <= bound {
			sum += next[0].Count
			next = next[1:]
		}
		buckets[float64(bound)/microsPerSecond] = sum
	}
	e.ch <- prometheus.MustNewConstHistogram(d, v.Count, float64(v.SumMicros)/microsPerSecond, buckets, labels...)
}

// timesBounds are the upper bounds of the times of services, from 256 µs to 17 s.
var timesBounds = []uint64{1 << 8, 1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24}

func (e emitter) flag(d *prometheus.Desc, v bool, labels ...string) {
	if v {
		e.gauge(d, 1, labels...)
	} else {
		e.gauge(d, 0, labels...)
	}
}

// Values of the label direction.
const (
	toBackend = "to_backend"
	toClient  = "to_client"
)

func (c *collector) services(e emitter, list []status.ServiceView) {
	n := newNoLocal()
	for i := range list {
		v := &list[i]
		labels := []string{v.Namespace, v.Name, strconv.Itoa(int(v.Port)), v.Protocol}
		e.gauge(c.d.serviceBackends, float64(v.Backends), labels...)
		e.gauge(c.d.serviceUsable, float64(v.Usable), labels...)
		e.count(c.d.serviceFlows, float64(v.Traffic.Flows), labels...)
		e.traffic(c.d.servicePackets, c.d.serviceBytes, v.Traffic, labels)
		n.add(v)
	}
	for key, count := range n {
		e.gauge(c.d.noLocal, float64(count), key[0], key[1])
	}
}

// times writes the times of service ports with any. One without flows has no series: there are
// about thirty for each.
func (c *collector) times(e emitter, list []status.ServiceTimesView) {
	for i := range list {
		v := &list[i]
		if v.Handshake.Count+v.Answer.Count+v.RepeatedSYNs+v.Refused == 0 {
			continue
		}
		labels := []string{v.Namespace, v.Service, strconv.Itoa(int(v.Port)), v.Protocol}
		and := func(label string) []string { return append(labels[:len(labels):len(labels)], label) }
		e.histogram(c.d.serviceAnswer, &v.Answer, timesBounds, labels...)
		if v.Protocol == "UDP" {
			continue
		}
		e.histogram(c.d.serviceHandshake, &v.Handshake, timesBounds, labels...)
		e.count(c.d.serviceRepeatedSYNs, float64(v.RepeatedSYNs), and("no")...)
		e.count(c.d.serviceRepeatedSYNs, float64(v.RepeatedSYNsAfterAnswer), and("yes")...)
		e.count(c.d.serviceRefused, float64(v.Refused), labels...)
		e.count(c.d.serviceResets, float64(v.ResetByBackend), and("backend")...)
		e.count(c.d.serviceResets, float64(v.ResetByClient), and("client")...)
	}
}

func (c *collector) backends(e emitter, list []status.BackendView) {
	for i := range list {
		v := &list[i]
		labels := []string{v.Namespace, v.Service, strconv.Itoa(int(v.Port)), v.Protocol, v.Address.String()}
		e.flag(c.d.backendReady, v.State == "ready", labels...)
		e.gauge(c.d.backendConnections, float64(v.Connections), labels...)
		e.count(c.d.backendFlows, float64(v.Traffic.Flows), labels...)
		e.traffic(c.d.backendPackets, c.d.backendBytes, v.Traffic, labels)
	}
}

func (e emitter) traffic(packets, bytes *prometheus.Desc, t status.Traffic, labels []string) {
	up, down := append(labels, toBackend), append(append([]string(nil), labels...), toClient)
	e.count(packets, float64(t.ToBackend), up...)
	e.count(packets, float64(t.ToClient), down...)
	e.count(bytes, float64(t.ToBackendBytes), up...)
	e.count(bytes, float64(t.ToClientBytes), down...)
}

const nanosPerSecond = 1e9

func (c *collector) worker(e emitter, w *status.WorkerView) {
	id := strconv.Itoa(w.Worker)
	e.count(c.d.received, float64(w.Rx), id)
	e.count(c.d.receivedBytes, float64(w.RxBytes), id)
	e.count(c.d.transmitted, float64(w.Tx), id)
	e.count(c.d.transmittedBytes, float64(w.TxBytes), id)
	e.count(c.d.returned, float64(w.Returned), id)
	e.count(c.d.generated, float64(w.Generated), id)
	e.gauge(c.d.held, float64(w.Held), id)
	e.count(c.d.fromKernel, float64(w.KernelRx), id)
	e.count(c.d.echoReplies, float64(w.EchoReplies), id)
	e.count(c.d.proxyHeaders, float64(w.ProxyHeaders), id)
	e.count(c.d.icmpLimited, float64(w.ICMPLimited), id)
	e.count(c.d.resets, float64(w.Resets), id)
	e.count(c.d.resetsLimited, float64(w.ResetsLimited), id)
	e.count(c.d.badChecksums, float64(w.WrongChecksums), id, "wrong")
	e.count(c.d.badChecksums, float64(w.UnfinishedChecksums), id, "unfinished")
	e.count(c.d.flowsCreated, float64(w.FlowsCreated), id)
	e.count(c.d.flowsRetried, float64(w.FlowsRetried), id)
	e.count(c.d.batches, float64(w.Batches), id)
	e.count(c.d.polls, float64(w.Polls), id)
	e.count(c.d.busy, float64(w.BusyNanos)/nanosPerSecond, id)
	e.count(c.d.idle, float64(w.IdleNanos)/nanosPerSecond, id)
	if w.PulseNanos >= 0 {
		e.gauge(c.d.pulse, float64(w.PulseNanos)/nanosPerSecond, id)
	}
	e.gauge(c.d.frames, float64(w.FrameLaw.Free), id, "free")
	e.gauge(c.d.frames, float64(w.FrameLaw.Links), id, "links")
	e.gauge(c.d.frames, float64(w.FrameLaw.Held), id, "held")
	e.gauge(c.d.umem, float64(w.FrameLaw.Total), id)
	// Every reason is present, also at zero: rate() misses the first event of a counter that
	// appears with it.
	for r := reason.None + 1; r < reason.Count; r++ {
		e.count(c.d.dropped, float64(w.Drops[r.String()]), id, r.String())
	}
}

func (c *collector) flowTables(e emitter, st *status.StatsView) {
	for _, t := range st.Flows {
		e.gauge(c.d.tableCapacity, float64(t.Capacity), t.Family)
		e.gauge(c.d.tableUsed, float64(t.Used), t.Family)
		e.gauge(c.d.tableHalfOpen, float64(t.HalfOpen), t.Family)
		for state, n := range t.States {
			e.gauge(c.d.tableFlows, float64(n), t.Family, state)
		}
		for event, n := range t.Counters {
			e.count(c.d.tableEvents, float64(n), t.Family, event)
		}
	}
	for event, n := range st.FlowEvents {
		e.count(c.d.tableShared, float64(n), event)
	}
}

func (c *collector) sourcePorts(e emitter, list []status.SourcePortsView) {
	for i := range list {
		v := &list[i]
		e.gauge(c.d.portsUsed, v.MostUsed.UsedRatio(), v.Family, v.Protocol)
		e.gauge(c.d.portsUnavailable, v.LeastAvailable.UnavailableRatio(), v.Family, v.Protocol)
	}
}

// kernel writes the counters of the XDP program and the sockets.
func (c *collector) kernel(e emitter, st *status.StatsView) {
	for name, n := range st.Steering {
		e.count(c.d.steering, float64(n), name)
	}
	for _, q := range st.Queues {
		queue := strconv.Itoa(q.Queue)
		for _, r := range []struct {
			reason string
			n      uint64
		}{
			{"rx_dropped", q.RxDropped}, {"rx_ring_full", q.RxRingFull}, {"rx_fill_ring_empty", q.RxFillRingEmpty},
			{"rx_invalid", q.RxInvalidDescs}, {"tx_invalid", q.TxInvalidDescs}, {"tx_ring_empty", q.TxRingEmpty},
		} {
			e.count(c.d.socket, float64(r.n), q.Interface, queue, r.reason)
		}
	}
	e.gauge(c.d.generation, float64(st.Snapshot.Published), "published")
	e.gauge(c.d.generation, float64(st.Snapshot.Steered), "steered")
	e.gauge(c.d.generation, float64(st.Snapshot.Seen), "seen")
	e.gauge(c.d.objects, float64(st.Snapshot.Services), "services")
	e.gauge(c.d.objects, float64(st.Snapshot.Frontends), "frontends")
	e.gauge(c.d.objects, float64(st.Snapshot.Backends), "backends")
}

// levels are the values of sluice_condition_level.
var levels = map[string]float64{"ok": 0, "warn": 1, "fail": 2}

func (c *collector) state(e emitter, v *status.StatusView) {
	e.gauge(c.d.build, 1, v.Version.Version, v.Version.Commit, v.Version.Go)
	e.gauge(c.d.started, float64(v.StartedAt.UnixNano())/nanosPerSecond)
	e.flag(c.d.ready, v.Ready)
	e.flag(c.d.draining, v.Draining)
	e.flag(c.d.applied, v.Applied)
	e.flag(c.d.configRefused, v.Config.Error != "")
	e.gauge(c.d.configRestart, float64(len(v.Config.NeedRestart)))
	problems := map[string]int{}
	for _, s := range v.Sources {
		problems[s.Name] += 0 // a source without problems has the value 0
		e.flag(c.d.sourceSynced, s.Synced, s.Name)
		e.gauge(c.d.sourceRevision, float64(s.Read), s.Name, "read")
		e.gauge(c.d.sourceRevision, float64(s.Applied), s.Name, "applied")
		e.gauge(c.d.sourceObjects, float64(s.Objects), s.Name)
	}
	for _, p := range v.Problems {
		problems[p.Source]++
	}
	for source, n := range problems {
		e.gauge(c.d.problems, float64(n), source)
	}
	for _, i := range v.Interfaces {
		e.flag(c.d.interfaceUp, i.Up, i.Name, i.Mode)
		for _, q := range i.Queues {
			e.flag(c.d.queueBound, q.Bound, i.Name, strconv.Itoa(q.Queue), strconv.Itoa(q.Worker),
				strconv.FormatBool(q.ZeroCopy))
		}
	}
	worst := map[string]float64{} // several interfaces may have the same condition
	for _, n := range v.Conditions {
		worst[n.Name] = max(worst[n.Name], levels[n.Level])
	}
	for name, level := range worst {
		e.gauge(c.d.condition, level, name)
	}
	if v.Group != nil {
		e.group(&c.d, v.Group)
	}
	if v.FlowLog != nil {
		e.count(c.d.flowLogLines, float64(v.FlowLog.Written), "written")
		e.count(c.d.flowLogLines, float64(v.FlowLog.Lost), "lost")
	}
}
