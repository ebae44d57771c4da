package model

import (
	"fmt"

	"sluice.dev/sluice/gateway/group"
)

// add appends a state after two consequences of the event: closed addresses are used again when
// they may be, and flows that exist while all members are in step are protected.
func (m *portModel) add(to *steps[portState], t portState, text string, args ...uint8) {
	m.useAddresses(&t)
	if m.settled(&t) {
		for port := range t.backend {
			c := &t.backend[port]
			if k := t.owner.slotOf(port); c.client != 0 && k >= 0 && t.owner.slots[k].left {
				c.standing, c.failures = protected, 0
			}
		}
	}
	to.add(t, text, args...)
}

// settled reports whether the owner is complete, all members are in step, and no message is due or
// under way.
func (m *portModel) settled(s *portState) bool {
	if !s.owner.alive || !s.owner.complete {
		return false
	}
	for i := range m.members {
		p := &s.members[i]
		if !p.alive || !p.stream || p.view != inStep || !p.said || p.length != 0 {
			return false
		}
		for k := range m.slots {
			if p.told[k] != s.owner.slots[k].record {
				return false
			}
		}
	}
	return true
}

// violation checks the invariants:
//
//  1. No living gateway has a record of another client than the backend's connection at that port.
//  2. A protected connection, after one failure at most: a living gateway has its record, and none
//     answers its segments with RST.
//  3. When all members are in step and nothing is under way, no port is held, and an address is
//     open.
func (m *portModel) violation(s *portState) string {
	for port := range m.portCount() {
		c := &s.backend[port]
		if c.client == 0 {
			continue
		}
		if text := m.misdelivers(s, port, c.client); text != "" {
			return text
		}
		if c.standing != protected || c.failures > 1 {
			continue
		}
		if text := m.loses(s, port, c.client); text != "" {
			return text
		}
	}
	if !m.settled(s) {
		return ""
	}
	for port := range m.portCount() {
		if s.owner.held[port].by != 0 {
			return fmt.Sprintf("HELD FOR EVER: all members are in step, and port %d is held", port)
		}
	}
	for _, a := range s.owner.addresses {
		if a == group.Open {
			return ""
		}
	}
	return "NO ADDRESS: all members are in step, and no address is open"
}

// misdelivers checks invariant 1 for a port.
func (m *portModel) misdelivers(s *portState, port int, client uint8) string {
	const text = "MISDELIVERED: the backend's connection at port %d is client %d's, %s has a record of client %d"
	if k := s.owner.slotOf(port); s.owner.alive && k >= 0 && s.owner.slots[k].client != client {
		return fmt.Sprintf(text, port, client, "the owner", s.owner.slots[k].client)
	}
	for i := range m.members {
		if c := s.members[i].copies[port].client; s.members[i].alive && c != 0 && c != client {
			return fmt.Sprintf(text, port, client, fmt.Sprintf("member %d", i), c)
		}
	}
	return ""
}

// loses checks invariant 2 for a protected connection.
func (m *portModel) loses(s *portState, port int, client uint8) string {
	k := s.owner.slotOf(port)
	owned := k >= 0 && s.owner.slots[k].client == client
	if s.owner.alive && s.owner.complete && !owned {
		return fmt.Sprintf("LOST: the owner answers client %d at port %d with RST", client, port)
	}
	has := s.owner.alive && owned
	for i := range m.members {
		p := &s.members[i]
		switch {
		case !p.alive:
		case p.copies[port].client == client:
			has = true
		case p.leased && p.resets:
			return fmt.Sprintf("LOST: member %d answers client %d at port %d with RST", i, client, port)
		}
	}
	if !has {
		return fmt.Sprintf("LOST: no living gateway has a record of client %d at port %d", client, port)
	}
	return ""
}
