package daemon

import (
	"sluice.dev/sluice/control/tracker"
	"sluice.dev/sluice/gateway/flows"
	"sluice.dev/sluice/serve/metrics"
)

// reportLosses makes an Event of flows that the start lost.
func (d *Daemon) reportLosses(node string) {
	list := flows.LossProblems(&d.flows.Recovery, node)
	if len(list) == 0 {
		return
	}
	var b tracker.Batch
	b.Report(flows.Source(), list)
	d.objects.tracker.Apply(&b)
}

// startFlows implements metrics.Extras.Start.
func (d *Daemon) startFlows() metrics.Start {
	r := &d.flows.Recovery
	return metrics.Start{
		Recovered: r.Recovered, Expired: r.Expired, Torn: r.Torn, Lost: r.Lost, Unread: r.Unread || r.Missing,
	}
}
