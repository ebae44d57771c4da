package pools

import (
	"maps"
	"net/netip"
	"slices"
)

// occupancy knows which addresses are claimed, and finds addresses that a Service can have. The
// time of a change or search does not depend on the number of addresses or claims, except that a
// search probes shared addresses (maxProbes).
type occupancy struct {
	at map[netip.Addr]*spot
	// claimed4 and claimed6 have the keys of at, by family. avoiding is claimed4 for pools that
	// avoid buggy IPv4 addresses.
	claimed4, avoiding, claimed6 *addressSet
	groups                       map[string][]netip.Addr // addresses of Services by sharing key, in order
	excepts                      map[string][]*claim     // reservations by the Service that may have them
}

// spot is an address with claims.
type spot struct {
	claims []*claim        // oldest first
	ports  map[Port]*claim // kept only if there are several claims
}

// same reports whether two claims exclude the same addresses and ports for other Services.
func (c *claim) same(d *claim) bool {
	return c.reserved == d.reserved && c.allowedKey == d.allowedKey && slices.Equal(c.addresses, d.addresses) &&
		c.sharing.equals(&d.sharing) && maps.Equal(c.ports, d.ports)
}

// given returns the first claim of a Service; nil if there is none.
func (s *spot) given() *claim {
	for _, c := range s.claims {
		if !c.reserved {
			return c
		}
	}
	return nil
}

// withPort returns the claim that has a port, other than the one with key; nil if there is none.
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

// conflict returns a claim that prevents a Service from having an address, or nil, and the port if
// both use the same one. A nil spot has no claims.
func (s *spot) conflict(r *Request, adopt bool) (*claim, Port) {
	if s == nil {
		return nil, Port{}
	}
	for _, c := range s.claims {
		switch {
		case c.key == r.Key:
		case c.reserved && (adopt || c.allowedKey == r.Key):
		case c.reserved:
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
		o.claimed4, o.avoiding, o.claimed6 = &addressSet{}, &addressSet{avoid: true}, &addressSet{}
	}
	if c.allowedKey != "" {
		o.excepts[c.allowedKey] = append(o.excepts[c.allowedKey], c)
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
	if c.allowedKey != "" {
		rest := slices.DeleteFunc(o.excepts[c.allowedKey], func(other *claim) bool { return other == c })
		if o.excepts[c.allowedKey] = rest; len(rest) == 0 {
			delete(o.excepts, c.allowedKey)
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

// shares reports whether a claim has a sharing key. All Services at an address have the same key.
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

// sets returns the sets that track an address.
func (o *occupancy) sets(a netip.Addr) []*addressSet {
	if a.Is4() {
		return []*addressSet{o.claimed4, o.avoiding}
	}
	return []*addressSet{o.claimed6}
}

// unclaimed returns the first address of a pool in from..to that has no claim.
func (o *occupancy) unclaimed(p *Pool, from, to netip.Addr) (netip.Addr, bool) {
	set := &addressSet{avoid: p.avoidBuggyIPs && from.Is4()}
	switch {
	case o.at == nil:
	case set.avoid:
		set = o.avoiding
	case from.Is4():
		set = o.claimed4
	default:
		set = o.claimed6
	}
	return set.first(from, to)
}
