package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/control/k8s"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/tracker"
	"sluice.dev/sluice/gateway/roster"
)

// nodesWithin is how long a gateway that starts waits for the Nodes of its group, before it goes on
// with the members that it had last.
const nodesWithin = 10 * time.Second

// groupNodes makes the list of members from Nodes (package roster).
type groupNodes struct {
	file     roster.File
	last     []config.GroupMember // in force
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
	list := m.last
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
	if !slices.ContainsFunc(list, func(o config.GroupMember) bool { return o.Name == node }) {
		return fmt.Errorf("Node %s is no member: give it the labels %s, and the annotation %s with two source "+
			"addresses of each family%s", node, c.Group.Nodes, objects.AnnotationGroupSources, m.why(node))
	}
	return d.enforceMembers(list)
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
	list, problems := roster.New(roster.Input{Last: m.last, Nodes: nodes, Port: uint16(c.Group.Port),
		Check: c.CheckMember,
		Ended: func(string) bool { return false }})
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

// enforceMembers writes a list to the disk, and puts it in force.
func (d *Daemon) enforceMembers(list []config.GroupMember) error {
	m := &d.members
	if !slices.EqualFunc(list, m.last, func(a, b config.GroupMember) bool { return roster.Same(&a, &b) }) {
		if err := m.file.Save(list); err != nil {
			return fmt.Errorf("group.stateDir: %w", err)
		}
		d.log.Info("members of the group", "before", memberNames(m.last), "now", memberNames(list))
	}
	m.last = list
	d.settings.setMembers(list)
	return nil
}

func memberNames(list []config.GroupMember) (names []string) {
	for i := range list {
		names = append(names, list[i].Name)
	}
	return names
}
