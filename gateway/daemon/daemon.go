// Package daemon puts the gateway together: it makes the control loop, the workers, the kernel
// program and the operator's interfaces, starts them, reloads, drains and stops. They are in
// packages of their own, beside it (docs/architecture.md has the list) and in control and fastpath.
//
//	config ─► flow table ─► host link ─► mirror of routes ─► control loop
//	              │ in use                                      │
//	          standby: reads, compiles, waits                   │ first snapshot
//	       status, metrics ◄── workers ◄── sockets, programs ◄──┘
//
// The order of start matters. The lock on the flow table comes first, so that a second instance
// changes nothing: it waits until the first one ends (standby.go). The first snapshot is published
// before any socket is bound, so that no packet is ever judged by an incomplete table. Stopping is
// the reverse order. It restores the node, or leaves everything to the next process
// (drain.handOver).
package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/endpointhealth"
	"sluice.dev/sluice/control/loop"
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/fastpath/thread"
	"sluice.dev/sluice/fastpath/xsk"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/gateway/checks"
	"sluice.dev/sluice/gateway/explain"
	"sluice.dev/sluice/gateway/flows"
	"sluice.dev/sluice/gateway/nodeconfig"
	"sluice.dev/sluice/gateway/ports"
	"sluice.dev/sluice/gateway/seed"
	"sluice.dev/sluice/gateway/steering"
	"sluice.dev/sluice/gateway/workers"
	"sluice.dev/sluice/host/hostlink"
	"sluice.dev/sluice/host/neigh"
	"sluice.dev/sluice/host/nic/devices"
	"sluice.dev/sluice/host/nic/frames"
	"sluice.dev/sluice/host/nic/irq"
	"sluice.dev/sluice/host/placement"
	"sluice.dev/sluice/host/sandbox"
	"sluice.dev/sluice/host/sdnotify"
	"sluice.dev/sluice/internal/heartbeat"
	"sluice.dev/sluice/internal/logs"
	"sluice.dev/sluice/serve/status"
)

// readyTimeout bounds how long the start waits for the kernel's routes.
const readyTimeout = 10 * time.Second

// Daemon is one running gateway.
type Daemon struct {
	file      string
	fixed     *config.Configuration // as at the start: what only a restart changes
	log       *slog.Logger
	level     *slog.LevelVar
	startedAt time.Time

	mu          sync.Mutex // guards the next ten, which a reload or a repair changes
	config      *config.Configuration
	loaded      outcome // of the file, the last time that it was loaded
	loadedAt    time.Time
	reloadErr   error
	needRestart []config.Change // changes in the file that wait for a restart
	seed        seed.Seed
	seedErr     error // why seed is not the one of the configuration
	host        *hostlink.HostLink
	unserved    string // flows that this configuration cannot serve, and why; empty if there are none
	hostErr     error  // of the last repair

	hostMu sync.Mutex   // held while the kernel is set up by config and host
	routed []netip.Addr // source addresses with a route to the host link

	keptRoutes bool  // routed has addresses that only flows need; guarded by hostMu
	left       []int // interfaces that a predecessor left programs on, by index

	stateOnDisk bool
	sandbox     *sandbox.State // nil if there is none

	flows    *flowtable.File
	pins     *flows.Pins
	reader   *flows.Reader
	hops     *nexthop.Table
	services services.Handle // the snapshot that the workers judge packets by
	mirror   *neigh.Mirror
	frames   frames.Choice
	plan     devices.Plan
	workers  *workers.Group
	ports    *ports.Set
	steer    *steering.Program
	explain  *explain.Explainer
	objects  inputs
	compiler *compiler.Compiler // made by the standby, if there was one
	waited   bool               // for another process, which may still be ending
	loop     *loop.Loop
	totals   *status.Totals
	bpffs    *steering.Mount
	open     chan struct{} // closed when packets are forwarded
	adopted  chan struct{} // closed when a predecessor's flows count for their backends
	draining atomic.Bool
	leaving  string // why no process follows on this node; set by drain
	// handingOver: the process ends and leaves everything to the next one.
	handingOver atomic.Bool
	pulses      pulses
	reach       reachability
	failed      chan error
	servers     servers
	health      healthServers
	checks      *checks.Runner
	beats       heartbeat.Set
	checked     []endpointhealth.Known // by the process before

	takeOver  bool        // ask the running process for a hand-over
	taking    bool        // it is being asked, and nothing of it may be changed
	took      atomic.Bool // all that another process had: packets are forwarded
	takenOver atomic.Pointer[status.TakeOverView]
	asked     asked
	hostLock  int // the descriptor of the host link's lock, or -1
	giving    giving

	// There are two contexts: workers run until the programs no longer redirect packets to them.
	life          context.Context
	cancel        context.CancelFunc // ends every goroutine but the workers
	group         sync.WaitGroup
	workersLife   context.Context
	cancelWorkers context.CancelFunc
}

