package pools

import (
	"net/netip"
	"slices"

	"go4.org/netipx"
)

// maxProbes bounds how many addresses with the sharing key of a Service one decision tries. If a
// key has more addresses than that and none of the tried ones has room, no shared address is found.
const maxProbes = 256

// first returns the first address of each family that a Service can have from a pool, or nil. It
// leaves out families that the Service does not need. A Service with a sharing key of
// lbipam.cilium.io gets a shared address rather than an unclaimed one.
func (a *Allocator) first(r *Request, p *Pool) (v4, v6 []netip.Addr) {
	if r.Sharing.Cilium && r.Sharing.Key != "" {
		v4, v6 = a.firstBy(r, p, v4, v6, a.shared)
	}
	return a.firstBy(r, p, v4, v6, a.firstIn)
}

type search func(r *Request, p *Pool, i netipx.IPRange) (netip.Addr, bool)

// firstBy searches each range for the families that are still nil.
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

// firstIn returns the first address of a range that a Service can have: an unclaimed one, a shared
// one, or one reserved for it.
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

// shared returns the first claimed address of a range that a Service can share.
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

// ofGroup returns the first pool with shared addresses of all families that a Service needs, if the
// Service has a sharing key of lbipam.cilium.io: it joins the addresses of its group.
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
