package pools

import (
	"net/netip"
	"slices"

	"go4.org/netipx"
)

// maxProbes bounds for one decision how many addresses are looked at that Services with the same
// sharing key have. A key of more addresses than that, none of which has room, is treated as one of
// none.
const maxProbes = 256

// first returns the first address of each family that a Service can have from a pool, and nil where
// there is none. Families that it does not need are left out. Services with a sharing key of
// lbipam.cilium.io get one that they share before one that nobody has.
func (a *Allocator) first(r *Request, p *Pool) (v4, v6 []netip.Addr) {
	if r.Sharing.Cilium && r.Sharing.Key != "" {
		v4, v6 = a.firstBy(r, p, v4, v6, a.shared)
	}
	return a.firstBy(r, p, v4, v6, a.firstIn)
}

type search func(r *Request, p *Pool, i netipx.IPRange) (netip.Addr, bool)

// firstBy fills in what is nil by a search in each range.
func (a *Allocator) firstBy(r *Request, p *Pool, v4, v6 []netip.Addr, find search) (_, _ []netip.Addr) {
	for _, i := range p.ranges {
		to := &v4
		if i.From().Is6() {
			to = &v6
		}
		if *to != nil || i.From().Is4() && !r.V4 || i.From().Is6() && !r.V6 {
			continue
		}
		if address, there := find(r, p, i); there {
			*to = []netip.Addr{address}
		}
	}
	return v4, v6
}

// firstIn returns the first address of a range that a Service can have: one that nobody has, or one
// that it may share, or one that is kept for it.
func (a *Allocator) firstIn(r *Request, p *Pool, i netipx.IPRange) (netip.Addr, bool) {
	best, there := a.unclaimed(p, i.From(), i.To())
	consider := func(address netip.Addr) {
		if !there || address.Less(best) {
			best, there = address, true
		}
	}
	for _, c := range a.excepts[r.Key] {
		for _, address := range c.addresses {
			if i.Contains(address) && !(p.avoidBuggyIPs && buggy(address)) && a.free(r, address, false) == nil {
				consider(address)
			}
		}
	}
	if address, shares := a.shared(r, p, i); shares {
		consider(address)
	}
	return best, there
}

// shared returns the first address of a range that others have and that a Service can share.
func (a *Allocator) shared(r *Request, p *Pool, in netipx.IPRange) (netip.Addr, bool) {
	if r.Sharing.Key == "" {
		return netip.Addr{}, false
	}
	group := a.groups[r.Sharing.Key]
	i, _ := slices.BinarySearchFunc(group, in.From(), netip.Addr.Compare)
	for ; i < len(group) && !in.To().Less(group[i]) && r.probes < maxProbes; i++ {
		r.probes++
		if p.avoidBuggyIPs && buggy(group[i]) {
			continue
		}
		if c, _ := a.at[group[i]].conflict(r, false); c == nil {
			return group[i], true
		}
	}
	return netip.Addr{}, false
}

// ofGroup returns the pools that have addresses of all families that a Service needs, and which it
// can share by a key of lbipam.cilium.io: it joins its group where that is.
func (a *Allocator) ofGroup(r *Request, tiers [][]*Pool) (list []*Pool) {
	if !r.Sharing.Cilium || len(a.groups[r.Sharing.Key]) == 0 {
		return nil
	}
	for _, tier := range tiers {
		for _, p := range tier {
			v4, v6 := a.firstBy(r, p, nil, nil, a.shared)
			if (v4 != nil || !r.V4) && (v6 != nil || !r.V6) {
				return []*Pool{p}
			}
		}
	}
	return nil
}
