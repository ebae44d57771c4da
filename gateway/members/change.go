package members

import (
	"slices"
	"time"

	"sluice.dev/sluice/config"
)

// Set makes a list, with this gateway, the members of the group, without an interruption for the
// others: gateways that it has in addition join, and those that it lacks are removed for good.
// Entries of other gateways must be as they were. A gateway that has no number yet, because removed
// ones have copies here, joins by a later call. Run must have begun. Packets to the source
// addresses of new gateways must reach the workers.
func (m *Members) Set(list []config.GroupMember) {
	m.exchange.Do(func() {
		changed := false
		for i, o := range m.others {
			if o != nil && !o.removed && !slices.ContainsFunc(list, o.is) {
				m.remove(i)
				changed = true
			}
		}
		for i := range list {
			if list[i].Name != m.self.Name {
				changed = m.join(&list[i]) || changed
			}
		}
		if changed {
			m.order()
			m.transport.SetPeers(m.others.peers())
			m.watch.next = 0
			m.look()
		}
	})
}

// is reports whether an entry is the gateway's.
func (o *other) is(m config.GroupMember) bool { return o.Name == m.Name }

// remove removes a gateway for good. The exchange's goroutine calls it.
func (m *Members) remove(i int) {
	m.exchange.Remove(i)
	m.flows.Remove(i)
	o := m.others[i]
	m.mu.Lock()
	o.removed = true
	m.mu.Unlock()
	m.c.Log.Info("a gateway was removed from the group", "gateway", o.Name, "copies", m.c.Table.CopiesOf(i+1))
}

// join makes a gateway a member, unless it is one. The exchange's goroutine calls it.
func (m *Members) join(g *config.GroupMember) bool {
	i, found := m.others.find(g.Name)
	switch {
	case found && !m.others[i].removed:
		return false
	case found: // it has copies here
		m.flows.Return(i)
	default:
		if i = slices.Index(m.others[:], nil); i < 0 {
			return false
		}
	}
	o := &other{GroupMember: *g}
	if !found {
		m.flows.Add(i, m.replicated(o))
	}
	m.watch.of[i] = watched{whole: m.watch.of[i].whole} // as Add and Return, and its copies may stay
	m.mu.Lock()
	m.others[i] = o
	m.mu.Unlock()
	m.exchange.Add(i, m.peerOf(i, o))
	m.c.Log.Info("a gateway joins the group", "gateway", o.Name, "address", o.Address, "sources", o.Sources)
	return true
}

// free frees the numbers of removed gateways whose last copy has ended.
func (m *Members) free() {
	if m.unread {
		return
	}
	for i, o := range m.others {
		if o != nil && o.removed && m.flows.Free(i) {
			m.mu.Lock()
			m.others[i] = nil
			m.mu.Unlock()
			m.watch.of[i] = watched{}
		}
	}
}

// endedAfter is how long a gateway must be silent after ErrLeft before it counts as ended. After a
// restart the next process opens its streams earlier.
const endedAfter = 30 * time.Second

// Ended reports whether a gateway has ended its streams because its process stops and leaves no
// flows, and no other process has opened them since.
func (m *Members) Ended(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	i, found := m.others.find(name)
	return found && m.others[i].left != 0 && now()-m.others[i].left > int64(endedAfter)
}
