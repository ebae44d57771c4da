package daemon

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/gateway/flows"
)

// Live flows keep the source ports and addresses that they got by an earlier process's
// configuration, and the routes to these addresses, until they end. The status lists the flows for
// which that is not possible.

// keepSources keeps the ports and addresses steered that replies to a predecessor's flows come to.
// It precedes SetSettings. The control loop closes those that no flow uses.
func (d *Daemon) keepSources() error {
	if err := d.steer.MoveReplies(d.config); err != nil {
		return err
	}
	if d.host == nil || len(d.host.Former) == 0 {
		return nil
	}
	d.log.Info("addresses of the host link stay for flows that have them", "addresses", d.host.Former)
	return d.steer.OpenSources(d.host.Former)
}

// watchSources removes routes of source addresses whose last flow has ended.
func (d *Daemon) watchSources(context.Context) {
	d.hostMu.Lock()
	kept := d.keptRoutes
	d.hostMu.Unlock()
	if kept {
		d.applySources()
	}
}

// noteMissing notes that a predecessor's flow table is not where this process looks for it.
func (d *Daemon) noteMissing() {
	r := &d.flows.Recovery
	if r.Missing = r.Fresh && !r.Unread && len(d.left) > 0; r.Missing {
		d.log.Warn(flows.Losses(r))
	}
}

// noteUnserved counts the predecessor's flows that need an interface which is not configured any
// more.
func (d *Daemon) noteUnserved() {
	if d.flows.Recovery.Recovered == 0 || d.took.Load() { // a hand-over is of the same interfaces
		return
	}
	var names []string
	for _, index := range d.steer.Left(d.ports.Indexes()...) {
		if link, err := netlink.LinkByIndex(index); err == nil {
			names = append(names, link.Attrs().Name)
		}
	}
	ways := d.mirror.Ways()
	if len(names) == 0 || ways == nil {
		return
	}
	slices.Sort(names)
	host := d.hostLink()
	n, example := d.reader.Count(func(f *flowtable.Info) bool {
		source, backend := f.Reply.Dst.Netip(), f.Reply.Src.Netip()
		byHost := host != nil && (source == host.Addr4 || source == host.Addr6 || slices.Contains(host.Former, source))
		return ways.To(f.Client.Src.Netip()).Kind != nexthop.OnLink ||
			!byHost && ways.To(backend).Kind != nexthop.OnLink
	})
	if n == 0 {
		return
	}
	why := fmt.Sprintf("%d flows of the process before are reached by interfaces that are not in the configuration "+
		"(%s), and end: such as that of %s; if they are to go on, put these interfaces back and start again", n,
		strings.Join(names, ", "), example)
	d.log.Warn(why)
	d.mu.Lock()
	d.unserved = why
	d.mu.Unlock()
}
