package daemon

import (
	"context"
	"errors"
	"time"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/loop"
	"sluice.dev/sluice/fastpath/thread"
	"sluice.dev/sluice/fastpath/xsk"
	"sluice.dev/sluice/gateway/captures"
	"sluice.dev/sluice/gateway/denials"
	"sluice.dev/sluice/gateway/drains"
	"sluice.dev/sluice/gateway/explain"
	"sluice.dev/sluice/gateway/nodeconfig"
	"sluice.dev/sluice/gateway/ports"
	"sluice.dev/sluice/gateway/steering"
	"sluice.dev/sluice/gateway/workers"
	"sluice.dev/sluice/host/neigh"
	"sluice.dev/sluice/host/nic/devices"
	"sluice.dev/sluice/host/nic/irq"
	"sluice.dev/sluice/host/placement"
	"sluice.dev/sluice/internal/heartbeat"
	"sluice.dev/sluice/internal/logs"
	"sluice.dev/sluice/serve/metrics"
	"sluice.dev/sluice/serve/status"
)

// readyTimeout bounds the wait for the kernel's routes.
const readyTimeout = 10 * time.Second

// openFlows opens the files beside the flow table.
func (d *Daemon) openFlows() error { return d.flows.open(d.settings.config(), d.log, &d.services) }

// loadProgram finds or makes the BPF maps. It attaches nothing.
func (d *Daemon) loadProgram() (err error) {
	c := d.settings.config()
	if d.kernel.mount, err = steering.EnsureMount(c.BPFFS, c.StateDir); err != nil {
		return err
	}
	if d.kernel.Program, err = steering.Load(c, d.log); err != nil {
		return err
	}
	d.kernel.left = d.kernel.Left()
	d.flows.noteMissing(len(d.kernel.left) > 0, d.log)
	return nil
}

// makeHostLink makes the host link. The predecessor's pair must not change before the predecessor
// has handed over: host.setUpReceived sets it up then.
func (d *Daemon) makeHostLink() error { return d.host.make(d.handOver.in(preparing)) }

// confine gives up the rights that the daemon no longer needs. One of them is to change groups of
// files, which the socket for readers needs.
func (d *Daemon) confine() (err error) {
	d.servers.readers.listen(d.settings.config(), d.log)
	d.sandbox, err = confine(d.settings, d.kernel.mount.Mounted())
	return err
}

// machine describes the CPUs for the placement of workers. If the CPUs that the process may use are
// not known, workers are not pinned.
func (d *Daemon) machine() placement.Machine {
	var names []string
	for _, i := range d.settings.atStart.Interfaces {
		names = append(names, i.Name)
	}
	allowed, err := config.CPUs()
	if err != nil {
		d.log.Warn("workers are not pinned", "error", err)
	}
	return placement.Read(irq.Host, names, allowed)
}

// makeDatapath makes the workers, which do not run yet, and the ports, which are not open yet.
// memory is the workers' memory that the predecessor has handed over; nil makes new memory.
func (d *Daemon) makeDatapath(memory []*xsk.UMEM) error {
	found, err := devices.Find(d.settings.config())
	if err != nil {
		return err
	}
	d.frames = found.Frames
	d.log.Info("size of frames", "bytes", found.Frames.Size, "why", found.Frames.Reason)
	host, fixed := d.host.current(), d.settings.atStart
	if d.plan, err = devices.NewPlan(found.Devices, fixed); err != nil {
		return err
	}
	if err := d.joinGroup(d.plan.Workers); err != nil {
		return err
	}
	if d.explain, err = explain.New(explain.Config{
		Flows: d.flows.file.Table, Affinity: d.flows.pins.Table(), Hops: d.hops, Host: host, Copies: d.copies(),
	}); err != nil {
		return err
	}
	if d.workers, err = workers.New(workers.Config{
		Settings: fixed, Log: d.log, Plan: d.plan, FrameSize: found.Frames.Size,
		Flows: d.flows.file.Table, Affinity: d.flows.pins.Table(), Copies: d.copies(), Services: &d.services,
		Hops: d.hops, Host: host,
		Machine: d.machine(), Arrivals: d.kernel.Arrivals, Taken: memory,
		Beats: &d.beats,
	}); err != nil {
		return err
	}
	pc := ports.Config{Settings: fixed, Log: d.log, Found: found, Plan: d.plan, Workers: d.workers,
		Program: d.kernel.Program, Beats: &d.beats}
	if host != nil {
		pc.HostLink = host.Name
	}
	if d.ports, err = ports.New(pc); err != nil {
		return err
	}
	d.watchDrops()
	d.captures = captures.New(captures.Config{
		Workers: d.workers, Interfaces: interfaceNames(fixed), Ports: d.plan.Ports,
		Services: &d.services, Version: status.ThisBuild().Version,
	})
	threads := d.workers.Len()
	if d.group != nil {
		threads++ // the exchange of flows is a real-time thread, too
	}
	thread.SetProcs(threads)
	d.totals = status.NewTotals(d.workers.Blocks())
	return nil
}

