package pools

import "net/netip"

// A pool that is there and cannot be read, and whose specification of before is not known, may have
// any address: whoever started after the mistake was made knows no better. What Services have from
// it must stay. So, while there is such a pool, a Service keeps what its status lists and no other
// pool has, and also what it has while it asks for something that this pool alone may have. Nothing
// is given from it.

// Remains returns what can be read of a specification with mistakes: the ranges that are none.
func Remains(name string, s Spec) *Pool {
	p := &Pool{Name: name, avoidBuggyIPs: s.AvoidBuggyIPs}
	for _, text := range s.Addresses {
		if r, err := parseRange(text); err == nil {
			p.ranges = append(p.ranges, r)
		}
	}
	return p
}

// Unlisted stands for the pools of a namespace that cannot be listed: not even their names are
// known.
func Unlisted(namespace string) *Pool { return &Pool{Name: namespace + "/*", anyName: true} }

// unreadableNamed returns a pool that cannot be read and may have a name; nil if there is none.
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

// presumed returns a pool that cannot be read and may have addresses that no other pool has all of;
// nil if there is none. Unless asked is empty, it is the one that is asked for.
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

// presumes reports whether a Service has its addresses because a pool cannot be read.
func (a *Allocator) presumes(key string) bool {
	c := a.claims[key]
	return c != nil && c.presumed
}

// keepsPresumed reports whether a Service that has addresses for that reason keeps them: it asks
// for no others, and its families and sharing still fit.
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

// unmoved keeps what a Service has where what it asks for was refused because a pool cannot be
// read. It returns nil if that is not the reason, or if it has nothing that it may keep.
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

// kept is the result for a Service that keeps its claim, with a note if it does so because a pool
// cannot be read.
func (a *Allocator) kept(r *Request, notes ...*Refusal) *Result {
	c := a.claims[r.Key]
	result := &Result{Addresses: c.addresses, Pool: c.pool, Notes: notes, Lacks: r.dual() && len(c.addresses) < 2}
	if c.presumed {
		result.Pool = "" // who knows
		result.Notes = append(result.Notes, refuse(PoolInvalid, "%s: no pool that can be read has it, and it stays "+
			"until %s can be read", join(c.addresses), poolNames([][]*Pool{a.unreadable})))
	}
	return result
}

// unreadableToo is what to add to a refusal that a pool may be the reason of.
func (a *Allocator) unreadableToo() string {
	if len(a.unreadable) == 0 {
		return ""
	}
	return "; " + poolNames([][]*Pool{a.unreadable}) + " cannot be read"
}
