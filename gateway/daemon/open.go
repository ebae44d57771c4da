package daemon

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/internal/boottime"
	"sluice.dev/sluice/internal/heartbeat"
)

// openPorts waits for the first snapshot, starts the workers and opens the ports.
func (d *Daemon) openPorts(ctx context.Context) {
	select {
	case <-d.loop.Ready():
	case <-ctx.Done():
		return
	}
	d.flows.prunePins(d.log, &d.services)
	d.life.spawn(func() { d.flows.adopt(d.log) })
	if err := d.openAll(ctx); err != nil {
		d.life.fail(err)
		return
	}
	d.serveOpen(ctx)
}

// openAll binds all sockets before the workers run, and runs the workers before the first packet
// arrives.
func (d *Daemon) openAll(ctx context.Context) error {
	if err := d.ports.Bind(ctx); err != nil {
		return err
	}
	d.runGroup(ctx)
	d.workers.Run(d.life.workers, d.life.fail)
	d.life.spawn(func() { d.workers.Follow(ctx) }) // it reads the program, and so must end before that is released
	return d.ports.Attach(ctx)
}

// serveOpen starts the tasks of a gateway that forwards, and watches its ports until ctx is done.
func (d *Daemon) serveOpen(ctx context.Context) {
	if err := d.ports.AttachEgress(); err != nil {
		d.log.Warn("replies of local endpoints that see the client's address are not caught on their way out", "error",
			err)
	}
	d.noteUnserved()
	if err := d.kernel.DetachOthers(d.ports.Indexes()); err != nil {
		d.log.Warn("programs of a previous process could not be removed from interfaces", "error", err)
	}
	d.lookReach()
	d.beat()
	close(d.open)
	d.log.Info("forwarding", "workers", d.workers.Len(), "took", time.Since(d.startedAt).Round(time.Millisecond))
	d.life.spawn(func() { d.heartbeat(ctx) })
	d.life.spawn(func() { d.followTrends(ctx) })
	d.handOver.enter(owning)
	d.life.spawn(func() {
		d.handOver.serve(ctx, d.settings.atStart.HandOverSocket(), func(u *net.UnixConn) bool {
			p := &predecessor{d: d}
			return d.handOver.answer(ctx, u, func() bool { return p.give(ctx, u) }, func() { p.refuse(ctx, u) })
		})
	})
	d.ports.Watch(ctx, d.lookReach, d.host.watch, d.host.watchSettings, d.watchSources)
}

// lookReach checks whether backends and clients can be reached. One goroutine at a time may call
// it.
func (d *Daemon) lookReach() {
	s, w := d.snapshot(), d.mirror.Ways()
	d.reach.look(d.log, s, w, d.hops, d.ports.Links, d.lastChecks)
}

// noteUnserved counts the recovered flows that need an interface which is not configured any more.
func (d *Daemon) noteUnserved() {
	if !d.flows.recovered() || d.handOver.succeeded() { // both processes of a hand-over have the same interfaces
		return
	}
	var names []string
	for _, index := range d.kernel.Left(d.ports.Indexes()...) {
		if link, err := netlink.LinkByIndex(index); err == nil {
			names = append(names, link.Attrs().Name)
		}
	}
	ways := d.mirror.Ways()
	if len(names) == 0 || ways == nil {
		return
	}
	slices.Sort(names)
	host := d.host.current()
	n, example := d.flows.reader.Count(func(f *flowtable.Info) bool {
		source, backend := f.Reply.Dst.Netip(), f.Reply.Src.Netip()
		byHost := host != nil && (source == host.Addr4 || source == host.Addr6 || slices.Contains(host.Former, source))
		return ways.To(f.Client.Src.Netip()).Kind != nexthop.OnLink ||
			!byHost && ways.To(backend).Kind != nexthop.OnLink
	})
	if n == 0 {
		return
	}
	why := fmt.Sprintf("%d flows of the previous process need interfaces that the configuration lacks (%s), "+
		"and end, for example %s; to keep them, configure these interfaces again and restart", n,
		strings.Join(names, ", "), example)
	d.log.Warn(why)
	d.flows.unserved.Store(&why)
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
	if err := d.kernel.Heartbeat(now); err != nil {
		d.log.Warn("heartbeat", "error", err)
	}
}
