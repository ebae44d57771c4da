package compiler

import (
	"slices"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/steer"
	"sluice.dev/sluice/fastpath/services"
)

// dropFrontends removes from the snapshot the frontends that a unit loses.
func (r *run) dropFrontends(u *unit) {
	u.held = slices.DeleteFunc(u.held, func(k services.FrontendKey) bool {
		_, claimed := slices.BinarySearchFunc(u.claims, k,
			func(c claim, k services.FrontendKey) int { return steer.CompareKeys(c.key, k) })
		if claimed && r.contest.winner(k) == u {
			return false
		}
		r.builder.DeleteFrontend(k)
		r.changed = true
		r.frontends[k]--
		return true
	})
}

// setFrontends puts the frontends that a unit wins into the snapshot, and returns a problem for
// each of the others.
func (r *run) setFrontends(u *unit) []objects.Problem {
	u.guard.renew(u.service, &r.cfg.Config)
	if u.denied != "" {
		return nil
	}
	var lost conflicts
	for _, c := range u.claims {
		if w := r.contest.winner(c.key); w != u {
			lost.add(u, c, w)
			continue
		}
		before, had := r.builder.Settings().FrontendByKey(c.key)
		f := r.frontend(u, c)
		if had {
			f.Allowed = before.Allowed
		}
		f.Allowed = u.guard.allowed(c, r.cfg.StrictSourceRanges, f.Allowed)
		if u.ports[c.port].scheduler.InTurn() {
			if f.Turn = new(services.Turn); had && before.Turn != nil {
				f.Turn = before.Turn
			}
		}
		if had && *before == f {
			continue
		}
		if !had {
			r.frontends[c.key]++
			u.held = append(u.held, c.key)
		}
		r.builder.SetFrontend(&f)
		r.changed = true
	}
	return lost.problems(u)
}

// frontend returns the frontend of a claim that wins, without its source ranges.
func (r *run) frontend(u *unit, c claim) services.Frontend {
	p, fam := u.ports[c.port], c.family()
	outside, pod := r.cfg.policies(u.service, c.kind, fam)
	sets := &p.families[fam].sets
	return services.Frontend{
		Key: c.key, Kind: c.kind, Service: p.service,
		Outside: services.Rule{Set: sets[outside.set].set, KeepClient: outside.keep},
		Pod:     services.Rule{Set: sets[pod.set].set, KeepClient: pod.keep},
	}
}
