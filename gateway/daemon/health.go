package daemon

import (
	"fmt"
	"os"
	"time"

	"sluice.dev/sluice/announce/pulse"
	"sluice.dev/sluice/config"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/host/sdnotify"
	"sluice.dev/sluice/internal/boottime"
	"sluice.dev/sluice/serve/health"
	"sluice.dev/sluice/serve/metrics"
	"sluice.dev/sluice/serve/status"
)

// makeHealth makes the servers that the control loop notifies, before the loop. They call the loop
// too, but only once startServers runs them.
func (d *Daemon) makeHealth(node string) {
	h, t := &d.health, d.inputs.tracker
	h.kubeProxy = metrics.NewKubeProxy(metrics.KubeProxyConfig{
		Waiting: t.Waiting, Queued: func() time.Time { return h.proxy.Queued() },
	})
	c := d.settings.config()
	h.proxy = health.NewProxy(health.Config{
		Address:  c.Health.Address,
		Reached:  func() (read, applied uint64, at time.Time) { return d.loop.Reached() },
		DataPath: d.failures, Answered: h.kubeProxy.Answered, Log: d.log,
		Node:         func() objects.NodeInfo { return t.Node(node) },
		NodeOptional: !c.Kubernetes.Enabled, // only an API server always has a Node
	})
	h.ports = health.NewPorts(health.PortsConfig{
		Serving: h.proxy.Serving, NodeName: node, Log: d.log, Beats: &d.beats,
		Report: func(problems []objects.Problem) { report(t, health.Source(), problems) },
	})
}

// failures returns the reasons that the data path does not forward.
func (d *Daemon) failures() (list []health.Failure) {
	if !d.forwards() {
		list = append(list,
			health.Failure{Reason: "the first table is not published and steered yet, or the interfaces are not open"})
	}
	if d.shutdown.draining.Load() {
		list = append(list, health.Failure{Reason: "draining"})
	}
	for _, l := range d.beats.Late() {
		list = append(list, health.Failure{Reason: l.String(), Restart: l.Restart})
	}
	for _, why := range d.stalledWorkers() {
		list = append(list, health.Failure{Reason: why, Restart: true})
	}
	for _, why := range d.unreachable(d.reach.last.Load()) {
		list = append(list, health.Failure{Reason: why})
	}
	return list
}

func (d *Daemon) stalledWorkers() (list []string) {
	for _, id := range d.stalled() {
		list = append(list, fmt.Sprintf("worker %d does not move", id))
	}
	return list
}

// unreachable returns why packets cannot reach backends or clients, by the last look; r is nil
// before the first one.
func (d *Daemon) unreachable(r *reached) []string {
	if r == nil || !d.isOpen() {
		return nil
	}
	return r.why
}

// dead lists the reasons to restart the daemon, as `sluice probe live` does.
func (d *Daemon) dead() []string {
	return append(d.beats.Dead(), d.stalledWorkers()...)
}

// notifications configures the messages to systemd. A process that a reload has started sends none
// before it forwards.
func (d *Daemon) notifications() sdnotify.Config {
	return sdnotify.Config{Log: d.log, Ready: d.forwards, Dead: d.dead, Quiet: os.Getenv(config.WaitingVariable) != ""}
}

// progress returns the workers, and the loops that have stalled. Clients of /healthz may call it at
// any rate: it must walk neither Services nor backends.
func (d *Daemon) progress() (list []status.WorkerView, stalled []string) {
	return d.workers.Views(boottime.Nanos()), d.beats.Dead()
}

// notReady returns the reasons not to send traffic to this gateway.
func (d *Daemon) notReady() (why []string) {
	for _, f := range d.failures() {
		why = append(why, f.Reason)
	}
	return why
}

// pulseInput returns the state that the pulse describes. It reads each part once.
func (d *Daemon) pulseInput() pulseInput {
	in := pulseInput{phase: d.pulsePhase(), snapshot: d.snapshot(), reached: d.reach.last.Load(),
		loops: d.beats.Unready(), workers: d.stalledWorkers()}
	in.unreachable = d.unreachable(in.reached)
	for i := range d.settings.atStart.Interfaces {
		in.interfaces = append(in.interfaces, d.settings.atStart.Interfaces[i].Name)
	}
	d.groupPulse(&in)
	return in
}

func (d *Daemon) pulsePhase() pulse.Phase {
	switch {
	case d.shutdown.leavesState.Load():
		return pulse.HandingOver
	case d.shutdown.draining.Load():
		return pulse.Draining
	case d.forwards():
		return pulse.Serving
	}
	return pulse.Opening
}