// Run runs the gateway until ctx is done, and cleans up. It returns an error if the gateway could
// not start or continue. With takeOver it asks the process that runs, if there is one, for all it
// has; otherwise, or where that is refused, it waits for that one's end.
func Run(ctx context.Context, file string, takeOver bool) error {
	logs.Queue()
	if err := checkKernel(); err != nil {
		return err
	}
	c, found, err := load(file)
	if err != nil {
		return err
	}
	// Clients of the status socket get the path, and have other working directories.
	if file, err = filepath.Abs(file); err != nil {
		return err
	}
	h, err := config.ReadHost()
	if err != nil {
		return err
	}
	if err := c.CheckHost(file, h); err != nil {
		return err
	}
	d := &Daemon{
		file: file, config: c, fixed: c, loaded: found, startedAt: time.Now(), loadedAt: time.Now(),
		level: new(slog.LevelVar), hops: nexthop.NewTable(), failed: make(chan error, 16),
		open: make(chan struct{}), adopted: make(chan struct{}),
		takeOver: takeOver, hostLock: -1, giving: giving{done: make(chan struct{})},
	}
	d.log = d.newLogger(c)
	klog.SetSlogLogger(d.log)
	// The goroutines outlive ctx: flows are served while the gateway drains.
	d.life, d.cancel = context.WithCancel(context.WithoutCancel(ctx))
	d.workersLife, d.cancelWorkers = context.WithCancel(context.WithoutCancel(ctx))
	d.spawn(func() { sdnotify.Run(d.life, d.notifications()) })
	err = d.live(ctx)
	switch {
	case errors.Is(err, errGave):
		return nil // the process ends with everything as it is
	case errors.Is(err, errNotTaken) && ctx.Err() != nil:
		return nil // it was asked to end, and changed nothing
	case errors.Is(err, errNotTaken):
		return err
	}
	return errors.Join(err, d.stop())
}

// live starts and serves until ctx is done, or until another process has what this one had.
func (d *Daemon) live(ctx context.Context) error {
	took, err := d.own(ctx)
	if err != nil && ctx.Err() != nil && !errors.Is(err, errNotTaken) {
		return nil // it was asked to end while it waited
	}
	if err == nil && !took {
		d.followLast()
		d.objects.ownAddresses(d.config)
		err = d.start(d.life)
	}
	if err != nil {
		return err
	}
	return d.serve(ctx, d.life)
}

// checkKernel returns an error for a kernel that is too old. A kernel whose release cannot be
// parsed may be new enough.
func checkKernel() error {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return fmt.Errorf("read the kernel's release: %w", err)
	}
	if err := config.CheckKernel(unix.ByteSliceToString(uts.Release[:])); !errors.Is(err, config.ErrKernelRelease) {
		return err
	}
	return nil
}

func (d *Daemon) newLogger(c *config.Configuration) *slog.Logger {
	d.setLevel(c)
	return slog.New(logs.NewHandler(logs.Stderr, string(c.Log.Format), d.level))
}

func (d *Daemon) setLevel(c *config.Configuration) {
	d.level.Set(map[config.LogLevel]slog.Level{
		config.LogDebug: slog.LevelDebug, config.LogInfo: slog.LevelInfo,
		config.LogWarn: slog.LevelWarn, config.LogError: slog.LevelError,
	}[c.Log.Level])
}

