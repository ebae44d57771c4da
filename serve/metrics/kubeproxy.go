package metrics

import (
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice.dev/sluice/control/loop"
	"sluice.dev/sluice/control/tracker"
	"sluice.dev/sluice/serve/status"
)

// KubeProxy has the metrics with the same meaning as in kube-proxy, with kube-proxy's names, labels
// and buckets (k8s.io/kubernetes pkg/proxy/metrics/metrics.go, v1.36), so that dashboards and
// alerts for a cluster include its gateways.
//
// kube-proxy syncs each family separately. Here one pass of the control loop covers both families,
// so both values of ip_family are always equal.
type KubeProxy struct {
	config KubeProxyConfig

	sync, full, partial, programming *prometheus.HistogramVec
	synced, queued                   *prometheus.GaugeVec
	endpointChanges, serviceChanges  prometheus.Counter
	healthz, livez                   *prometheus.CounterVec

	endpointsPending, servicesPending *prometheus.Desc
}

// KubeProxyConfig has functions that KubeProxy calls when it is scraped.
type KubeProxyConfig struct {
	// Waiting counts objects that were read and are not in a pass yet; if it is nil, there are
	// none.
	Waiting func() tracker.Waiting
	// Queued returns since when the oldest update waits to be applied; the zero time if none waits.
	// If it is nil, none ever waits.
	Queued func() time.Time
}

const kubeProxyPrefix = "kubeproxy_"

var families = [...]string{"IPv4", "IPv6"} // values of ip_family, as in core/v1

// programmingBuckets are kube-proxy's buckets: 0.25, 0.5, 1 to 59 by 1, 60 to 115 by 5, 120 to 300
// by 30, in seconds.
func programmingBuckets() []float64 {
	return slices.Concat(
		prometheus.LinearBuckets(0.25, 0.25, 2), prometheus.LinearBuckets(1, 1, 59),
		prometheus.LinearBuckets(60, 5, 12), prometheus.LinearBuckets(120, 30, 7))
}

// NewKubeProxy returns metrics without any event.
func NewKubeProxy(c KubeProxyConfig) *KubeProxy {
	histogram := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: kubeProxyPrefix + name, Help: help,
			Buckets: buckets}, []string{"ip_family"})
	}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: kubeProxyPrefix + name, Help: help},
			[]string{"ip_family"})
	}
	counter := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Name: kubeProxyPrefix + name, Help: help}
	}
	durations := prometheus.ExponentialBuckets(0.001, 2, 15)
	k := &KubeProxy{
		config: c,
		sync: histogram("sync_proxy_rules_duration_seconds",
			"Time to compile, publish and steer by a batch of changes.", durations),
		full: histogram("sync_full_proxy_rules_duration_seconds",
			"As sync_proxy_rules_duration_seconds, of all objects: the first table, a new configuration.", durations),
		partial: histogram("sync_partial_proxy_rules_duration_seconds",
			"As sync_proxy_rules_duration_seconds, of what changed.", durations),
		programming: histogram("network_programming_duration_seconds",
			"Time from the change of an endpoint (annotation last-change-trigger-time) until it is in force.",
			programmingBuckets()),
		synced: gauge("sync_proxy_rules_last_timestamp_seconds", "When changes were last in force."),
		queued: gauge("sync_proxy_rules_last_queued_timestamp_seconds",
			"When changes were last waiting. Much later than the last sync: something hangs."),
		endpointChanges: prometheus.NewCounter(counter("sync_proxy_rules_endpoint_changes_total",
			"EndpointSlices that changed; several changes of one in a batch are one.")),
		serviceChanges: prometheus.NewCounter(counter("sync_proxy_rules_service_changes_total",
			"Services that changed; several changes of one in a batch are one.")),
		healthz: prometheus.NewCounterVec(counter("proxy_healthz_total",
			"Answers of /healthz at health.address."), []string{"code"}),
		livez: prometheus.NewCounterVec(counter("proxy_livez_total", "Answers of /livez at health.address."),
			[]string{"code"}),
		endpointsPending: prometheus.NewDesc(kubeProxyPrefix+"sync_proxy_rules_endpoint_changes_pending",
			"EndpointSlices that were read and wait for a batch.", nil, nil),
		servicesPending: prometheus.NewDesc(kubeProxyPrefix+"sync_proxy_rules_service_changes_pending",
			"Services that were read and wait for a batch.", nil, nil),
	}
	// All possible events start at zero: rate() misses the first step of a new counter.
	for _, code := range []string{"200", "503"} {
		k.healthz.WithLabelValues(code)
		k.livez.WithLabelValues(code)
	}
	for _, f := range families {
		for _, h := range []*prometheus.HistogramVec{k.sync, k.full, k.partial, k.programming} {
			h.WithLabelValues(f)
		}
	}
	return k
}

