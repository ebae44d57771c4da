package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"sluice.dev/sluice/announce/pulse"
	"sluice.dev/sluice/config"
	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/fastpath/copies"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/gateway/flows"
	"sluice.dev/sluice/gateway/members"
	"sluice.dev/sluice/gateway/sources"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/serve/status"
)

// joinGroup makes this gateway a member of its group, if it has one. The flow table must be open,
// or mapped while the predecessor has it.
func (d *Daemon) joinGroup(workers int) (err error) {
	c := d.settings.config()
	if !c.Group.Enabled() {
		former, err := sources.Dissolve(d.log, c.StateDir)
		d.formerSources.Store(&former)
		return err
	}
	node, _ := c.Node() // checked at start
	taken := d.handOver.in(preparing)
	if !taken && !sources.Noted(c.StateDir) {
		if err := d.endCopies(node); err != nil {
			return err
		}
	}
	recovery := &d.flows.file.Recovery
	d.group, err = members.New(members.Config{
		Log: d.log, Group: &c.Group, Self: node, Removed: d.members.last.Removed, StateDir: c.StateDir,
		Table: d.flows.file.Table, Workers: workers, Kept: taken || keepsAll(recovery), Taken: taken,
		KeepAfter: c.Flows.Timeouts.Established.D(),
		InUse:     d.flows.ofSource, Opened: func() { d.configure(d.life.ctx) }, Beats: &d.beats,
		RealTime: func() error { return d.workers.RealTime() },
	})
	if err != nil {
		return err
	}
	if !taken {
		d.flows.file.Table.NoteLosses() // members.New has written them to the disk
	}
	d.formerSources.Store(new(d.group.Former()))
	d.flows.reader.Join(&flows.Group{Verdicts: d.group.Verdicts, Name: d.group.Name, HostLink: func(a netip.Addr) bool {
		h := d.host.current()
		return h != nil && (a == h.Addr4 || a == h.Addr6 || slices.Contains(h.Former, a))
	}})
	return nil
}

// endCopies ends the flows of other gateways of the group in a table that is not noted as one of
// the group. The others may have removed this gateway since, and given the ports of these flows to
// other clients.
func (d *Daemon) endCopies(node string) error {
	var of []netip.Addr
	for _, m := range slices.Concat(d.settings.config().Group.Members, d.members.last.Removed) {
		if m.Name != node {
			of = append(of, m.Sources...)
		}
	}
	for _, f := range d.members.last.Former {
		if f.Name != node {
			of = append(of, f.Sources...)
		}
	}
	n, err := d.flows.reader.EndOf(of)
	if n > 0 {
		d.log.Warn("flows of other gateways are ended, because these may have removed this gateway from the group "+
			"since it had them", "flows", n)
	}
	return err
}

// leaveGroup notes that no flow stays for a next process, and then tells the other gateways. If
// this process is killed before it has removed the table, endCopies ends the copies in the table.
func (d *Daemon) leaveGroup() error {
	if d.group == nil {
		return nil
	}
	err := sources.Forget(d.settings.config().StateDir)
	if err == nil {
		d.group.Leave()
	}
	return err
}

// keepsAll reports whether a table has all flows and held ports of the previous process. If some
// did not fit, or were damaged, their ports are free here, and other gateways may have copies: for
// the group that is a loss of memory. A process that was killed before it wrote the loss to the
// disk has left it to the next one.
func keepsAll(r *flowtable.Recovery) bool {
	return !r.Fresh && !r.Unread && !r.Unnoted && r.Lost == 0 && r.Damaged == 0
}

// ofSource counts the flows with a source address.
func (f *flowState) ofSource(a netip.Addr) int {
	n, _ := f.reader.Count(func(i *flowtable.Info) bool { return i.Reply.Dst.Netip() == a })
	return n
}

// copies returns what workers share with the streams of a group; nil without one.
func (d *Daemon) copies() *copies.Board {
	if d.group == nil {
		return nil
	}
	return d.group.Board()
}

// runGroup exchanges flows with the other gateways of the group, if there is one.
func (d *Daemon) runGroup(ctx context.Context) {
	if d.group == nil {
		return
	}
	d.life.spawn(func() { d.group.Run(ctx) })
	if d.settings.config().Group.Nodes != "" {
		d.life.spawn(func() { d.followMembers(ctx) })
	}
}

