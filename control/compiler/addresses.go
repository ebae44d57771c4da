package compiler

import (
	"slices"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/steer"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// addresses are the addresses that the gateway uses itself, and the addresses of endpoints.
type addresses struct {
	units *units
	own   map[header.Addr]ownership
	uses  relation[header.Addr] // the units with endpoints at an address
	// before has the former flags of the addresses that the running compile changed.
	before map[header.Addr]services.AddrFlags
}

func newAddresses(us *units) addresses {
	return addresses{units: us, own: map[header.Addr]ownership{}, uses: newRelation[header.Addr]()}
}

// ownership has the gateway's uses of an address.
type ownership struct {
	vips  int32              // services that have it as a VIP
	flags services.AddrFlags // AddrNode, AddrSNAT and AddrLocal
}

func (o ownership) all() services.AddrFlags {
	if o.vips > 0 {
		return o.flags | services.AddrVIP
	}
	return o.flags
}

// setVIP counts services that have an address as a VIP.
func (as *addresses) setVIP(a header.Addr, by int32) {
	o := as.own[a]
	o.vips += by
	as.setOwn(a, o)
}

func (as *addresses) setFlags(a header.Addr, flags services.AddrFlags) {
	o := as.own[a]
	o.flags = flags
	as.setOwn(a, o)
}

func (as *addresses) setOwn(a header.Addr, o ownership) {
	if _, noted := as.before[a]; !noted {
		as.before[a] = as.own[a].all()
	}
	if o == (ownership{}) {
		delete(as.own, a)
		return
	}
	as.own[a] = o
}

// apply puts the addresses that changed into the snapshot.
func (as *addresses) apply(d *draft, change *steer.Change) {
	for a, before := range as.before {
		now := as.own[a].all()
		if now == before {
			continue
		}
		if now|services.AddrVIP != before|services.AddrVIP {
			as.uses.each(a, as.units.reread) // for VIPs contest.markUnits does
		}
		d.builder.SetAddr(a, now)
		d.changed = true
		if gained := now &^ before; gained != 0 {
			change.Open.Addrs = append(change.Open.Addrs, steer.OwnAddr{Addr: a, Flags: gained})
		}
		if lost := before &^ now; lost != 0 {
			change.Close.Addrs = append(change.Close.Addrs, steer.OwnAddr{Addr: a, Flags: lost})
		}
	}
}

// setUses records the addresses of a unit's endpoints, so that the unit is built again when the
// gateway begins or ceases to use one of these addresses itself. If there are at least keepFrom
// addresses, their memory is kept for the next call.
func (as *addresses) setUses(u *unit, keepFrom int) {
	now := u.slices
	if u.fits == 0 {
		now = nil
	}
	var gone, added []header.Addr
	list := func(to *[]header.Addr) func(*objects.Slice) {
		return func(s *objects.Slice) {
			for i := range s.Endpoints {
				*to = append(*to, s.Endpoints[i].Addr)
			}
		}
	}
	diff(u.usedBy, now, func(s *objects.Slice) *objects.Slice { return s }, list(&gone), list(&added))
	if len(gone) == 0 && len(added) == 0 {
		u.usedBy = slices.Clone(now)
		return
	}
	slices.SortFunc(gone, objects.CompareAddrs)
	slices.SortFunc(added, objects.CompareAddrs)
	before := u.uses
	after, ok := patch(u.usesSpare, before, gone, added, objects.CompareAddrs)
	if !ok {
		panic("compiler: the addresses of a unit differ from its slices")
	}
	for _, a := range slices.Compact(gone) {
		if _, stays := slices.BinarySearchFunc(after, a, objects.CompareAddrs); !stays {
			as.uses.remove(a, u.num)
		}
	}
	for _, a := range slices.Compact(added) {
		if _, was := slices.BinarySearchFunc(before, a, objects.CompareAddrs); !was {
			as.uses.add(a, u.num)
		}
	}
	u.uses, u.usesSpare, u.usedBy = after, nil, slices.Clone(now)
	if len(before) >= keepFrom {
		u.usesSpare = before
	}
}
