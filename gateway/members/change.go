package members

import (
	"slices"
	"time"

	"sluice.dev/sluice/config"
)

// Set changes the members of the group to this gateway and the gateways in list, without an
// interruption for the others: new gateways join, and missing ones are removed for good. The
// entries of gateways that stay must not change. If no number is free for a new gateway, because
// there are copies of flows of removed gateways, it joins by a later call. Run must have begun.
// Packets to the source addresses of new gateways must reach the workers.
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
			m.updateOrder()
			m.transport.SetPeers(m.others.peers())
			m.watch.next = 0
			m.updateView()
		}
	})
}

// is reports whether an entry belongs to the gateway.
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
	m.watch.of[i] = watched{hasFlows: m.watch.of[i].hasFlows} // its copies may have stayed (Flows.Return)
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

// endedAfter is how long after ErrLeft a gateway counts as ended if it has opened no stream since.
// After a restart the next process opens its streams earlier.
const endedAfter = 30 * time.Second

// Ended reports whether the process of a gateway has stopped and left no flows, and no other
// process of the gateway has opened streams since.
func (m *Members) Ended(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	i, found := m.others.find(name)
	return found && m.others[i].left != 0 && now()-m.others[i].left > int64(endedAfter)
}
