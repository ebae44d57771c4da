package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"sluice.dev/sluice/control/endpointhealth"
	"sluice.dev/sluice/control/loop"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/flowtable/affinity"
	"sluice.dev/sluice/serve/status"
)

// Extras are metrics that not every gateway has. Those of nil fields are left out.
type Extras struct {
	// Backends reports whether each backend has its own series: there are seven for each, and
	// clusters may have 100,000 backends.
	Backends  func() bool
	KubeProxy *KubeProxy
	// Affinity counts the clients that are stored for sessionAffinity ClientIP.
	Affinity func() affinity.Counts
	// Start counts the flows that the start found in the flow table.
	Start *flowtable.Recovery
	// SelfCheck counts comparisons of the incremental table with a full rebuild.
	SelfCheck func() loop.SelfCheck
	// Checks counts the checks of endpoints.
	Checks func() endpointhealth.Counts
	// Seed names the seed of backend selection.
	Seed func() (origin, fingerprint string)
	// LogDropped counts lines of the log that were not written.
	LogDropped func() uint64
}

func (d *descs) describeExtras() {
	d.affinityPins = d.new("affinity_pins", "Clients remembered for sessionAffinity ClientIP.")
	d.affinityTentative = d.new("affinity_tentative_pins",
		"Clients remembered for sessionAffinity ClientIP of which no flow has stood: others take their room.")
	d.affinityCapacity = d.new("affinity_capacity_pins", "Clients there is room for (tuning.affinityClients).")
	d.affinityEvicted = d.new("affinity_evicted_total", "Clients forgotten before their time, for lack of room.")
	d.affinityLost = d.new("affinity_lost_total",
		"Clients that could not be remembered: too many at once in one place of the memory.")
	d.startFlows = d.new("flow_table_start_flows",
		"Flows that an earlier process left, by their fate at the start.", "result")
	d.startUnread = d.new("flow_table_start_unreadable",
		"1 if the start found a flow table that it could not read: its flows are lost, nobody knows how many.")
	d.endpointChecks = d.new("endpoint_checks_total", "Checks of endpoints, by result.", "result")
	d.endpointChanges = d.new("endpoint_changes_total", "Endpoints that went down or came up by their checks.", "to")
	d.endpointSuspicions = d.new("endpoint_suspicions_total",
		"Endpoints that answered no client: began to be checked, and were cleared by an answer.", "event")
	d.endpoints = d.new("checked_endpoints",
		"Endpoints with an active check, those down by any check, those without room for their check, "+
			"and those whose check is due and waits for others.", "state")
	d.seed = d.new("maglev_seed_info",
		"Always 1; the labels say where the seed of backend selection is from, and a hash of it.", "origin",
		"fingerprint")
	d.groupHasOurs = d.new("group_member_has_our_flows",
		"1 while another gateway of the group has all flows of this one, else 0.", "member")
	d.groupHasIts = d.new("group_have_member_flows",
		"1 while this gateway has all flows of another gateway of the group, else 0.", "member")
	d.groupCopies = d.new("group_copies", "Flows of another gateway that this one has copies of.", "member")
	d.groupLag = d.new("group_lag_changes",
		"Changes of this gateway's flows that another gateway has not acknowledged.", "member")
	d.groupHeld = d.new("group_held_ports", "Source ports of ended flows that another gateway may still have.")
	d.groupFlows = d.new("group_flows_total", "Flows that are copied to the group, by whether others had a copy "+
		"before the client got an answer: protected, or the reason if not.", "outcome")
	d.groupWait = d.new("group_answer_wait_seconds", "How long answers to SYNs waited until other gateways of the "+
		"group had a copy of the flow.")
	d.groupSource = d.new("group_source_address", "Always 1; the state of each source address of this gateway: open, "+
		"spare, or closed, after a loss of memory.", "address", "family", "state")
	d.flowLogLines = d.new("flow_log_lines_total",
		"Flows that began and flows that ended: lines of the flow log that were written, and lost ones.", "result")
	d.logDropped = d.new("log_lines_dropped_total",
		"Lines of the log that were not written, because nobody read it or it could not be written.")
	d.checks = d.new("self_checks_total", "Comparisons of the table with one built anew from all objects.")
	d.checkDifferences = d.new("self_check_differences_total",
		"Comparisons that found a difference, which is a bug of ours.")
}

