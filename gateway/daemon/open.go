package daemon

import (
	"context"
	"time"

	"sluice.dev/sluice/gateway/boottime"
	"sluice.dev/sluice/internal/heartbeat"
)

// openPorts waits for the first snapshot, starts the workers and opens the ports.
func (d *Daemon) openPorts(ctx context.Context) {
	select {
	case <-d.loop.Ready():
	case <-ctx.Done():
		return
	}
	d.prunePins()
	d.spawn(d.adoptFlows)
	if err := d.openAll(ctx); err != nil {
		d.fail(err)
		return
	}
	d.served(ctx)
}

// served does what follows once packets are forwarded, until ctx is done.
func (d *Daemon) served(ctx context.Context) {
	if err := d.ports.AttachEgress(); err != nil {
		d.log.Warn("replies of local endpoints that see the client's address are not caught on their way out", "error",
			err)
	}
	d.noteUnserved()
	if err := d.steer.DetachOthers(d.ports.Indexes()); err != nil {
		d.log.Warn("what a predecessor left could not be removed", "error", err)
	}
	d.lookReach()
	d.beat()
	close(d.open)
	d.log.Info("forwarding", "workers", d.workers.Len(), "took", time.Since(d.startedAt).Round(time.Millisecond))
	d.spawn(func() { d.heartbeat(ctx) })
	d.spawn(func() { d.serveHandOver(ctx) })
	d.ports.Watch(ctx, d.lookReach, d.watchHostLink, d.watchLocalPorts, d.watchSources)
}

// prunePins forgets a predecessor's pins to backends that left meanwhile. The first snapshot must
// be published; workers may run.
func (d *Daemon) prunePins() {
	if n := d.pins.Prune(d.services.Load); n > 0 {
		d.log.Info("clients lose the pins to backends that left meanwhile", "pins", n)
	}
}

// adoptFlows counts a predecessor's flows for their backends. It runs beside the workers: it
// walks a table that may be large, and packets need not wait for it.
func (d *Daemon) adoptFlows() {
	defer close(d.adopted)
	if d.flows.Recovery.Recovered == 0 {
		return
	}
	began := time.Now()
	n := d.reader.Adopt()
	d.log.Info("flows of a predecessor count for their backends", "flows", n, "took",
		time.Since(began).Round(time.Millisecond))
}

// openAll binds all sockets before the workers run, and those before the first packet comes.
func (d *Daemon) openAll(ctx context.Context) error {
	if err := d.ports.Bind(ctx); err != nil {
		return err
	}
	d.workers.Run(d.workersLife, d.fail)
	d.spawn(func() { d.workers.Follow(ctx) }) // which asks the program, and so ends before that is released
	return d.ports.Attach(ctx)
}

// forwards reports whether packets are forwarded. A process that took over forwards before its
// ports are open: the programs of the one before send it packets.
func (d *Daemon) forwards() bool { return d.isOpen() || d.took.Load() }

func (d *Daemon) isOpen() bool {
	select {
	case <-d.open:
		return true
	default:
		return false
	}
}

// beatEvery is the interval of the heartbeat.
const beatEvery = time.Second

func (d *Daemon) heartbeat(ctx context.Context) {
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	own := d.beats.Add("heartbeat for the kernel program", heartbeat.DefaultBounds)
	defer own.Rest()
	for {
		own.Beat()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			d.beat()
		}
	}
}

// beat writes the heartbeat for the kernel program, if no worker is stalled.
func (d *Daemon) beat() {
	now := boottime.Nanos()
	if len(d.workers.Stalled(now)) > 0 {
		return
	}
	if err := d.steer.Heartbeat(now); err != nil {
		d.log.Warn("heartbeat", "error", err)
	}
}
