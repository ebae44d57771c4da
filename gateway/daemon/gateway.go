package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/gateway/explain"
	"sluice.dev/sluice/gateway/flows"
	"sluice.dev/sluice/internal/boottime"
	"sluice.dev/sluice/internal/logs"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/serve/status"
)

var _ status.Gateway = (*Daemon)(nil)

// Services implements status.Gateway.
func (d *Daemon) Services() (list []status.ServiceView) {
	d.totals.Read(func() {
		list = status.ServiceViews(d.snapshot(), d.totals, func(id services.ServiceID) uint32 {
			return d.flows.file.Table.ServiceUse(uint32(id)).Flows
		})
	})
	return list
}

// Backends implements status.Gateway.
func (d *Daemon) Backends() (list []status.BackendView) {
	checks := d.checkViews()
	d.totals.Read(func() {
		list = status.BackendViews(d.snapshot(), d.totals, d.flows.file.Table.Loads(), checks, d.nextHopOf)
	})
	return list
}

// Times implements status.Gateway.
func (d *Daemon) Times() (v status.AllTimesView) {
	d.totals.Read(func() { v = status.AllTimes(d.snapshot(), d.totals) })
	return v
}

// ServiceTimes implements status.Gateway.
func (d *Daemon) ServiceTimes() (list []status.ServiceTimesView) {
	d.totals.Read(func() { list = status.ServiceTimes(d.snapshot(), d.totals) })
	return list
}

// nextHopOf describes where packets to an address are sent.
func (d *Daemon) nextHopOf(a netip.Addr) string {
	addr := header.AddrFrom(a)
	route := d.hops.View().Lookup(&addr)
	hop := d.hops.Hop(route.Hop)
	switch {
	case route.Kind == nexthop.Kernel:
		return "host link"
	case route.Kind == nexthop.Unreachable:
		return "no route"
	case hop == nil:
		return "not resolved yet"
	case !hop.Ready:
		return "no answer from " + hop.Addr.String()
	case int(hop.Link) >= len(d.settings.atStart.Interfaces):
		return "unknown interface"
	}
	return fmt.Sprintf("%s %s", d.settings.atStart.Interfaces[hop.Link].Name, mac(hop.DstMAC))
}

func mac(m [6]byte) string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}

// Flows implements status.Gateway.
func (d *Daemon) Flows(
	f *status.FlowFilter, cursor uint64, limit int, page []status.FlowView,
) ([]status.FlowView, uint64) {
	return d.flows.reader.Page(f, cursor, limit, page)
}

// DeleteFlows implements status.Gateway.
func (d *Daemon) DeleteFlows(ctx context.Context, f *status.FlowFilter) (int, error) {
	return d.flows.reader.Delete(ctx, f)
}

// Explain implements status.Gateway.
func (d *Daemon) Explain(q *status.ExplainQuery) (status.ExplainView, error) {
	return d.explain.Explain(q, &explain.Gateway{
		Snapshot: d.snapshot(), Open: d.isOpen(), Steers: d.kernel.Steers, Denies: d.denials.Denies,
		NextHop:  d.nextHopOf,
		Problems: status.ProblemViews(d.loop.Status().Problems), UnfinishedChecksums: d.unfinishedChecksums(),
		Group: d.groupView(),
	})
}

// Capture implements status.Gateway.
func (d *Daemon) Capture(
	ctx context.Context, q *status.CaptureQuery, out status.CaptureWriter,
) (status.CaptureView, error) {
	if !d.isOpen() {
		return status.CaptureView{}, errors.New("the interfaces are not open yet: there are no packets to capture")
	}
	return d.captures.Run(ctx, q, out)
}

// Drain implements status.Gateway.
func (d *Daemon) Drain(e status.Endpoint, on bool) (int, error) {
	if !e.Prefix.IsSingleIP() {
		return 0, errors.New("drain one backend at a time: an address or address:port, not a prefix")
	}
	drain := compiler.Drain{Addr: header.AddrFrom(e.Prefix.Addr()), Port: e.Port}
	if on {
		return d.loop.Drain(d.life.ctx, drain)
	}
	return d.loop.Undrain(d.life.ctx, drain)
}

// Deny implements status.Gateway.
func (d *Daemon) Deny(ctx context.Context, p netip.Prefix, after time.Duration) (v status.DeniedView, err error) {
	if problem := config.DenialProblem(p); problem != "" {
		return v, errors.New("the client " + problem)
	}
	v.Flows, err = d.denials.Deny(ctx, p, after)
	if entry := d.denials.Entry(p); entry != nil {
		v.DenialView = *entry
	}
	v.Notes = d.insideDenied(p)
	return v, err
}

// insideDenied returns notes about addresses of the node, and endpoints, in a denied prefix.
func (d *Daemon) insideDenied(p netip.Prefix) (notes []string) {
	for _, a := range d.mirror.Addresses() {
		if p.Contains(a.Prefix.Addr()) {
			notes = append(notes, fmt.Sprintf("%v is an address of this node: the node's own connections continue",
				a.Prefix.Addr()))
			break
		}
	}
	n := 0
	d.snapshot().Backends(func(b *services.Backend) bool {
		if p.Contains(b.Addr.Netip()) {
			n++
		}
		return true
	})
	if n > 0 {
		notes = append(notes, fmt.Sprintf("%d endpoints have an address in %v: they get and answer connections of "+
			"clients as before; as clients of Services at this gateway they are denied", n, p))
	}
	return notes
}

// Allow implements status.Gateway.
func (d *Daemon) Allow(ctx context.Context, p netip.Prefix) error { return d.denials.Allow(ctx, p) }