func (x *Extras) collect(e emitter, d *descs) {
	if x.Affinity != nil {
		a := x.Affinity()
		e.gauge(d.affinityPins, float64(a.Live))
		e.gauge(d.affinityTentative, float64(a.Tentative))
		e.gauge(d.affinityCapacity, float64(a.Capacity))
		e.count(d.affinityEvicted, float64(a.Evicted))
		e.count(d.affinityLost, float64(a.Lost))
	}
	if r := x.Start; r != nil {
		e.gauge(d.startFlows, float64(r.Recovered), "recovered")
		e.gauge(d.startFlows, float64(r.Expired), "expired")
		e.gauge(d.startFlows, float64(r.Torn), "torn")
		e.gauge(d.startFlows, float64(r.Lost), "lost")
		e.flag(d.startUnread, r.Unread || r.Missing)
	}
	if x.Checks != nil {
		e.checks(d, x.Checks())
	}
	if x.Seed != nil {
		origin, fingerprint := x.Seed()
		e.gauge(d.seed, 1, origin, fingerprint)
	}
	if x.LogDropped != nil {
		e.count(d.logDropped, float64(x.LogDropped()))
	}
	if x.SelfCheck != nil {
		c := x.SelfCheck()
		e.count(d.checks, float64(c.Runs))
		e.count(d.checkDifferences, float64(c.Differences))
	}
}

func (e emitter) group(d *descs, g *status.GroupView) {
	for _, m := range g.Members {
		e.flag(d.groupHasOurs, m.HasOurFlows, m.Name)
		e.flag(d.groupHasIts, m.WeHaveItsFlows, m.Name)
		e.gauge(d.groupCopies, float64(m.Copies), m.Name)
		e.gauge(d.groupLag, float64(m.Lag), m.Name)
	}
	for _, s := range g.Sources {
		family := "ipv4"
		if s.Address.Is6() {
			family = "ipv6"
		}
		e.gauge(d.groupSource, 1, s.Address.String(), family, s.State)
	}
	for outcome, n := range g.Flows {
		e.count(d.groupFlows, float64(n), outcome)
	}
	e.gauge(d.groupHeld, float64(g.HeldPorts))
	e.histogram(d.groupWait, &g.AnswerWait, waitBounds)
}

// waitBounds are the upper bounds of AnswerWait: an answer waits 2 ms at most.
var waitBounds = []uint64{64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096}

func (e emitter) checks(d *descs, c endpointhealth.Counts) {
	e.count(d.endpointChecks, float64(c.Checks-c.Failures), "passed")
	e.count(d.endpointChecks, float64(c.Failures), "failed")
	e.count(d.endpointChecks, float64(c.NotMade), "not_made")
	e.count(d.endpointChanges, float64(c.WentDown), "down")
	e.count(d.endpointChanges, float64(c.CameUp), "up")
	e.count(d.endpointSuspicions, float64(c.Suspected), "suspected")
	e.count(d.endpointSuspicions, float64(c.Cleared), "cleared")
	e.gauge(d.endpoints, float64(c.Checked), "checked")
	e.gauge(d.endpoints, float64(c.Down), "down")
	e.gauge(d.endpoints, float64(c.Unchecked), "unchecked")
	e.gauge(d.endpoints, float64(c.Waiting), "waiting")
}

// register adds the extras that are collectors themselves.
func (x *Extras) register(r *prometheus.Registry) {
	if x.KubeProxy != nil {
		r.MustRegister(x.KubeProxy)
	}
}
