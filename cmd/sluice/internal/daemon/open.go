package daemon

import (
	"context"
	"time"

	"sluice.dev/sluice/cmd/sluice/internal/boottime"
)

// openPorts waits for the first snapshot, starts the workers and gives them
// packets.
func (d *Daemon) openPorts(ctx context.Context) {
	select {
	case <-d.loop.Ready():
	case <-ctx.Done():
		return
	}
	if n := d.pins.Prune(d.services.Load()); n > 0 {
		d.log.Info("clients lose the pins to backends that left meanwhile", "pins", n)
	}
	d.goes(d.adoptFlows)
	if err := d.openAll(ctx); err != nil {
		d.fail(err)
		return
	}
	if err := d.path.attachEgress(d.steer); err != nil {
		d.log.Warn("replies of local endpoints that see the client's address are not caught on their way out", "error", err)
	}
	if err := d.steer.DetachOthers(); err != nil {
		d.log.Warn("what a predecessor left could not be removed", "error", err)
	}
	d.beat()
	close(d.open)
	d.log.Info("forwarding", "workers", len(d.path.workers), "took", time.Since(d.startedAt).Round(time.Millisecond))
	d.goes(func() { d.heartbeat(ctx) })
	d.path.watch(ctx, d.steer, d.watchHostLink, d.reopened)
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
	d.log.Info("flows of a predecessor count for their backends", "flows", n, "took", time.Since(began).Round(time.Millisecond))
}

// openAll binds all sockets before the first one gets packets, so that what is
// received on one interface can leave by the others.
func (d *Daemon) openAll(ctx context.Context) error {
	for _, p := range d.path.ports {
		if err := d.path.bindPort(ctx, p); err != nil {
			return err
		}
	}
	d.path.run(d.workersLife, d.fail)
	for _, p := range d.path.ports {
		if err := d.path.attachPort(ctx, d.steer, p); err != nil {
			return err
		}
		d.logPort(p)
	}
	return nil
}

func (d *Daemon) logPort(p *port) {
	p.mu.Lock()
	mode, reason := p.attach.Mode(), p.attachReason()
	p.mu.Unlock()
	socketMode, why := p.slots[0].socket.Load().Mode()
	d.log.Info("interface open", "interface", p.name, "queues", len(p.slots), "xdp", mode, "xdpReason", reason, "sockets", socketMode, "socketsReason", why)
}

// reopened puts back what belongs to an interface that came back.
func (d *Daemon) reopened(*port) {
	if err := d.path.attachEgress(d.steer); err != nil {
		d.log.Warn("egress program", "error", err)
	}
}

func (d *Daemon) isOpen() bool {
	select {
	case <-d.open:
		return true
	default:
		return false
	}
}

// beatEvery is how often the kernel program hears that the workers live.
const beatEvery = time.Second

func (d *Daemon) heartbeat(ctx context.Context) {
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			d.beat()
		}
	}
}

// beat tells the kernel program that the data path is alive, if it is.
func (d *Daemon) beat() {
	now := boottime.Nanos()
	if len(d.path.stalled(now)) > 0 {
		return
	}
	if err := d.steer.Heartbeat(now); err != nil {
		d.log.Warn("heartbeat", "error", err)
	}
}
