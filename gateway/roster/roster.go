package roster

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/control/objects"
)

// field is the path of the annotation, for Problems.
const field = "metadata.annotations[" + objects.AnnotationGroupSources + "]"

// Input is what a list is made from.
type Input struct {
	// Last is the list in force.
	Last []config.GroupMember
	// Nodes are the Nodes with the labels or the annotation.
	Nodes []objects.GatewayNode
	// Port is where gateways listen.
	Port uint16
	// Check returns an error if an entry could not work with the gateway's other settings
	// (config.CheckMember).
	Check func(*config.GroupMember) error
	// Ended reports whether the gateway of a Node without the labels has ended.
	Ended func(name string) bool
	// Running: the gateway runs with Last. Then entries of Last do not change: gateways come and
	// go.
	Running bool
	// Removed are gateways that were removed while this one has copies of their flows: until these
	// have ended, their addresses can only be used by the same gateways.
	Removed []config.GroupMember
	// Doubted is a member whose entry in force does not count beside another Node with one of its
	// addresses; empty: there is none.
	Doubted string
	// Former are as in Lists: until their flows have ended, only the same gateways can have them.
	Former []Former
}

// New returns the list, by name, and the problems of Nodes, without their Source.
func New(in Input) (list []config.GroupMember, problems []objects.Problem) {
	r := roster{Input: in}
	for i := range in.Nodes {
		r.add(&in.Nodes[i])
	}
	r.Removed = slices.Concat(in.Removed, r.leaving())
	slices.SortFunc(r.entries, func(a, b *entry) int { return cmp.Compare(a.node.Name, b.node.Name) })
	for r.agree() || r.separate() {
	}
	r.limit()
	for _, e := range r.entries {
		if e.member != nil {
			list = append(list, *e.member)
		}
		if e.problem != "" {
			problems = append(problems, objects.Problem{
				Object: objects.MakeObjectID(objects.KindNode, "", e.node.Name), Field: e.field,
				Message: e.problem + e.consequence(), Severity: e.severity, Serving: e.member != nil,
			})
		}
	}
	return list, problems
}

// roster is a list that is being made.
type roster struct {
	Input
	entries []*entry
}

// entry is a Node that is a member, or has a problem.
type entry struct {
	node     *objects.GatewayNode
	last     *config.GroupMember // in the list in force; nil if it is not
	member   *config.GroupMember // in the new list; nil if it is not
	field    string
	problem  string
	severity objects.Severity
}

// changes reports whether the entry differs from the one in force.
func (e *entry) changes() bool {
	return e.member != nil && (e.last == nil || !Same(e.last, e.member))
}

// refuse keeps the entry in force.
func (e *entry) refuse(field, format string, args ...any) {
	e.member, e.field, e.severity = e.last, field, objects.Refused
	e.problem = fmt.Sprintf(format, args...)
}

func (e *entry) consequence() string {
	switch {
	case e.member == nil:
		return "; its gateway is no member of the group"
	case e.severity == objects.Refused:
		return fmt.Sprintf("; meanwhile its gateway is a member with %s at %s", addressList(e.member.Sources),
			e.member.Address)
	}
	return ""
}

func addressList(list []netip.Addr) string { return strings.Trim(fmt.Sprint(list), "[]") }

// Same reports whether two entries are the same.
func Same(a, b *config.GroupMember) bool {
	return a.Name == b.Name && a.Address == b.Address && slices.Equal(a.Sources, b.Sources)
}

// add takes a Node, unless it is removed for good.
func (r *roster) add(n *objects.GatewayNode) {
	e := &entry{node: n}
	if i := slices.IndexFunc(r.Last, func(m config.GroupMember) bool { return m.Name == n.Name }); i >= 0 {
		e.last = &r.Last[i]
	}
	switch {
	case n.OutOfService:
		return
	case !n.Selected && (e.last == nil || !n.Annotated || r.Ended(n.Name)):
		return
	case !n.Selected:
		e.member, e.severity = e.last, objects.Warning
		e.problem = "its labels do not match group.nodes any more; it is removed from the group when its gateway has " +
			"ended, as seen from this one; if it has, and will not return with its memory, remove its annotation " +
			objects.AnnotationGroupSources
	case !n.Annotated:
		e.refuse(field, "is missing: write two source addresses of each family, for example "+
			"198.51.100.1,198.51.100.2")
	default:
		r.read(e)
	}
	r.entries = append(r.entries, e)
}

// read sets the entry that a Node asks for.
func (r *roster) read(e *entry) {
	m := config.GroupMember{Name: e.node.Name}
	for _, text := range strings.FieldsFunc(e.node.Sources, func(c rune) bool { return c == ',' || c == ' ' }) {
		a, err := netip.ParseAddr(text)
		if err != nil {
			e.refuse(field, "has %q, which is no address: write two source addresses of each family, for example "+
				"198.51.100.1,198.51.100.2", objects.Clip(text))
			return
		}
		m.Sources = append(m.Sources, a)
	}
	at, found := internalIP(e.node.Addresses)
	if !found {
		e.refuse("status.addresses", "has no InternalIP, at which other gateways reach this one")
		return
	}
	m.Address = netip.AddrPortFrom(at, r.Port)
	if err := r.Check(&m); err != nil {
		e.refuse(field, "%v", err)
		return
	}
	if r.Running && e.last != nil && !Same(e.last, &m) {
		e.refuse(field, "and the Node's InternalIP say %s at %s, which is in force when this gateway restarts or "+
			"hands over", addressList(m.Sources), m.Address)
		e.severity = objects.Warning
		return
	}
	e.member = &m
}