// Synced implements loop.Observer.
func (k *KubeProxy) Synced(s *loop.Sync) {
	end := s.Started.Add(s.Took)
	kind := k.partial
	if s.Full {
		kind = k.full
	}
	for _, f := range families {
		k.sync.WithLabelValues(f).Observe(s.Took.Seconds())
		kind.WithLabelValues(f).Observe(s.Took.Seconds())
		k.synced.WithLabelValues(f).Set(seconds(end))
		k.queued.WithLabelValues(f).Set(seconds(s.Queued))
		for _, t := range s.Triggers {
			// A negative time is an error of another clock, and a sum must not shrink.
			k.programming.WithLabelValues(f).Observe(max(0, end.Sub(t).Seconds()))
		}
	}
	k.endpointChanges.Add(float64(s.EndpointSlices))
	k.serviceChanges.Add(float64(s.Services))
}

func seconds(t time.Time) float64 { return float64(t.UnixNano()) / nanosPerSecond }

// Answered counts an answer of the health server: /healthz or /livez.
func (k *KubeProxy) Answered(path string, code int) {
	if path == "/livez" {
		k.livez.WithLabelValues(strconv.Itoa(code)).Inc()
	} else {
		k.healthz.WithLabelValues(strconv.Itoa(code)).Inc()
	}
}

func (k *KubeProxy) parts() []prometheus.Collector {
	return []prometheus.Collector{
		k.sync, k.full, k.partial, k.programming, k.synced, k.queued,
		k.endpointChanges, k.serviceChanges, k.healthz, k.livez,
	}
}

// Describe implements prometheus.Collector.
func (k *KubeProxy) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range k.parts() {
		c.Describe(ch)
	}
	ch <- k.endpointsPending
	ch <- k.servicesPending
}

// Collect implements prometheus.Collector.
func (k *KubeProxy) Collect(ch chan<- prometheus.Metric) {
	if k.config.Queued != nil {
		if t := k.config.Queued(); !t.IsZero() {
			for _, f := range families {
				k.queued.WithLabelValues(f).Set(seconds(t))
			}
		}
	}
	for _, c := range k.parts() {
		c.Collect(ch)
	}
	var w tracker.Waiting
	if k.config.Waiting != nil {
		w = k.config.Waiting()
	}
	e := emitter{ch}
	e.gauge(k.endpointsPending, float64(w.EndpointSlices))
	e.gauge(k.servicesPending, float64(w.Services))
}

// noLocal counts service ports, by family, that drop packets because they have a Local traffic
// policy and all their endpoints are on other nodes.
type noLocal map[[2]string]int // by traffic_policy and ip_family

func newNoLocal() noLocal {
	n := noLocal{}
	for _, f := range families {
		n[[2]string{"internal", f}], n[[2]string{"external", f}] = 0, 0
	}
	return n
}

// add counts a service port once for each policy and family.
func (n noLocal) add(v *status.ServiceView) {
	seen := map[[2]string]bool{}
	for i := range v.Frontends {
		f := &v.Frontends[i]
		if f.Empty != "drop" || f.Usable > 0 {
			continue
		}
		key := [2]string{"external", families[0]}
		if f.Kind == "ClusterIP" {
			key[0] = "internal"
		}
		if f.Address[0] == '[' { // [2001:db8::1]:80
			key[1] = families[1]
		}
		if !seen[key] {
			seen[key] = true
			n[key]++
		}
	}
}
