package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/control/k8s"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/tracker"
	"sluice.dev/sluice/gateway/flows"
	"sluice.dev/sluice/gateway/roster"
	"sluice.dev/sluice/gateway/sources"
	"sluice.dev/sluice/internal/heartbeat"
	"sluice.dev/sluice/serve/status"
)

// nodesWithin is how long a gateway that starts waits for the Nodes of its group, before it goes on
// with the members that it had last.
const nodesWithin = 10 * time.Second

// groupNodes makes the list of members from Nodes (package roster).
type groupNodes struct {
	file roster.File
	last roster.Lists // in force
	// anew: no earlier process has left flows, so other gateways may have removed this one since
	// the lists were written.
	anew     bool
	reported []objects.Problem
}

// readMembers makes the list of members, if they are Nodes, and puts it in force. It waits until
// this node is one, unless the process is to take over from another one.
func (d *Daemon) readMembers(ctx context.Context) (err error) {
	c := d.settings.config()
	if c.Group.Nodes == "" {
		return nil
	}
	m := &d.members
	m.file = roster.In(c.Group.StateDir)
	if m.last, err = m.file.Load(); err != nil {
		d.log.Warn("the members that the group had last are not known", "error", err)
	}
	if node, _ := c.Node(); !hasMember(m.last.Members, node) {
		m.last = roster.Lists{} // of a gateway with another name
	}
	m.anew = !d.handOver.in(preparing) && !sources.Noted(c.StateDir)
	d.inputs.read(&d.life)
	g, tooLong, before := d.inputs.kubernetes.Gateways(), time.After(nodesWithin), ""
	for patient := !d.handOver.in(preparing); ; {
		err := d.readMembersOnce(patient)
		if err == nil {
			return nil
		}
		if d.handOver.in(preparing) {
			return err
		}
		if why := err.Error(); why != before {
			before = why
			d.log.Warn("this gateway waits until it is a member of its group", "why", why)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-d.life.failed:
			return err
		case <-tooLong:
			patient = false
		case <-g.Changed():
		}
	}
}

// readMembersOnce puts the list of the present Nodes in force, or the last one if they cannot be
// read. patient: they may be read soon.
func (d *Daemon) readMembersOnce(patient bool) error {
	c, m := d.settings.config(), &d.members
	nodes, state := d.inputs.kubernetes.Gateways().Nodes()
	list, uid := m.last.Members, uidOf(c, nodes)
	if state.Synced && m.replaced(uid) {
		if d.handOver.in(preparing) {
			return errRemoved
		}
		if err := d.forgetGroup(); err != nil {
			return err
		}
	}
	switch {
	case state.Synced:
		list = d.rosterOf(nodes)
	case patient && state.Err == "":
		return errors.New("the Nodes of the group are not read yet")
	case len(list) == 0:
		return fmt.Errorf("the Nodes of the group cannot be read, and no earlier process has left their list in %s: %s",
			m.file, state.Err)
	default:
		d.log.Warn("the Nodes of the group cannot be read; its members are the last ones", "error", state.Err)
	}
	node, _ := c.Node() // checked at start
	if !hasMember(list, node) {
		if state.Synced && len(list) > 0 && hasMember(m.last.Members, node) && !d.handOver.in(preparing) {
			if err := d.forgetGroup(); err != nil {
				return err
			}
		}
		return fmt.Errorf("this gateway is no member of its group: give Node %s the labels %s, and the "+
			"annotation %s with two source addresses of each family%s", node, c.Group.Nodes,
			objects.AnnotationGroupSources, m.why(node))
	}
	return d.enforceMembers(list, uid)
}

// replaced reports whether this gateway's Node, which has a UID or "", was deleted and made again
// since the lists in force were written: then other gateways may have removed this one for good.
func (m *groupNodes) replaced(uid string) bool {
	return uid != "" && m.last.UID != "" && uid != m.last.UID
}

// uidOf returns the UID of this gateway's Node, or "".
func uidOf(c *config.Configuration, nodes []objects.GatewayNode) string {
	node, _ := c.Node() // checked at start
	if i := slices.IndexFunc(nodes, func(n objects.GatewayNode) bool { return n.Name == node }); i >= 0 {
		return nodes[i].UID
	}
	return ""
}

// forgetGroup ends all flows in the table, and forgets the group: the other gateways have removed
// this one for good, and may give the ports of these flows to other clients.
func (d *Daemon) forgetGroup() error {
	r, err := flows.NewReader(d.flows.file.Table, &d.services)
	if err != nil {
		return err
	}
	defer r.Close()
	c := d.settings.config()
	if err := sources.Void(c.Group.StateDir); err != nil {
		return fmt.Errorf("group.stateDir: %w", err)
	}
	if err := sources.Forget(c.StateDir); err != nil {
		return fmt.Errorf("stateDir: %w", err)
	}
	r.EndAll()
	d.log.Warn("this gateway was removed from its group: the flows of its last process are ended")
	return d.members.save(roster.Lists{})
}

// why returns the problem of a Node, for a message.
func (m *groupNodes) why(node string) string {
	for i := range m.reported {
		if p := &m.reported[i]; p.Object.Name == node {
			return fmt.Sprintf(" (%s %s)", p.Field, p.Message)
		}
	}
	return ""
}

