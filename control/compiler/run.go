package compiler

import (
	"maps"
	"slices"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/steer"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// run is one compile. It goes through the phases
//
//	note     what changed: units become dirty, claims and addresses move
//	drop     frontends that dirty units lose, so that others can take them
//	build    dirty units: backends, sets, frontends, problems
//	finish   the snapshot, and what the kernel program must open and close
type run struct {
	*Compiler
	builder    *services.Builder
	changed    bool // the snapshot differs
	generation uint64
	inlined    int  // slots of the unit that is built
	reported   bool // problems differ
	dirty      map[*unit]bool
	contested  map[services.FrontendKey]bool  // claims of them changed
	winners    map[services.FrontendKey]*unit // of those that several units claim; filled by winner
	frontends  map[services.FrontendKey]int   // +1: new, -1: gone, 0: both
	keeps      map[steer.KeepSource]int
	owned      map[header.Addr]services.AddrFlags // flags before this run
}

// ownership is the use of an address by the gateway.
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

func (c *Compiler) begin() *run {
	r := &run{
		Compiler:   c,
		builder:    services.NewBuilder(c.snapshot),
		generation: 1,
		dirty:      map[*unit]bool{},
		contested:  map[services.FrontendKey]bool{},
		winners:    map[services.FrontendKey]*unit{},
		frontends:  map[services.FrontendKey]int{},
		keeps:      map[steer.KeepSource]int{},
		owned:      map[header.Addr]services.AddrFlags{},
	}
	if c.snapshot != nil {
		r.generation = c.snapshot.Generation + 1
	}
	return r
}

// configure applies a new configuration. It makes every unit dirty.
func (r *run) configure(old Config, cfg *Config) {
	s := r.builder.Settings()
	s.SelectKey, s.UnservedPort, s.SNATPorts = cfg.SelectKey, cfg.UnservedPort, cfg.SNATPorts
	s.ResetUnknown = cfg.ResetUnknown
	s.SNAT4, s.SNAT6 = slices.Clone(cfg.SNAT4), slices.Clone(cfg.SNAT6)
	s.SNATByRoute4, s.SNATByRoute6 = cfg.SNATByRoute4, cfg.SNATByRoute6
	s.Pods, s.RetryOther = services.NewPrefixes(slices.Clone(cfg.ClusterCIDRs)), cfg.RetryOther
	r.pods = [2]bool{}
	for _, p := range cfg.ClusterCIDRs {
		r.pods[objects.Family(p.Addr().Is6())] = true
	}
	r.changed = true
	for _, a := range old.addresses() {
		r.setFlags(a, 0)
	}
	for _, a := range cfg.NodeAddresses {
		r.setFlags(a, r.own[a].flags|services.AddrNode)
	}
	for _, a := range slices.Concat(cfg.SNAT4, cfg.SNAT6) {
		r.setFlags(a, r.own[a].flags|services.AddrSNAT)
	}
	for _, a := range cfg.LocalAddresses {
		r.setFlags(a, r.own[a].flags|services.AddrLocal)
	}
	r.nodes = map[header.Addr]bool{}
	for _, a := range slices.Concat(cfg.LocalAddresses, cfg.OtherAddresses) {
		r.nodes[a] = true
	}
	r.settleZone()
	rekeyed := old.SelectKey != cfg.SelectKey
	for _, u := range r.units {
		r.reread(u.num)
		r.setClaims(u, u.service, false)
		if rekeyed {
			u.dropSets()
		}
	}
}

func (cfg *Config) addresses() []header.Addr {
	return slices.Concat(cfg.LocalAddresses, cfg.NodeAddresses, cfg.SNAT4, cfg.SNAT6)
}

// setService records a Service's new version, or nil.
func (r *run) setService(id objects.ObjectID, now *objects.Service) {
	u := r.unit(unitKey{id.Namespace, id.Name})
	r.dirty[u] = true
	r.setClaims(u, now, created(u.service) != created(now))
	u.service = now
}

// setSlice records an EndpointSlice's new version, or nil. The slice may have moved from one
// Service to another.
func (r *run) setSlice(id objects.ObjectID, now *objects.Slice) {
	if before, ok := r.owner[id]; ok {
		u := r.units[before]
		if at, ok := slices.BinarySearchFunc(u.slices, id, compareSliceID); ok {
			u.slices = slices.Delete(u.slices, at, at+1)
		}
		delete(r.owner, id)
		r.dirty[u] = true
	}
	if now == nil || now.Service == "" {
		return
	}
	u := r.unit(unitKey{id.Namespace, now.Service})
	at, _ := slices.BinarySearchFunc(u.slices, now.ID, compareSliceID)
	u.slices = slices.Insert(u.slices, at, now)
	r.owner[id] = u.key
	r.dirty[u] = true
}

func compareSliceID(s *objects.Slice, id objects.ObjectID) int { return s.ID.Compare(id) }

// setVIP counts services that have an address as a VIP.
func (r *run) setVIP(a header.Addr, by int32) {
	o := r.own[a]
	o.vips += by
	r.setOwn(a, o)
}

func (r *run) setFlags(a header.Addr, flags services.AddrFlags) {
	o := r.own[a]
	o.flags = flags
	r.setOwn(a, o)
}

func (r *run) setOwn(a header.Addr, o ownership) {
	if _, noted := r.owned[a]; !noted {
		r.owned[a] = r.own[a].all()
	}
	if o == (ownership{}) {
		delete(r.own, a)
		return
	}
	r.own[a] = o
}

// settleAddrs puts the addresses that changed into the snapshot.
func (r *run) settleAddrs(change *steer.Change) {
	for a, before := range r.owned {
		now := r.own[a].all()
		if now == before {
			continue
		}
		r.uses.each(a, r.reread)
		r.builder.SetAddr(a, now)
		r.changed = true
		if gained := now &^ before; gained != 0 {
			change.Open.Addrs = append(change.Open.Addrs, steer.OwnAddr{Addr: a, Flags: gained})
		}
		if lost := before &^ now; lost != 0 {
			change.Close.Addrs = append(change.Close.Addrs, steer.OwnAddr{Addr: a, Flags: lost})
		}
	}
}

// finish runs the remaining phases.
func (r *run) finish() (*services.Snapshot, []objects.Problem, *steer.Change) {
	change := &steer.Change{}
	if r.Starved() {
		for u := range r.short {
			r.dirty[u] = true
		}
	}
	r.admit()
	r.settleClaims()
	r.settleAddrs(change)
	for _, a := range r.touched {
		r.uses.each(a, r.reread)
	}
	r.touched = nil
	for k := range r.checkedUnits {
		if u := r.units[k]; u != nil {
			r.dirty[u] = true
		}
	}
	clear(r.checkedUnits)
	units := slices.SortedFunc(maps.Keys(r.dirty), func(a, b *unit) int { return a.key.compare(b.key) })
	for _, u := range units {
		r.dropFrontends(u)
	}
	for _, u := range units {
		r.build(u)
		if u.service == nil && len(u.slices) == 0 {
			r.forget(u)
		}
	}
	r.allowance = 0
	r.steer(change)
	if r.changed {
		r.snapshot = r.builder.Build()
	}
	if r.reported {
		r.problemEdits++
	}
	if r.deferProblems {
		return r.snapshot, nil, change
	}
	return r.snapshot, r.Problems(), change
}

// steer lists what opened and closed in this run, each once.
func (r *run) steer(s *steer.Change) {
	for k, n := range r.frontends {
		switch {
		case n > 0:
			s.Open.AddFrontend(k)
		case n < 0:
			s.Close.AddFrontend(k)
		}
	}
	for k, n := range r.keeps {
		switch {
		case n > 0:
			s.Open.KeepSources = append(s.Open.KeepSources, k)
		case n < 0:
			s.Close.KeepSources = append(s.Close.KeepSources, k)
		}
	}
	s.Open.Sort()
	s.Close.Sort()
}

// countKeep counts the backends that need their replies caught by source.
func (r *run) countKeep(k steer.KeepSource, by int32) {
	before := r.keep[k]
	now := before + by
	if now == 0 {
		delete(r.keep, k)
	} else {
		r.keep[k] = now
	}
	if before == 0 {
		r.keeps[k]++
	} else if now == 0 {
		r.keeps[k]--
	}
}
