package metrics

import "github.com/prometheus/client_golang/prometheus"

// Extras are metrics that not every gateway has. What is nil is left out.
type Extras struct {
	// Backends reports whether each backend has series of its own: there are seven for each, and
	// clusters may have 100,000 backends.
	Backends  func() bool
	KubeProxy *KubeProxy
	// Affinity counts what is remembered for sessionAffinity ClientIP.
	Affinity func() Affinity
	// SelfCheck counts comparisons of the incremental table with a full rebuild.
	SelfCheck func() SelfCheck
}

// Affinity is the state of the memory of clients.
type Affinity struct {
	// Pins and Tentative ones live now, Capacity is how many there is room for.
	Pins, Tentative, Capacity int
	// Evicted pins gave way to others before their time; Lost ones were never stored.
	Evicted, Lost uint64
}

// SelfCheck is how often the gateway checked itself since the start.
type SelfCheck struct{ Runs, Differences uint64 }

func (d *descs) describeExtras() {
	d.affinityPins = d.new("affinity_pins", "Clients remembered for sessionAffinity ClientIP.")
	d.affinityTentative = d.new("affinity_tentative_pins",
		"Clients remembered for sessionAffinity ClientIP of which no flow has stood: others take their room.")
	d.affinityCapacity = d.new("affinity_capacity_pins", "Clients there is room for (tuning.affinityClients).")
	d.affinityEvicted = d.new("affinity_evicted_total", "Clients forgotten before their time, for lack of room.")
	d.affinityLost = d.new("affinity_lost_total",
		"Clients that could not be remembered: too many at once in one place of the memory.")
	d.checks = d.new("self_checks_total", "Comparisons of the table with one built anew from all objects.")
	d.checkDifferences = d.new("self_check_differences_total",
		"Comparisons that found a difference, which is a bug of ours.")
}

func (x *Extras) collect(e emitter, d *descs) {
	if x.Affinity != nil {
		a := x.Affinity()
		e.gauge(d.affinityPins, float64(a.Pins))
		e.gauge(d.affinityTentative, float64(a.Tentative))
		e.gauge(d.affinityCapacity, float64(a.Capacity))
		e.count(d.affinityEvicted, float64(a.Evicted))
		e.count(d.affinityLost, float64(a.Lost))
	}
	if x.SelfCheck != nil {
		c := x.SelfCheck()
		e.count(d.checks, float64(c.Runs))
		e.count(d.checkDifferences, float64(c.Differences))
	}
}

// register adds what is a collector of its own.
func (x *Extras) register(r *prometheus.Registry) {
	if x.KubeProxy != nil {
		r.MustRegister(x.KubeProxy)
	}
}
