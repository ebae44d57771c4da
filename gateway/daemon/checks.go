package daemon

import (
	"context"
	"net/netip"
	"time"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/endpointhealth"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/gateway/checks"
	"sluice.dev/sluice/host/neigh"
	"sluice.dev/sluice/serve/status"
)

// makeChecks makes the checks of endpoints, before the control loop, which reports to them.
func (d *Daemon) makeChecks() (err error) {
	settings := checkSettings(d.settings.config())
	settings.Unresolved, settings.MostUnresolved = d.mirror.Unresolved, neigh.MostChecked
	d.checks, err = checks.New(checks.Config{
		Log: d.log, Settings: settings, Own: d.ownAddress, Beats: &d.beats,
		Snapshot: d.services.Load, Blocks: d.workers.Blocks(),
		Report: func(problems []objects.Problem) { report(d.inputs.tracker, checks.Source(), problems) },
		Apply:  func(ctx context.Context, list []compiler.EndpointHealth) error { return d.loop.SetHealth(ctx, list) },
	})
	if err == nil { // the first snapshot needs it
		d.compiler.SetHealth(d.checks.Remember(d.handOver.receivedChecks()))
	}
	return err
}

// checksPerSecond bounds the checks of all endpoints together, in units of a TCP check
// (endpointhealth.Config): a fifth of a CPU. Which endpoints exceed it is reported at their
// Services, and a longer interval of their checks is the remedy.
const checksPerSecond = 4000

func checkSettings(c *config.Configuration) endpointhealth.Config {
	return endpointhealth.Config{
		Passive: c.EndpointHealth.Passive, ChecksPerSecond: checksPerSecond,
		NamespaceShare: c.Proxy.NamespaceShare,
	}
}

// ownAddress reports whether an address is one of this node.
func (d *Daemon) ownAddress(a netip.Addr) bool {
	for _, own := range d.mirror.Addresses() {
		if own.Prefix.Addr() == a {
			return true
		}
	}
	return false
}

// checkViews returns the results of the checks, by endpoint.
func (d *Daemon) checkViews() map[status.CheckedEndpoint]status.CheckView {
	views := map[status.CheckedEndpoint]status.CheckView{}
	d.checks.Views(func(e compiler.Endpoint, v endpointhealth.View) {
		views[status.CheckedEndpoint{
			Namespace: e.Namespace, Service: e.Service, PortName: e.PortName, Protocol: status.ProtocolName(e.Proto),
			Address: netip.AddrPortFrom(e.Addr.Netip(), e.Port),
		}] = status.CheckView{
			Check: v.Check, Passive: v.Passive, Down: v.Down, Since: v.Since, Last: v.Last, At: v.At,
			SlowStart: v.SlowStart,
		}
	})
	return views
}

// lastChecks calls f for the last check of each endpoint that has one.
func (d *Daemon) lastChecks(f func(a netip.Addr, ok bool, at time.Time)) {
	d.checks.Views(func(e compiler.Endpoint, v endpointhealth.View) { f(e.Addr.Netip(), v.OK, v.At) })
}
