package compiler

import (
	"math"
	"slices"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/steer"
	"sluice.dev/sluice/fastpath/services"
)

// A run goes through the phases
//
//	record   changes: units become dirty, claims and addresses move
//	drop     frontends that dirty units lose, so that others can take them
//	build    dirty units: backends, sets, frontends, problems
//	finish   the snapshot, and the change for the kernel program

// configure applies a new configuration. It makes every unit dirty.
func (r *run) configure(old *Config) {
	cfg := &r.cfg.Config
	s := r.builder.Settings()
	s.SelectKey, s.UnservedPort, s.SNATPorts = cfg.SelectKey, cfg.UnservedPort, cfg.SNATPorts
	s.ResetUnknown, s.TunnelPort = cfg.ResetUnknown, cfg.TunnelPort
	s.SNAT4, s.SNAT6 = slices.Clone(cfg.SNAT4), slices.Clone(cfg.SNAT6)
	s.SNATByRoute4, s.SNATByRoute6 = cfg.SNATByRoute4, cfg.SNATByRoute6
	s.Group4, s.Group6, s.GroupSources = cfg.Group4, cfg.Group6, slices.Clone(cfg.GroupSources)
	s.Pods, s.RetryOther = services.NewPrefixes(slices.Clone(cfg.ClusterCIDRs)), cfg.RetryOther
	r.changed = true
	for _, a := range old.addresses() {
		r.addrs.setFlags(a, 0)
	}
	for _, a := range cfg.NodeAddresses {
		r.addrs.setFlags(a, r.addrs.own[a].flags|services.AddrNode)
	}
	for _, a := range slices.Concat(cfg.SNAT4, cfg.SNAT6, cfg.GroupSources) {
		r.addrs.setFlags(a, r.addrs.own[a].flags|services.AddrSNAT)
	}
	for _, a := range cfg.LocalAddresses {
		r.addrs.setFlags(a, r.addrs.own[a].flags|services.AddrLocal)
	}
	r.zones.update()
	r.nodes.idle, r.nodes.at = nil, nil
	rekeyed := old.SelectKey != cfg.SelectKey
	for _, u := range r.units.byKey {
		r.units.reread(u.num)
		r.contest.setClaims(u, u.service, false)
		if rekeyed {
			u.dropSets()
		}
	}
}

// setService records a Service's new version; nil if it is deleted.
func (r *run) setService(id objects.ObjectID, now *objects.Service) {
	u := r.units.get(unitKey{id.Namespace, id.Name})
	r.units.dirty[u] = true
	r.contest.setClaims(u, now, created(u.service) != created(now))
	u.service = now
}

// finish runs the phases after record.
func (r *run) finish() (*services.Snapshot, []objects.Problem, *steer.Change) {
	change := &steer.Change{}
	if r.ids.starved() {
		for u := range r.ids.short {
			r.units.dirty[u] = true
		}
	}
	r.admission.admit()
	r.contest.markUnits(r.snapshot)
	r.addrs.apply(&r.draft, change)
	r.drains.markUnits()
	r.endpointChecks.markUnits(&r.units)
	units := r.units.inOrder()
	for _, u := range units {
		r.dropFrontends(u)
	}
	for _, u := range units {
		r.build(u)
		delete(r.contest.stale, u)
		if u.service == nil && len(u.slices) == 0 {
			r.units.forget(u)
			delete(r.ids.short, u)
		}
	}
	if !r.problems.later {
		r.refresh(math.MaxInt)
	}
	r.tables.allowance = 0
	r.draft.steer(change)
	r.kept.steer(change)
	change.Open.Sort()
	change.Close.Sort()
	if r.changed {
		r.snapshot = r.builder.Build()
	}
	r.end()
	return r.snapshot, r.problems.finish(), change
}