// Denials implements status.Gateway.
func (d *Daemon) Denials() ([]status.DenialView, error) { return d.denials.Views() }

// WaitApplied implements status.Gateway.
func (d *Daemon) WaitApplied(ctx context.Context) error {
	for _, stage := range []struct {
		reached <-chan struct{}
		not     string
	}{
		{d.open, "the interfaces are not open yet"},
		{d.flows.adopted, "the recovered flows are not counted yet"},
	} {
		select {
		case <-stage.reached:
		case <-ctx.Done():
			return fmt.Errorf("%w: %s", ctx.Err(), stage.not)
		}
	}
	if err := d.waitConfig(ctx); err != nil {
		return err
	}
	return d.loop.WaitListed(ctx)
}

// steeringCounts returns the counters of the kernel program by name; empty if they cannot be read.
func (d *Daemon) steeringCounts() map[string]uint64 {
	k, err := d.kernel.Counters()
	if err != nil {
		return map[string]uint64{}
	}
	return map[string]uint64{
		"steered": k.Steered, "passed": k.Passed, "missed_dropped": k.MissedDropped, "missed_passed": k.MissedPassed,
		"egress_redirected": k.EgressRedirected, "foreign_passed": k.ForeignPassed,
		"sent_back_dropped": k.SentBackDropped, "denied_dropped": k.DeniedDropped,
	}
}

// Stats implements status.Gateway.
func (d *Daemon) Stats() status.StatsView {
	v := status.StatsView{Steering: d.steeringCounts()}
	v.Workers, v.Stalled = d.progress()
	c := d.flows.file.Table.Counts()
	v.Flows, v.FlowEvents = flows.TableViews(&c)
	v.Queues = d.ports.QueueStats()
	v.Snapshot = d.snapshotView()
	return v
}

// SourcePorts implements status.Gateway.
func (d *Daemon) SourcePorts() []status.SourcePortsView { return d.flows.reader.SourcePorts() }

func (d *Daemon) snapshotView() status.SnapshotView {
	s, st := d.snapshot(), d.loop.Status()
	v := status.SnapshotView{Published: s.Generation, PublishedAt: st.At, Seen: min(st.Oldest, s.Generation)}
	if st.Applied == st.Read {
		v.Steered = s.Generation
	}
	seen := map[services.ServiceID]bool{}
	s.Frontends(func(f *services.Frontend) bool {
		v.Frontends++
		seen[f.Service.ID] = true
		return true
	})
	s.Backends(func(*services.Backend) bool { v.Backends++; return true })
	v.Services = len(seen)
	return v
}

// Status implements status.Gateway.
func (d *Daemon) Status() status.StatusView {
	c := d.settings.config()
	node, _ := c.Node() // checked at start
	st := d.loop.Status()
	v := status.StatusView{
		Node: node, PID: os.Getpid(), StartedAt: d.startedAt, Version: status.ThisBuild(),
		Draining: d.shutdown.draining.Load(), Snapshot: d.snapshotView(),
		Config: d.settings.view(), Sources: d.inputs.views(st), Problems: status.ProblemViews(st.Problems),
		Conditions: d.conditions(),
		Frames:     status.FramesView{Bytes: d.frames.Size, Reason: d.frames.Reason}, Places: d.workers.Places(),
	}
	v.FlowLog = d.flows.log.view()
	v.TakeOver, v.Group = d.handOver.requests.view.Load(), d.groupView()
	v.Applied = st.Applied == st.Read && st.Oldest >= st.Generation && d.isOpen()
	v.Interfaces = d.ports.Views()
	v.NotReady = d.notReady()
	v.Ready = len(v.NotReady) == 0
	return v
}

// conditions returns the conditions that an operator should know. None of them stops the gateway.
func (d *Daemon) conditions() (list []status.ConditionView) {
	if d.servers.metrics != nil {
		list = append(list, d.servers.metrics.Condition())
	}
	list = append(list, d.health.proxy.Conditions()...)
	for _, why := range d.beats.Unready() {
		list = append(list, status.Failed("loop", why+": changes may not take effect; known flows are forwarded. "+
			"Restart the daemon, and report it"))
	}
	if why := logs.Stderr.Dropping(); why != "" {
		list = append(list, status.Warning("log", why))
	}
	if err := d.loop.SteeringError(); err != nil {
		list = append(list, status.Failed("steering", "the kernel program does not redirect all packets of Services: "+
			err.Error()))
	}
	routes := d.mirror.Status()
	for _, w := range routes.Warnings {
		list = append(list, status.Warning("routes", w))
	}
	if routes.Full != "" {
		list = append(list, status.Failed("neighbours", routes.Full))
	}
	list = append(list, sandboxCondition(d.sandbox), d.seed.condition())
	list = append(list, d.host.condition()...)
	list = append(list, d.flows.conditions()...)
	list = append(list, d.reach.conditions()...)
	list = append(list, d.ports.Conditions()...)
	list = append(list, d.groupConditions()...)
	list = append(list, d.denials.Conditions()...)
	list = append(list, d.captures.Conditions()...)
	list = append(list, d.servers.readers.conditions()...)
	list = append(list, d.servers.certificates.conditions(time.Now())...)
	list = append(list, journalCondition(d.settings.journal)...)
	if d.isOpen() {
		list = append(list, d.workers.Conditions(boottime.Nanos())...)
		if n := d.unfinishedChecksums(); n > 0 {
			list = append(list, status.Warning("checksums", fmt.Sprintf("%d segments had unfinished checksums "+
				"and changed no flow: connections of their senders cannot open; `sluice doctor` names the interface", n)))
		}
	}
	return list
}