// groupSources sets the source addresses of flows that other gateways get copies of.
func (d *Daemon) groupSources(cc *compiler.Config) {
	if d.group == nil {
		return
	}
	cc.Group4, cc.Group6 = header.Addr{}, header.Addr{}
	if a, open := d.group.OpenAddress(false); open {
		cc.Group4 = header.AddrFrom(a)
	}
	if a, open := d.group.OpenAddress(true); open {
		cc.Group6 = header.AddrFrom(a)
	}
}

// groupPulse adds the state of the group to the pulse: a gateway attracts no packets before it has
// the flows of the others.
func (d *Daemon) groupPulse(in *pulseInput) {
	if d.group != nil {
		v := d.group.View()
		in.sources, in.copied = v.Announced, v.Copied
		if in.phase == pulse.Serving && !v.Joined {
			in.phase = pulse.Opening
		}
	}
	if former := d.formerSources.Load(); former != nil && len(*former) > 0 {
		in.sources = withFormer(in.sources, *former, d.settings.config(), d.host.former.Load())
	}
}

// watchSources removes the routes of source addresses whose last flow has ended. It also forgets
// former source addresses without flows, because another gateway may get them.
func (d *Daemon) watchSources(context.Context) {
	d.host.watchSources()
	former, used := d.formerSources.Load(), d.host.former.Load()
	if former == nil || used == nil {
		return
	}
	c := d.settings.config()
	kept, gone := endedSources(*former, c, *used, d.flows.ofSource)
	if len(gone) == 0 {
		return
	}
	err := d.handOver.unlessOffering(func() error { return sources.Drop(c.StateDir, gone) })
	if errors.Is(err, errOffering) {
		return
	}
	d.formerSources.Store(&kept)
	if err != nil { // the next process looks again
		d.log.Warn("unused source addresses could not be removed from the list", "addresses", gone, "error", err)
	}
}

// endedSources splits former source addresses: flows of this gateway may have kept ones, but not
// gone ones. flows counts the flows with an address.
func endedSources(former []netip.Addr, c *config.Configuration, used []netip.Addr, flows func(netip.Addr) int) (
	kept, gone []netip.Addr) {
	others := groupAddresses(c)
	for _, a := range former {
		switch {
		case slices.Contains(others, a):
			gone = append(gone, a)
		case slices.Contains(used, a) || slices.Contains(c.SNAT.Addresses, a) || flows(a) > 0:
			kept = append(kept, a)
		default:
			gone = append(gone, a)
		}
	}
	return kept, gone
}

// withFormer adds the source addresses that this gateway had in a group before, because their flows
// need a route to this gateway. It skips addresses that the configuration has. used are the former
// source addresses that flows have; nil: it is not known yet.
func withFormer(list []pulse.Source, former []netip.Addr, c *config.Configuration, used *[]netip.Addr) []pulse.Source {
	configured := configuredSources(c)
	list = slices.Clone(list)
	for _, a := range former {
		listed := slices.ContainsFunc(list, func(s pulse.Source) bool { return s.Address == a })
		if !listed && !slices.Contains(configured, a) && (used == nil || slices.Contains(*used, a)) {
			list = append(list, pulse.Source{Address: a})
		}
	}
	slices.SortFunc(list, func(a, b pulse.Source) int { return a.Address.Compare(b.Address) })
	return list
}

// groupAddresses returns the source addresses of all gateways of a group.
func groupAddresses(c *config.Configuration) (list []netip.Addr) {
	for i := range c.Group.Members {
		list = append(list, c.Group.Members[i].Sources...)
	}
	return list
}

// groupView describes the group for the status; nil without one.
func (d *Daemon) groupView() *status.GroupView {
	if d.group == nil {
		return nil
	}
	v := d.group.View()
	errs, listener := d.group.Errors()
	view := &status.GroupView{Listener: listener, Complete: v.Complete, HeldPorts: v.HeldPorts,
		Flows: map[string]uint64{}}
	for i := range v.Members {
		view.Members = append(view.Members, memberView(&v.Members[i], errs[v.Members[i].Number]))
	}
	for _, s := range v.SourceAddresses {
		view.Sources = append(view.Sources, status.GroupSourceView{Address: s.Address, State: d.sourceState(&s)})
	}
	view.AnswerWait = status.HistogramOf(d.group.Waits()...)
	for o, n := range d.group.Flows() {
		if o := copies.Outcome(o); o != copies.Undecided {
			view.Flows[o.String()] = n
		}
	}
	return view
}