// interfaceNames returns the names of the ports: the interfaces, and last the host link's end of
// the workers, if there is a host link.
func interfaceNames(c *config.Configuration) (names []string) {
	for _, i := range c.Interfaces {
		names = append(names, i.Name)
	}
	if c.HostLink.Enabled() {
		user, _ := c.Tuning.HostLinkEnds()
		names = append(names, user)
	}
	return names
}

// startMirror follows the kernel's routes and neighbours, and waits until it has read them once.
func (d *Daemon) startMirror() (err error) {
	if d.mirror, err = neigh.New(neigh.Config{
		Links: mirrorLinks(d.settings.config()), HostLink: mirrorHost(d.host.current()), Table: d.hops, Logger: d.log,
		Beats: &d.beats,
	}); err != nil {
		return err
	}
	d.host.users = hostUsers{program: d.kernel.Program, sources: d.kernel.Program.Sources, mirror: d.mirror,
		workers: d.workers, ports: d.ports, frames: d.frames}
	d.life.spawn(func() {
		if err := d.mirror.Run(d.life.ctx); err != nil {
			d.life.fail(err)
		}
	})
	select {
	case <-d.mirror.Ready():
		return nil
	case err := <-d.life.failed:
		return err
	case <-time.After(readyTimeout):
		return errors.New("the kernel's routes could not be read in time")
	}
}

// startControl starts to read and compile objects. From then on the loop publishes by itself.
func (d *Daemon) startControl() error {
	c := d.settings.config()
	cc := d.compilerConfig(c)
	if d.compiler == nil {
		d.compiler = compiler.New(cc)
	}
	// A standby has compiled without counters, and no worker knew its numbers.
	d.flows.loadDrains(c, d.log, d.compiler)
	d.denials = denials.New(denials.Config{Log: d.log, StateDir: d.settings.atStart.StateDir, Program: d.kernel.Program,
		Flows: d.flows.reader, Saves: d.handOver.unlessOffering}, c.Deny)
	d.compiler.Watch(d.totals)
	d.compiler.WatchFlows(d.flows.hasConnections)
	d.compiler.WatchPins(d.flows.pins.Lose)
	d.makeHealth(cc.NodeName)
	d.health.ports.SetAddresses(nodeconfig.HealthAddresses(c, cc.NodeAddresses))
	if err := d.makeChecks(); err != nil {
		return err
	}
	d.loop = loop.New(loop.Config{
		Log: d.log, Tracker: d.inputs.tracker, Compiler: d.compiler,
		Publisher: loop.NewPublisher(&d.services, d.workers.Blocks()),
		Steering:  d.kernel.Program, Flows: d.flows.reader, Feeds: d.inputs.feeds(), NodeChanged: d.inputs.noteNode,
		Prepare:    d.prepare,
		SaveDrains: d.saveDrains,
		Window:     controlWindow, Observer: d.health.kubeProxy, HealthChecks: d.health.ports,
		EndpointChecks: d.checks, Beats: &d.beats,
	})
	alone := !d.handOver.in(preparing)
	if alone {
		if d.flows.recovered() {
			if err := d.host.keepSources(); err != nil {
				return err
			}
		}
		if err := d.host.applySettings(); err != nil {
			return err
		}
		d.host.applySources()
		if err := d.denials.Apply(); err != nil {
			return err
		}
	}
	d.flows.reportLosses(d.inputs.tracker, cc.NodeName)
	d.inputs.read(&d.life)
	d.life.spawn(func() { _ = d.loop.Run(d.life.ctx) })
	if alone {
		d.actAlone(d.life.ctx)
	}
	return nil
}

