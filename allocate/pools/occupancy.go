package pools

import (
	"maps"
	"net/netip"
	"slices"
)

// occupancy knows which addresses are claimed, and finds those that a Service can have. Neither a
// change nor a search takes longer the more addresses a pool or claims there are, but for the
// probes of addresses that others share.
type occupancy struct {
	at map[netip.Addr]*spot
	// taken4 and taken6 have the addresses of at. Those of avoiding are for pools that avoid buggy
	// IPv4 addresses.
	taken4, avoiding, taken6 *taken
	groups                   map[string][]netip.Addr // of Services, by sharing key; in order
	excepts                  map[string][]*claim     // of Occupy, by the Service that may have them
}

// spot is an address that is claimed.
type spot struct {
	claims []*claim        // in the order in which they came
	ports  map[Port]*claim // where there are several claims
}

// same reports whether two claims keep the same from others.
func (c *claim) same(d *claim) bool {
	return c.taken == d.taken && c.exceptKey == d.exceptKey && slices.Equal(c.addresses, d.addresses) &&
		c.sharing.equals(&d.sharing) && maps.Equal(c.ports, d.ports)
}

// given returns the first claim that is a Service's; nil if there is none.
func (s *spot) given() *claim {
	for _, c := range s.claims {
		if !c.taken {
			return c
		}
	}
	return nil
}

// withPort returns the claim that has a port; nil if there is none but the one of a key.
func (s *spot) withPort(p Port, key string) *claim {
	if s.ports != nil {
		if c := s.ports[p]; c != nil && c.key != key {
			return c
		}
		return nil
	}
	for _, c := range s.claims {
		if c.key != key && c.ports[p] {
			return c
		}
	}
	return nil
}

// conflict returns a claim that keeps an address from a Service, nil if none does, and the port if
// that is the reason. Nobody claims a nil spot.
func (s *spot) conflict(r *Request, adopt bool) (*claim, Port) {
	if s == nil {
		return nil, Port{}
	}
	for _, c := range s.claims {
		switch {
		case c.key == r.Key:
		case c.taken && (adopt || c.exceptKey == r.Key):
		case c.taken:
			return c, Port{}
		default:
			if reason, _ := r.Sharing.with(&c.sharing); reason != "" {
				return c, Port{}
			}
		}
	}
	for _, p := range r.Ports {
		if c := s.withPort(p, r.Key); c != nil {
			return c, p
		}
	}
	return nil, Port{}
}

func (s *spot) add(c *claim) {
	s.claims = append(s.claims, c)
	if len(s.claims) < 2 {
		return
	}
	of := []*claim{c}
	if s.ports == nil {
		s.ports, of = map[Port]*claim{}, s.claims
	}
	for _, c := range of {
		for p := range c.ports {
			s.ports[p] = c
		}
	}
}

func (s *spot) remove(c *claim) {
	if i := slices.Index(s.claims, c); i >= 0 {
		s.claims = slices.Delete(s.claims, i, i+1)
	}
	for p := range c.ports {
		if s.ports[p] == c {
			delete(s.ports, p)
		}
	}
}

func (o *occupancy) enter(c *claim) {
	if o.at == nil {
		o.at, o.groups, o.excepts = map[netip.Addr]*spot{}, map[string][]netip.Addr{}, map[string][]*claim{}
		o.taken4, o.avoiding, o.taken6 = &taken{}, &taken{avoid: true}, &taken{}
	}
	if c.exceptKey != "" {
		o.excepts[c.exceptKey] = append(o.excepts[c.exceptKey], c)
	}
	for _, address := range c.addresses {
		at := o.at[address]
		if at == nil {
			at = &spot{}
			o.at[address] = at
			for _, t := range o.sets(address) {
				t.add(address)
			}
		}
		at.add(c)
		if key := c.sharing.Key; key != "" {
			group := o.groups[key]
			if i, there := slices.BinarySearchFunc(group, address, netip.Addr.Compare); !there {
				o.groups[key] = slices.Insert(group, i, address)
			}
		}
	}
}

func (o *occupancy) leave(c *claim) {
	if c.exceptKey != "" {
		rest := slices.DeleteFunc(o.excepts[c.exceptKey], func(other *claim) bool { return other == c })
		if o.excepts[c.exceptKey] = rest; len(rest) == 0 {
			delete(o.excepts, c.exceptKey)
		}
	}
	for _, address := range c.addresses {
		at := o.at[address]
		at.remove(c)
		if c.sharing.Key != "" && !at.shares(c.sharing.Key) {
			o.leaveGroup(c.sharing.Key, address)
		}
		if len(at.claims) > 0 {
			continue
		}
		delete(o.at, address)
		for _, t := range o.sets(address) {
			t.remove(address)
		}
	}
}

// shares reports whether a claim has a sharing key. All of an address have the same, but for those
// of Occupy.
func (s *spot) shares(key string) bool {
	c := s.given()
	return c != nil && c.sharing.Key == key
}

func (o *occupancy) leaveGroup(key string, address netip.Addr) {
	group := o.groups[key]
	if i, there := slices.BinarySearchFunc(group, address, netip.Addr.Compare); there {
		group = slices.Delete(group, i, i+1)
	}
	if o.groups[key] = group; len(group) == 0 {
		delete(o.groups, key)
	}
}

// sets returns the sets that an address belongs to.
func (o *occupancy) sets(a netip.Addr) []*taken {
	if a.Is4() {
		return []*taken{o.taken4, o.avoiding}
	}
	return []*taken{o.taken6}
}

// unclaimed returns the first address from..to of a pool that nobody claims.
func (o *occupancy) unclaimed(p *Pool, from, to netip.Addr) (netip.Addr, bool) {
	set := &taken{avoid: p.avoidBuggyIPs && from.Is4()}
	switch {
	case o.at == nil:
	case set.avoid:
		set = o.avoiding
	case from.Is4():
		set = o.taken4
	default:
		set = o.taken6
	}
	return set.first(from, to)
}
