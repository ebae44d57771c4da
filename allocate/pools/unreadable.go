package pools

import "net/netip"

// If a pool cannot be read and this process never read it before, its ranges are unknown: it may
// contain any address. Services must keep addresses from it. So while there is such a pool, a
// Service keeps an address in its status that no other pool contains, and also its present address
// while it asks for one that only this pool may have. No address is given from the pool.

// Remains returns the readable part of an invalid specification: its valid ranges.
func Remains(name string, s Spec) *Pool {
	p := &Pool{Name: name, avoidBuggyIPs: s.AvoidBuggyIPs}
	for _, text := range s.Addresses {
		if r, err := parseRange(text); err == nil {
			p.ranges = append(p.ranges, r)
		}
	}
	return p
}

// Unlisted stands for all pools of a namespace that cannot be listed; their names are unknown.
func Unlisted(namespace string) *Pool { return &Pool{Name: namespace + "/*", anyName: true} }

// unreadableNamed returns an unreadable pool that may have a name; nil if there is none.
func (a *Allocator) unreadableNamed(name string) *Pool {
	var other *Pool
	for _, p := range a.unreadable {
		switch {
		case p.Name == name:
			return p
		case p.anyName:
			other = p
		}
	}
	return other
}

// presumed returns an unreadable pool that may contain the addresses, if no readable pool contains
// all of them; otherwise nil. If asked is not empty, the pool must have that name.
func (a *Allocator) presumed(asked string, addresses []netip.Addr) *Pool {
	if a.poolWith(addresses, "") != nil {
		return nil
	}
	var other *Pool
	for _, p := range a.unreadable {
		switch {
		case asked != "" && asked != p.Name && !p.anyName:
		case p.containsAll(addresses):
			return p
		case other == nil:
			other = p
		}
	}
	return other
}

// presumes reports whether a Service has its addresses only because a pool cannot be read.
func (a *Allocator) presumes(key string) bool {
	c := a.claims[key]
	return c != nil && c.presumed
}

// keepsPresumed reports whether a Service keeps such addresses: it asks for no others, and its
// families and sharing still fit.
func (a *Allocator) keepsPresumed(r *Request) bool {
	if !a.presumes(r.Key) {
		return false
	}
	has := a.claims[r.Key].addresses
	v4, v6 := families(has)
	if v4 && !r.V4 || v6 && !r.V6 || len(r.Addresses) > 0 && !sameAddresses(has, r.Addresses) {
		return false
	}
	return a.assign(r, has, true) == nil && a.presumes(r.Key)
}

// unmoved lets a Service keep its addresses if its request was refused because a pool cannot be
// read. It returns nil if there is another reason, or if the Service has no address it may keep.
func (a *Allocator) unmoved(r *Request, has []netip.Addr, refusal *Refusal) *Result {
	switch {
	case refusal.Reason == PoolInvalid:
	case refusal.Reason == OutsidePools && a.presumed(r.Pool, r.Addresses) != nil:
	default:
		return nil
	}
	same := *r
	same.Addresses, same.Pool = nil, ""
	if len(has) == 0 || a.adopt(&same, has) != nil {
		a.Release(r.Key)
		return nil
	}
	return a.kept(r, refusal)
}

// kept is the result for a Service that keeps its claim, with a note if the reason is a pool that
// cannot be read.
func (a *Allocator) kept(r *Request, notes ...*Refusal) *Result {
	c := a.claims[r.Key]
	result := &Result{Addresses: c.addresses, Pool: c.pool, Notes: notes, Lacks: r.dual() && len(c.addresses) < 2}
	if c.presumed {
		result.Pool = "" // not known
		result.Notes = append(result.Notes, refuse(PoolInvalid, "%s: no pool that can be read has it, and it stays "+
			"until %s can be read", Join(c.addresses), poolNames([][]*Pool{a.unreadable})))
	}
	return result
}

// unreadableToo is appended to messages whose cause may be an unreadable pool.
func (a *Allocator) unreadableToo() string {
	if len(a.unreadable) == 0 {
		return ""
	}
	return "; " + poolNames([][]*Pool{a.unreadable}) + " cannot be read"
}
