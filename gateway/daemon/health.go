package daemon

import (
	"fmt"
	"os"
	"time"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/tracker"
	"sluice.dev/sluice/host/sdnotify"
	"sluice.dev/sluice/serve/health"
	"sluice.dev/sluice/serve/metrics"
)

// healthServers answer load balancers; the control loop notifies them.
type healthServers struct {
	proxy     *health.Proxy
	ports     *health.Ports
	kubeProxy *metrics.KubeProxy
}

// makeHealth makes them before the control loop, which reports to them. They call the loop, too,
// but not before startServers runs them.
func (d *Daemon) makeHealth(t *tracker.Tracker, node string) {
	h := &d.health
	h.kubeProxy = metrics.NewKubeProxy(metrics.KubeProxyConfig{
		Waiting: t.Waiting, Queued: func() time.Time { return h.proxy.Queued() },
	})
	c := health.Config{
		Address:  d.config.Health.Address,
		Reached:  func() (read, applied uint64, at time.Time) { return d.loop.Reached() },
		DataPath: d.failures, Answered: h.kubeProxy.Answered, Log: d.log,
		Node:         func() objects.NodeInfo { return t.Node(node) },
		NodeOptional: !d.config.Kubernetes.Enabled, // only an API server has a Node for sure
	}
	h.proxy = health.NewProxy(c)
	h.ports = health.NewPorts(health.PortsConfig{
		Serving: h.proxy.Serving, NodeName: node, Log: d.log, Beats: &d.beats,
		Report: func(problems []objects.Problem) {
			var b tracker.Batch
			b.Report(health.Source(), problems)
			t.Apply(&b)
		},
	})
}

// failures returns what keeps the data path from forwarding.
func (d *Daemon) failures() (list []health.Failure) {
	if !d.forwards() {
		list = append(list,
			health.Failure{Reason: "the first table is not published and steered yet, or the interfaces are not open"})
	}
	if d.draining.Load() {
		list = append(list, health.Failure{Reason: "draining"})
	}
	for _, id := range d.stalled() {
		list = append(list, health.Failure{Reason: fmt.Sprintf("worker %d does not move", id), Restart: true})
	}
	for _, l := range d.beats.Late() {
		list = append(list, health.Failure{Reason: l.String(), Restart: l.Restart})
	}
	if d.isOpen() {
		for _, why := range d.unreachable() {
			list = append(list, health.Failure{Reason: why})
		}
	}
	return list
}

// dead lists why a restart of the daemon is asked for, as `sluice probe live` does.
func (d *Daemon) dead() []string {
	list := d.beats.Dead()
	for _, id := range d.stalled() {
		list = append(list, fmt.Sprintf("worker %d does not move", id))
	}
	return list
}

// notifications are what systemd is told. The next process of a reload is quiet until it has taken
// over.
func (d *Daemon) notifications() sdnotify.Config {
	return sdnotify.Config{Log: d.log, Ready: d.forwards, Dead: d.dead, Quiet: os.Getenv(config.WaitingVariable) != ""}
}

// notReady returns why no traffic should be sent to this gateway.
func (d *Daemon) notReady() (why []string) {
	for _, f := range d.failures() {
		why = append(why, f.Reason)
	}
	return why
}

// selfChecks implements metrics.Extras.SelfCheck.
func (d *Daemon) selfChecks() metrics.SelfCheck {
	c := d.loop.SelfCheck()
	return metrics.SelfCheck{Runs: c.Runs, Differences: c.Differences}
}

// affinity implements metrics.Extras.Affinity.
func (d *Daemon) affinity() metrics.Affinity {
	c := d.pins.Counts()
	return metrics.Affinity{
		Pins: c.Live, Tentative: c.Tentative, Capacity: c.Capacity, Evicted: c.Evicted, Lost: c.Lost,
	}
}