// start builds everything in order. After an error stop undoes what it has built.
func (d *Daemon) start(ctx context.Context) error {
	for _, step := range []func(context.Context) error{
		d.openFlows, d.loadProgram, d.makeHostLink, d.makeDatapath,
		d.startMirror, d.confine, d.startControl, d.startServers,
	} {
		if err := d.retryInUse(ctx, step); err != nil {
			return err
		}
	}
	d.spawn(func() { d.openPorts(ctx) })
	return nil
}

// spawn runs f until the daemon ends.
func (d *Daemon) spawn(f func()) {
	d.group.Add(1)
	go func() {
		defer d.group.Done()
		f()
	}()
}

// fail ends the daemon with an error.
func (d *Daemon) fail(err error) {
	select {
	case d.failed <- err:
	default: // an earlier error is reported
	}
}

// openFlows makes what is beside the flow table: its reader, and the affinity pins.
func (d *Daemon) openFlows(context.Context) (err error) {
	c := d.config
	d.noteDisk()
	if d.pins, err = flows.OpenPins(c, d.log); err != nil { // first, for retryInUse
		return err
	}
	d.reader, err = flows.NewReader(d.flows.Table, &d.services)
	return err
}

func (d *Daemon) noteDisk() {
	if d.stateOnDisk = !config.InMemory(d.config.StateDir); d.stateOnDisk {
		d.log.Warn(onDisk, "stateDir", d.config.StateDir)
	}
}

const onDisk = "stateDir is not on a tmpfs: the flow table is written to disk as long as flows change, which costs " +
	"the disk and may hold up workers"

// loadProgram finds or makes the BPF maps; nothing is attached yet.
func (d *Daemon) loadProgram(context.Context) error {
	c := d.config
	var err error
	if d.bpffs, err = steering.EnsureMount(c.BPFFS, c.StateDir); err != nil {
		return err
	}
	if d.steer, err = steering.Load(c, d.log); err != nil {
		return err
	}
	d.left = d.steer.Left()
	d.noteMissing()
	return nil
}

// machine is what workers are placed by. Without the CPUs that the process may use, workers are not
// pinned.
func (d *Daemon) machine() placement.Machine {
	var names []string
	for _, i := range d.fixed.Interfaces {
		names = append(names, i.Name)
	}
	allowed, err := config.CPUs()
	if err != nil {
		d.log.Warn("workers are not pinned", "error", err)
	}
	return placement.Read(irq.Host, names, allowed)
}

// makeDatapath makes the workers, which do not run yet, and the ports, which are not open.
func (d *Daemon) makeDatapath(context.Context) error { return d.makeDatapathOf(nil) }

// makeDatapathOf is makeDatapath with the workers' memory, or with new memory if that is nil.
func (d *Daemon) makeDatapathOf(taken []*xsk.UMEM) error {
	found, err := devices.Find(d.config)
	if err != nil {
		return err
	}
	d.frames = found.Frames
	d.log.Info("size of frames", "bytes", found.Frames.Size, "why", found.Frames.Reason)
	if d.explain, err = explain.New(explain.Config{
		Flows: d.flows.Table, Affinity: d.pins.Table(), Hops: d.hops, Host: d.host,
	}); err != nil {
		return err
	}
	plan, err := devices.NewPlan(found.Devices, d.fixed)
	if err != nil {
		return err
	}
	d.plan = plan
	if d.workers, err = workers.New(workers.Config{
		Settings: d.fixed, Log: d.log, Plan: plan, FrameSize: found.Frames.Size,
		Flows: d.flows.Table, Affinity: d.pins.Table(), Services: &d.services, Hops: d.hops, Host: d.host,
		Machine: d.machine(), Arrivals: d.steer.Arrivals, Taken: taken,
		Beats: &d.beats,
	}); err != nil {
		return err
	}
	pc := ports.Config{Settings: d.fixed, Log: d.log, Found: found, Plan: plan, Workers: d.workers, Program: d.steer,
		Beats: &d.beats}
	if d.host != nil {
		pc.HostLink = d.host.Name
	}
	if d.ports, err = ports.New(pc); err != nil {
		return err
	}
	thread.SetProcs(d.workers.Len())
	d.totals = status.NewTotals(d.workers.Blocks())
	return nil
}