// memberView describes another gateway for the status; ended is the reason of the last
// stream's end.
func memberView(m *members.Member, ended string) status.GroupMemberView {
	var list []string
	if ended != "" {
		list = append(list, ended)
	}
	const why = ", for lack of room or for flows of its own"
	if m.HasOurs && m.Refused > 0 {
		list = append(list, fmt.Sprint("it has refused flows of this gateway: ", m.Refused, why))
	}
	if m.HasIts && m.RefusedIts > 0 {
		list = append(list, fmt.Sprint("this gateway has refused its flows: ", m.RefusedIts, why))
	}
	return status.GroupMemberView{Name: m.Name, Address: m.Address, HasOurFlows: m.HasOurs && m.Refused == 0,
		WeHaveItsFlows: m.HasIts && m.RefusedIts == 0, Copies: m.Copies, Lag: m.Lag,
		Error: strings.Join(list, "; ")}
}

// sourceState describes a source address for the status: as open only if workers have it.
func (d *Daemon) sourceState(s *sources.SourceAddress) string {
	v6 := s.Address.Is6()
	if a, open := d.group.OpenAddress(v6); !open || a != s.Address {
		return string(s.State)
	}
	snapshot := d.snapshot()
	used := snapshot.Group4
	if v6 {
		used = snapshot.Group6
	}
	if used != header.AddrFrom(s.Address) {
		return status.SourceOpening
	}
	return string(s.State)
}

// groupConditions returns a warning for each kind of flow that a group does not protect.
func (d *Daemon) groupConditions() (list []status.ConditionView) {
	v := d.groupView()
	if v == nil {
		return nil
	}
	if v.Listener != "" && d.isOpen() {
		list = append(list, status.Failed("group", "other gateways cannot connect, so this one gets no copies of "+
			"their flows: "+v.Listener))
	}
	list = append(list, d.memberConditions()...)
	if slow := d.group.Slow(); slow != "" {
		list = append(list, status.Warning("group", "flows may be copied late while other processes use the CPUs: "+
			slow))
	}
	var without, lost []string
	for _, m := range v.Members {
		why := ""
		if m.Error != "" {
			why = " (" + m.Error + ")"
		}
		if !m.HasOurFlows {
			without = append(without, m.Name+why)
		}
		if !m.WeHaveItsFlows {
			lost = append(lost, m.Name+why)
		}
	}
	if len(without) > 0 {
		list = append(list, status.Warning("group", "without copies of all flows of this gateway: "+
			strings.Join(without, ", ")))
	}
	if len(lost) > 0 {
		list = append(list, status.Warning("group", "this gateway does not have all flows of "+
			strings.Join(lost, ", ")+"; until then it drops segments of unknown connections without an RST"))
	}
	return append(list, sourceConditions(v)...)
}

// sourceConditions warns about source addresses that cannot be used, or are used in place of
// others.
func sourceConditions(v *status.GroupView) (list []status.ConditionView) {
	for _, is6 := range []bool{false, true} {
		var of []status.GroupSourceView
		for _, s := range v.Sources {
			if s.Address.Is6() == is6 {
				of = append(of, s)
			}
		}
		in := func(states ...string) int {
			return slices.IndexFunc(of, func(s status.GroupSourceView) bool { return slices.Contains(states, s.State) })
		}
		switch open, closed := in(string(sources.Open), status.SourceOpening), in(string(sources.Closed)); {
		case len(of) == 0 || closed < 0:
		case open < 0:
			list = append(list, status.Failed("group", fmt.Sprintf("no source address is open (%v and %v are "+
				"closed): flows are not copied to other gateways until this one has reached all of them since its "+
				"loss of memory", of[0].Address, of[1].Address)))
		default:
			list = append(list, status.Warning("group", fmt.Sprintf("source address %v is closed, and %v is in "+
				"use: it is a spare again when its flows have ended, and this gateway has reached all others since "+
				"its loss of memory", of[closed].Address, of[open].Address)))
		}
	}
	return list
}