// internalIP returns the address of a Node: IPv4 if it has one, so that all Nodes of a cluster with
// both families have the same.
func internalIP(list []netip.Addr) (a netip.Addr, found bool) {
	if i := slices.IndexFunc(list, netip.Addr.Is4); i >= 0 {
		return list[i], true
	}
	if len(list) == 0 {
		return a, false
	}
	return list[0], true
}

// agree refuses entries with other families than the list in force, unless all have changed to the
// same ones: each gateway must be able to go on with the flows of every other one. It reports
// whether it has.
func (r *roster) agree() (again bool) {
	var entries []*entry
	for _, e := range r.entries {
		if e.member != nil {
			entries = append(entries, e)
		}
	}
	if len(entries) == 0 {
		return false
	}
	differs := func(e *entry, from *config.GroupMember) bool {
		return e.member.Families() != from.Families() || e.member.Address.Addr().Is4() != from.Address.Addr().Is4()
	}
	if !slices.ContainsFunc(entries, func(e *entry) bool { return differs(e, entries[0].member) }) {
		return false
	}
	of := entries[0].member
	if len(r.Last) > 0 {
		of = &r.Last[0]
	}
	for _, e := range entries {
		if e.changes() && differs(e, of) {
			again = true
			e.refuse(field, "has source addresses of %s, and %s is reached by %s: all members have the families of %s "+
				"(%s, reached by %s)", familyText(e.member), e.node.Name, e.member.Address, of.Name, familyText(of),
				of.Address)
		}
	}
	return again
}

func familyText(m *config.GroupMember) string {
	if f := m.Families(); f != "both" {
		return f
	}
	return "IPv4 and IPv6"
}

// separate refuses changed entries, and the doubted one, with an address that another entry has,
// too. It reports whether it has: then other entries may conflict with one that stays as it was.
func (r *roster) separate() (again bool) {
	users := map[netip.Addr][]*entry{}
	for _, e := range r.entries {
		for _, a := range e.addresses() {
			users[a] = append(users[a], e)
		}
	}
	for _, e := range r.entries {
		doubted := e.member != nil && e.node.Name == r.Doubted
		if !e.changes() && !doubted {
			continue
		}
		if name := r.conflict(e.member); name != "" {
			e.refuse(field, "has an address of Node %s, which was removed from the group, and connections that it had "+
				"are still open: choose other addresses, or wait for their end", name)
			again = true
			continue
		}
		if a, name := r.former(e.member); name != "" {
			e.refuse(field, "has %s, which Node %s had before, and connections from it are still open: choose other "+
				"addresses, or wait for their end", a, name)
			again = true
			continue
		}
		for _, a := range e.addresses() {
			if i := slices.IndexFunc(users[a], func(o *entry) bool { return o != e }); i >= 0 {
				e.refuse(field, "has %s, which Node %s has, too: choose addresses that nothing else has", a,
					users[a][i].node.Name)
				if doubted {
					e.member = nil
				}
				again = true
				break
			}
		}
	}
	return again
}

// leaving returns the members in force that the new list does not have. This gateway may have their
// flows, like the flows of gateways that were removed before.
func (r *roster) leaving() (list []config.GroupMember) {
	for i := range r.Last {
		if !r.has(r.Last[i].Name) {
			list = append(list, r.Last[i])
		}
	}
	return list
}

func (r *roster) has(name string) bool {
	return slices.ContainsFunc(r.entries, func(e *entry) bool { return e.node.Name == name })
}

// conflict returns the name of a removed gateway that conflicts with a new entry: they share an
// address, or the name with other addresses.
func (r *roster) conflict(m *config.GroupMember) string {
	for i := range r.Removed {
		o := &r.Removed[i]
		returns := o.Name == m.Name && slices.Equal(o.Sources, m.Sources)
		if !returns && (o.Name == m.Name || slices.ContainsFunc(m.Sources, func(a netip.Addr) bool {
			return slices.Contains(o.Sources, a)
		})) {
			return o.Name
		}
	}
	return ""
}

// former returns an address of a new entry that another gateway had before, and that gateway's
// name.
func (r *roster) former(m *config.GroupMember) (a netip.Addr, name string) {
	for _, f := range r.Former {
		i := slices.IndexFunc(f.Sources, func(a netip.Addr) bool { return slices.Contains(m.Sources, a) })
		if i >= 0 && f.Name != m.Name {
			return f.Sources[i], f.Name
		}
	}
	return a, ""
}

// addresses returns the source addresses and the address of the listener.
func (e *entry) addresses() []netip.Addr {
	if e.member == nil {
		return nil
	}
	return append(slices.Clone(e.member.Sources), e.member.Address.Addr())
}

// limit refuses new members that a group has no room for. There is room for one more than the
// members, which a removed gateway may have; more of these take the room of new members.
func (r *roster) limit() {
	room, removed := config.MaxGroupMembers, 0
	for i := range r.Removed {
		if name := r.Removed[i].Name; !slices.ContainsFunc(r.entries, func(e *entry) bool {
			return e.member != nil && e.node.Name == name
		}) {
			removed++
		}
	}
	room -= max(removed-1, 0)
	for _, e := range r.entries {
		if e.member != nil && e.last != nil {
			room--
		}
	}
	for _, e := range r.entries {
		if e.member == nil || e.last != nil {
			continue
		}
		switch room--; {
		case room < 0 && removed > 1:
			e.refuse("", "is one gateway more than the %d that a group has, with removed ones whose connections are "+
				"still open: wait for their end", config.MaxGroupMembers+1)
		case room < 0:
			e.refuse("", "is one gateway more than the %d that a group has", config.MaxGroupMembers)
		}
	}
}