// startMirror follows the kernel's routes and neighbours.
func (d *Daemon) startMirror(ctx context.Context) (err error) {
	if d.mirror, err = neigh.New(neigh.Config{
		Links: mirrorLinks(d.config), HostLink: mirrorHost(d.host), Table: d.hops, Logger: d.log,
		Beats: &d.beats,
	}); err != nil {
		return err
	}
	d.spawn(func() {
		if err := d.mirror.Run(ctx); err != nil {
			d.fail(err)
		}
	})
	select {
	case <-d.mirror.Ready():
		return nil
	case err := <-d.failed:
		return err
	case <-time.After(readyTimeout):
		return errors.New("the kernel's routes could not be read in time")
	}
}

// startControl starts reading and compiling objects. The loop publishes on its own from then on.
func (d *Daemon) startControl(ctx context.Context) error {
	cc := d.compilerConfig(d.config)
	if d.compiler == nil {
		d.compiler = compiler.New(cc)
	}
	// What a standby has compiled was not counted yet, and no worker knew its numbers.
	d.loadDrains()
	d.compiler.Watch(d.totals)
	d.compiler.WatchFlows(d.hasConnections)
	d.compiler.WatchPins(d.pins.Lose)
	d.makeHealth(d.objects.tracker, cc.NodeName)
	d.health.ports.SetAddresses(nodeconfig.HealthAddresses(d.config, cc.NodeAddresses))
	if err := d.makeChecks(); err != nil {
		return err
	}
	d.loop = loop.New(loop.Config{
		Log: d.log, Tracker: d.objects.tracker, Compiler: d.compiler,
		Publisher: loop.NewPublisher(&d.services, d.workers.Blocks()),
		Steering:  d.steer, Flows: d.reader, Feeds: d.objects.feeds(), NodeChanged: d.objects.noteNode,
		Prepare:    d.current,
		SaveDrains: d.saveDrains,
		Window:     controlWindow, Observer: d.health.kubeProxy, HealthChecks: d.health.ports,
		EndpointChecks: d.checks, Beats: &d.beats,
	})
	if !d.taking {
		if d.flows.Recovery.Recovered > 0 {
			if err := d.keepSources(); err != nil {
				return err
			}
		}
		if err := d.applySettings(); err != nil {
			return err
		}
		d.applySources()
	}
	d.reportLosses(cc.NodeName)
	d.readObjects(ctx)
	d.spawn(func() { _ = d.loop.Run(ctx) })
	if !d.taking {
		d.actAlone(ctx)
	}
	return nil
}

// actAlone starts what only one process may do: it changes pins and routes that outlive a process,
// writes Events and sends checks to endpoints.
func (d *Daemon) actAlone(ctx context.Context) {
	d.spawn(func() { d.pins.Run(ctx, d.beats.Add("affinity pins", heartbeat.DefaultBounds)) })
	d.writeEvents(ctx)
	d.spawn(func() { d.checks.Run(ctx) })
	d.spawn(func() { d.followAddresses(ctx) })
}

// hasConnections reports whether connections count under a backend's number.
func (d *Daemon) hasConnections(r services.BackendRef) bool {
	return d.flows.Table.Loads()[r.Index()].Load() > 0
}

// controlWindow is the pause of the control loop after a pass.
const controlWindow = 2 * time.Millisecond

// serve waits until ctx is done, or for a failure. It reloads on SIGHUP and when the file changes.
func (d *Daemon) serve(ctx, life context.Context) (err error) {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	d.spawn(func() { d.watchConfig(life, hup) })
	select {
	case err = <-d.failed:
	case <-d.giving.done:
	case <-ctx.Done():
	}
	if d.endGiving() {
		d.log.Info("handed over to the next process; this one ends")
		return errGave
	}
	if err != nil {
		return err
	}
	return d.drain()
}
