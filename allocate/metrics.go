package allocate

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"sluice.dev/sluice/allocate/pools"
	"sluice.dev/sluice/internal/kubewatch"
)

// Metrics are the controller's metrics, and whether it is ready. A process that does not lead only
// exports that fact, and is ready.
type Metrics struct {
	mu      sync.Mutex
	current *controller
	readers []reader
	waiting string // why a leader gives no addresses yet; empty: it does, or does not lead
}

// leads sets the controller of the running term; nil: this process does not lead.
func (m *Metrics) leads(c *controller) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.current, m.waiting = c, ""; c == nil {
		m.readers = nil
	}
}

// reader is an informer of the current term.
type reader struct {
	objects string
	*kubewatch.Informer
}

// reads adds an informer of the current term.
func (m *Metrics) reads(objects string, i *kubewatch.Informer) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.readers = append(m.readers, reader{objects, i})
}

// waitsFor sets the reason that the leader gives no addresses yet.
func (m *Metrics) waitsFor(what string) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waiting = what
}

// NotReady returns why this leader gives no addresses, or uses outdated objects. It returns nil if
// all is well, or if this process does not lead. Kinds without which a leader gives addresses, or
// that were removed, are no reason.
func (m *Metrics) NotReady() (reasons []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.waiting != "" {
		reasons = append(reasons, "this process leads and gives no addresses yet: "+m.waiting)
	}
	for _, r := range m.readers {
		since, err := r.Failing()
		if err == nil || m.waiting == "" && (!r.HasSynced() || apierrors.IsNotFound(err)) {
			continue
		}
		reasons = append(reasons, kubewatch.Unread(r.objects, since, err))
	}
	return reasons
}

var (
	descLeader = prometheus.NewDesc("sluice_controller_leader",
		"1 while this process gives addresses, else 0.", nil, nil)
	descPool = prometheus.NewDesc("sluice_pool_addresses",
		"Addresses of a pool that can be given; 9.2e18 stands for that many and more.", []string{"pool", "family"}, nil)
	descUsed = prometheus.NewDesc("sluice_pool_addresses_used",
		"Addresses of a pool that Services have; a shared address counts once.", []string{"pool", "family"}, nil)
	descWaiting = prometheus.NewDesc("sluice_controller_services_waiting",
		"Services that have no address, or none of one family.", nil, nil)
	descWrites = prometheus.NewDesc("sluice_controller_status_writes_total",
		"Writes of a Service's status since this process leads: done, conflict (it had changed, and is processed "+
			"again), failed.", []string{"result"}, nil)
)

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descLeader, descPool, descUsed, descWaiting, descWrites} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(to chan<- prometheus.Metric) {
	m.mu.Lock()
	c := m.current
	m.mu.Unlock()
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	if c == nil {
		gauge(descLeader, 0)
		return
	}
	gauge(descLeader, 1)
	usage, waiting, n := c.figures()
	for pool, u := range usage {
		gauge(descPool, float64(u.Size4), pool, "IPv4")
		gauge(descPool, float64(u.Size6), pool, "IPv6")
		gauge(descUsed, float64(u.Used4), pool, "IPv4")
		gauge(descUsed, float64(u.Used6), pool, "IPv6")
	}
	gauge(descWaiting, float64(waiting))
	for result, value := range map[string]int64{"done": n.written, "conflict": n.conflicts, "failed": n.failed} {
		to <- prometheus.MustNewConstMetric(descWrites, prometheus.CounterValue, float64(value), result)
	}
}

func (c *controller) figures() (map[string]pools.Use, int, counts) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.alloc.Usage(), len(c.waiting), c.counts
}
