package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/loop"
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/gateway/boottime"
	"sluice.dev/sluice/gateway/explain"
	"sluice.dev/sluice/gateway/flows"
	"sluice.dev/sluice/internal/logs"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/serve/status"
)

var _ status.Gateway = (*Daemon)(nil)

// snapshot returns the published snapshot, or an empty one before the first.
func (d *Daemon) snapshot() *services.Snapshot {
	if s := d.services.Load(); s != nil {
		return s
	}
	return &services.Snapshot{}
}

// Services implements status.Gateway.
func (d *Daemon) Services() []status.ServiceView {
	return status.ServiceViews(d.snapshot(), d.totals, func(id services.ServiceID) uint32 {
		return d.flows.Table.ServiceUse(uint32(id)).Flows
	})
}

// Backends implements status.Gateway.
func (d *Daemon) Backends() []status.BackendView {
	return status.BackendViews(d.snapshot(), d.totals, d.flows.Table.Loads(), d.checkViews(), d.nextHopOf)
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
	case int(hop.Link) >= len(d.fixed.Interfaces):
		return "unknown interface"
	}
	return fmt.Sprintf("%s %s", d.fixed.Interfaces[hop.Link].Name, mac(hop.DstMAC))
}

func mac(m [6]byte) string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}

// Flows implements status.Gateway.
func (d *Daemon) Flows(
	f *status.FlowFilter, cursor uint64, limit int, page []status.FlowView,
) ([]status.FlowView, uint64) {
	return d.reader.Page(f, cursor, limit, page)
}

// DeleteFlows implements status.Gateway.
func (d *Daemon) DeleteFlows(ctx context.Context, f *status.FlowFilter) (int, error) {
	return d.reader.Delete(ctx, f)
}

// Explain implements status.Gateway.
func (d *Daemon) Explain(q *status.ExplainQuery) (status.ExplainView, error) {
	return d.explain.Explain(q, &explain.Gateway{
		Snapshot: d.snapshot(), Open: d.isOpen(), Steers: d.steer.Steers, NextHop: d.nextHopOf,
		Problems: status.ProblemViews(d.loop.Status().Problems), UnfinishedChecksums: d.unfinishedChecksums(),
	})
}

// unfinishedChecksums sums what the workers have counted.
func (d *Daemon) unfinishedChecksums() (n uint64) {
	for _, b := range d.workers.Blocks() {
		n += b.UnfinishedChecksums.Load()
	}
	return n
}

// Drain implements status.Gateway.
func (d *Daemon) Drain(e status.Endpoint, on bool) (int, error) {
	if !e.Prefix.IsSingleIP() {
		return 0, errors.New("drain one backend at a time: an address or address:port, not a prefix")
	}
	what := compiler.Drain{Addr: header.AddrFrom(e.Prefix.Addr()), Port: e.Port}
	if on {
		return d.loop.Drain(d.life, what)
	}
	return d.loop.Undrain(d.life, what)
}

// WaitApplied implements status.Gateway.
func (d *Daemon) WaitApplied(ctx context.Context) error {
	for _, stage := range []struct {
		reached <-chan struct{}
		not     string
	}{
		{d.open, "the interfaces are not open yet"},
		{d.adopted, "the flows of the process before are not counted yet"},
	} {
		select {
		case <-stage.reached:
		case <-ctx.Done():
			return fmt.Errorf("%w: %s", ctx.Err(), stage.not)
		}
	}
	return d.loop.WaitListed(ctx)
}

// Stats implements status.Gateway.
func (d *Daemon) Stats() status.StatsView {
	v := status.StatsView{Workers: d.workers.Views(boottime.Nanos()), Steering: map[string]uint64{}}
	c := d.flows.Table.Counts()
	v.Flows, v.FlowEvents = flows.TableViews(&c)
	if k, err := d.steer.Counters(); err == nil {
		v.Steering = map[string]uint64{
			"steered": k.Steered, "passed": k.Passed, "missed_dropped": k.MissedDropped,
			"missed_passed": k.MissedPassed, "egress_redirected": k.EgressRedirected,
			"foreign_passed": k.ForeignPassed, "sent_back_dropped": k.SentBackDropped,
		}
	}
	v.Queues = d.ports.QueueStats()
	v.Snapshot = d.snapshotView()
	v.Stalled = d.beats.Dead()
	return v
}

// SourcePorts implements status.Gateway.
func (d *Daemon) SourcePorts() []status.SourcePortsView { return d.reader.SourcePorts() }

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
	c := d.configuration()
	node, _ := c.Node() // checked at start
	st := d.loop.Status()
	v := status.StatusView{
		Node: node, PID: os.Getpid(), StartedAt: d.startedAt, Version: status.ThisBuild(),
		Draining: d.draining.Load(), Snapshot: d.snapshotView(),
		Config: d.configView(), Sources: d.sourceViews(st), Problems: status.ProblemViews(st.Problems),
		Conditions: d.conditions(),
		Frames:     status.FramesView{Bytes: d.frames.Size, Reason: d.frames.Reason}, Places: d.workers.Places(),
	}
	v.TakeOver = d.takenOver.Load()
	v.Applied = st.Applied == st.Read && st.Oldest >= st.Generation && d.isOpen()
	v.Interfaces = d.ports.Views()
	v.NotReady = d.notReady()
	v.Ready = len(v.NotReady) == 0
	return v
}

func sources(st *loop.Status) (list []status.SourceView) {
	for _, s := range st.Sources {
		v := status.SourceView{Name: s.Source.Kind + ":" + s.Source.Path, Synced: s.Synced, Read: s.Read,
			Objects: s.Objects, Error: s.Error, ReadAt: st.At}
		if s.Applied {
			v.Applied = s.Read
		}
		list = append(list, v)
	}
	return list
}

// stalled lists running workers that are stalled.
func (d *Daemon) stalled() []int {
	if !d.isOpen() {
		return nil
	}
	return d.workers.Stalled(boottime.Nanos())
}

// conditions returns conditions that an operator should know of, and that stop nothing.
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
		list = append(list, status.Failed("steering", "the kernel program does not steer all that it should: "+
			err.Error()))
	}
	for _, w := range d.mirror.Status().Warnings {
		list = append(list, status.Warning("routes", w))
	}
	d.mu.Lock()
	hostErr := d.hostErr
	d.mu.Unlock()
	if d.stateOnDisk {
		list = append(list, status.Warning("state-dir", onDisk))
	}
	list = append(list, d.sandboxCondition(), d.seedCondition())
	if hostErr != nil {
		list = append(list, status.Failed("host-link", "cannot be repaired, so the kernel gets nothing from us: "+
			hostErr.Error()))
	}
	if why := flows.Losses(&d.flows.Recovery); why != "" {
		list = append(list, status.Warning("flow-table", why))
	}
	d.mu.Lock()
	unserved := d.unserved
	d.mu.Unlock()
	if unserved != "" {
		list = append(list, status.Warning("flows", unserved))
	}
	list = append(list, d.linkConditions()...)
	list = append(list, d.ports.Conditions()...)
	if d.isOpen() {
		list = append(list, d.workers.Conditions(boottime.Nanos())...)
		if n := d.unfinishedChecksums(); n > 0 {
			list = append(list, status.Warning("checksums", fmt.Sprintf("%d segments came with unfinished checksums "+
				"and changed no flow: connections of their senders are not completed; `sluice doctor` names where", n)))
		}
	}
	return list
}