// rosterOf returns the list of members of Nodes, and reports the problems.
func (d *Daemon) rosterOf(nodes []objects.GatewayNode) []config.GroupMember {
	c, m := d.settings.config(), &d.members
	in := roster.Input{Last: m.last.Members, Removed: m.last.Removed, Former: m.last.Former, Nodes: nodes,
		Port: uint16(c.Group.Port), Check: c.CheckMember, Ended: func(string) bool { return false }}
	node, _ := c.Node() // checked at start
	switch {
	case d.group != nil:
		in.Ended, in.Running = d.group.Ended, true
	case m.anew: // another Node may have got its addresses
		in.Doubted = node
	}
	list, problems := roster.New(in)
	from := objects.Source{Kind: k8s.Kind, Path: "nodes of the group"}
	for i := range problems {
		problems[i].Source = from
	}
	if !slices.Equal(problems, m.reported) {
		m.reported = problems
		var b tracker.Batch
		b.Report(from, problems)
		d.inputs.tracker.Apply(&b)
	}
	return list
}

// enforceMembers writes a list to the disk, and puts it in force. uid is the one of this gateway's
// Node, or "".
func (d *Daemon) enforceMembers(list []config.GroupMember, uid string) error {
	m := &d.members
	before, next := m.last.Members, m.last.Next(list)
	next.UID = cmp.Or(uid, next.UID)
	if err := m.save(next); err != nil {
		return err
	}
	if !sameMembers(list, before) {
		d.log.Info("members of the group", "before", memberNames(before), "now", memberNames(list))
	}
	d.settings.setMembers(list)
	return nil
}

// save notes the lists in force on the disk, if they have changed.
func (m *groupNodes) save(next roster.Lists) error {
	same := next.UID == m.last.UID && sameMembers(next.Members, m.last.Members) &&
		sameMembers(next.Removed, m.last.Removed) &&
		slices.EqualFunc(next.Former, m.last.Former, roster.Former.Equal)
	if !same {
		if err := m.file.Save(next); err != nil {
			return fmt.Errorf("group.stateDir: %w", err)
		}
	}
	m.last = next
	return nil
}

// forget forgets the removed gateways of which this one has no flow any more, and the former source
// addresses that no flow has. flows counts the flows with an address.
func (m *groupNodes) forget(removed []config.GroupMember, flows func(netip.Addr) int) error {
	next := m.last
	next.Former = next.FormerExcept(func(a netip.Addr) bool { return flows(a) == 0 })
	next.Removed = slices.DeleteFunc(slices.Clone(next.Removed), func(o config.GroupMember) bool {
		return !hasMember(removed, o.Name)
	})
	return m.save(next)
}

func memberNames(list []config.GroupMember) (names []string) {
	for i := range list {
		names = append(names, list[i].Name)
	}
	return names
}

// followEvery is how often the list is made without a change of Nodes: a gateway has ended, or the
// last flow of a removed one.
const followEvery = 5 * time.Second

// followMembers changes the members of the group as their Nodes change, until ctx is done.
func (d *Daemon) followMembers(ctx context.Context) {
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	beat := d.beats.Add("members of the group", heartbeat.FileBounds) // it writes the list to a disk
	defer beat.Rest()
	failed := ""
	for {
		beat.Beat()
		err := d.changeMembers(ctx)
		switch {
		case errors.Is(err, errRemoved):
			d.life.fail(err)
			return
		case err == nil:
			failed = ""
		case err.Error() != failed:
			failed = err.Error()
			d.log.Error("members of the group stay as they are; it is tried again", "error", err)
		}
		beat.Rest()
		select {
		case <-ctx.Done():
			return
		case <-d.inputs.kubernetes.Gateways().Changed():
		case <-tick.C:
		}
	}
}

// errRemoved ends a gateway whose Node was removed from the group for good: other gateways have
// forgotten its flows, and may give their ports to others.
var errRemoved = errors.New("this gateway was removed from its group: its Node was deleted, has the taint " +
	"node.kubernetes.io/out-of-service, or has lost labels and annotation; it starts again as a member with its " +
	"Node's labels and annotation")

// memberConditions warns if the Nodes of the group cannot be read: gateways that join, and those
// that are removed for good, are not noticed.
func (d *Daemon) memberConditions() []status.ConditionView {
	if d.settings.config().Group.Nodes == "" {
		return nil
	}
	_, state := d.inputs.kubernetes.Gateways().Nodes()
	why := state.Err
	switch {
	case why != "":
	case !state.Synced:
		why = "they are not read yet"
	default:
		return nil
	}
	return []status.ConditionView{status.Warning("group", "the Nodes of the group cannot be read, so its members stay "+
		"as they are, and gateways that join or are removed are not noticed: "+why)}
}

// changeMembers puts the list of the present Nodes in force.
func (d *Daemon) changeMembers(ctx context.Context) error {
	nodes, state := d.inputs.kubernetes.Gateways().Nodes()
	if !state.Synced {
		return nil // the list of the file stays
	}
	m := &d.members
	if err := d.handOver.unlessOffering(func() error {
		return m.forget(d.group.View().Removed, d.flows.ofSource)
	}); err != nil && !errors.Is(err, errOffering) {
		return err
	}
	list, c := d.rosterOf(nodes), d.settings.config()
	node, _ := c.Node() // checked at start
	switch uid := uidOf(c, nodes); {
	case len(list) == 0:
		return errors.New("no Node is a member any more, so the API server may have lost its objects")
	case !hasMember(list, node) || m.replaced(uid):
		return errRemoved
	case !sameMembers(list, m.last.Members) || uid != "" && uid != m.last.UID:
		if err := d.enforceMembers(list, uid); err != nil {
			return err
		}
		d.host.applySources()
		d.configure(ctx)
	}
	d.group.Set(list)
	return nil
}

func hasMember(list []config.GroupMember, name string) bool {
	return slices.ContainsFunc(list, func(o config.GroupMember) bool { return o.Name == name })
}

func sameMembers(a, b []config.GroupMember) bool {
	return slices.EqualFunc(a, b, func(a, b config.GroupMember) bool { return roster.Same(&a, &b) })
}