// actAlone starts the goroutines that only one process may run: they change pins and routes that
// outlive a process, write Events and send checks to endpoints.
func (d *Daemon) actAlone(ctx context.Context) {
	d.life.spawn(func() { d.flows.pins.Run(ctx, d.beats.Add("affinity pins", heartbeat.DefaultBounds)) })
	d.life.spawn(func() { d.inputs.writeEvents(ctx, d.settings.config(), d.loop.Problems) })
	d.life.spawn(func() { d.checks.Run(ctx) })
	d.life.spawn(func() { d.denials.Run(ctx, d.beats.Add("list of denied clients", heartbeat.DefaultBounds)) })
	d.life.spawn(func() { d.followAddresses(ctx) })
}

// saveDrains writes the operator's drains, unless a successor has read them already.
func (d *Daemon) saveDrains(list []compiler.Drain) error {
	err := d.handOver.unlessOffering(func() error { return drains.Save(d.settings.atStart.StateDir, list) })
	if err == nil {
		d.flows.drainsLost.Store(nil)
	}
	return err
}

// startServers opens the sockets, which no other daemon may have, and the addresses for metrics and
// health, which may be in use.
func (d *Daemon) startServers() error {
	free := make(chan struct{})
	close(free)
	return d.startServersWhen(free)
}

// startServersWhen is startServers that opens the addresses when free is closed. It cannot fail if
// the predecessor has handed over its sockets and servers.readGuard has succeeded.
func (d *Daemon) startServersWhen(free <-chan struct{}) (err error) {
	ctx, c, s := d.life.ctx, d.settings.config(), &d.servers
	if err := s.readGuard(&c.Metrics, d.log); err != nil {
		return err
	}
	s.certificates.watch(c)
	s.certificates.start(ctx, &d.beats, d.log)
	if err := s.serveStatus(c.StatusSocket(), d, d.log); err != nil {
		return err
	}
	s.readers.serve(d, c.StatusSocket(), &s.group, d.log)
	if err := d.pulse.serve(ctx, c.PulseSocket(), &s.group, d.log, d.pulseInput); err != nil {
		return err
	}
	if c.Metrics.Address != "" {
		s.metrics = metrics.NewServer(metrics.Config{
			Address: c.Metrics.Address, Log: d.log, TLS: s.guard.secret, Tokens: s.guard.tokens,
			NotReady: d.notReady, Progress: d.progress,
			Registry: metrics.NewRegistry(d, metrics.Extras{
				Backends:  func() bool { return d.settings.config().Metrics.Backends },
				KubeProxy: d.health.kubeProxy, Affinity: d.flows.pins.Counts, Start: &d.flows.file.Recovery,
				SelfCheck: d.loop.SelfCheck, Checks: d.checks.Counts, Seed: d.seed.metric,
				LogDropped: logs.Stderr.Dropped,
			}),
		})
	}
	s.group.Go(func() {
		select {
		case <-free:
		case <-ctx.Done():
			return
		}
		if s.metrics != nil {
			s.group.Go(func() { s.metrics.Run(ctx) })
		}
		s.group.Go(func() { d.health.proxy.Run(ctx) })
		s.group.Go(func() { d.health.ports.Run(ctx) })
	})
	return nil
}
