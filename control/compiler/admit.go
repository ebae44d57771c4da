package compiler

import (
	"fmt"
	"maps"
	"slices"

	"sluice.dev/sluice/nat/header"
)

// admission decides which units are served if there is no room for all.
type admission struct {
	cfg     *settings
	units   *units
	nodes   *nodes
	contest *contest
	total   total // the sum of all units' wants
	crowded bool  // some units are denied
}

// admit denies the youngest Services if a namespace exceeds its share of a table, or all namespaces
// together exceed a table. So a new Service displaces none that works, and every gateway decides
// alike. It is called once in a run, after all changes are recorded.
//
// While the units' upper bounds fit, it only adds up the changes. Otherwise it goes through all
// units by age and counts the frontends and addresses of each (charge). A claim that several
// admitted units make counts for the oldest.
func (a *admission) admit() {
	if a.units.deniedBy != nil {
		return
	}
	for u := range a.units.dirty {
		a.total.add(u.key.namespace, u.wants, -1)
		u.wants = a.cfg.wantsOf(u.service, u.slices, len(a.nodes.byName))
		a.total.add(u.key.namespace, u.wants, +1)
	}
	fits := a.total.fits(&a.cfg.Config)
	if fits && !a.crowded {
		return
	}
	stale := a.staleCharges(!a.crowded)
	a.crowded = !fits
	taken, listed := newTotal(), map[string]int{}
	for _, u := range slices.SortedFunc(maps.Values(a.units.byKey), compareAges) {
		denied, unlisted := "", false
		if !fits && u.wants != (wants{}) {
			if listed[u.key.namespace] += u.wants.frontends; a.cfg.MaxFrontends > 0 &&
				listed[u.key.namespace] > a.cfg.MaxFrontends {
				unlisted = true
				denied = fmt.Sprintf("the Services of one namespace may ask for %d frontends, and older ones of this "+
					"namespace do", a.cfg.MaxFrontends)
			}
		}
		a.list(u, unlisted, stale)
		if stale[u] {
			a.charge(u)
		}
		w := u.wants
		w.frontends, w.addrs = u.won, w.addrs-u.lostAddrs
		if !fits && denied == "" && u.wants != (wants{}) {
			denied = taken.refuses(&a.cfg.Config, u.key.namespace, w)
		}
		if denied == "" {
			taken.add(u.key.namespace, w, +1)
		}
		a.deny(u, denied, stale)
	}
}

// staleCharges returns the units to charge again: all units, or the units that claim a frontend
// whose claims changed in this run.
func (a *admission) staleCharges(all bool) map[*unit]bool {
	stale := map[*unit]bool{}
	if all {
		for _, u := range a.units.byKey {
			stale[u] = true
		}
		return stale
	}
	for k := range a.contest.changed {
		a.contest.claims.each(k, func(num int32) { stale[a.units.byNum[num]] = true })
	}
	for u := range a.units.dirty {
		stale[u] = true
	}
	return stale
}

// charge counts the frontends with an address that no older admitted unit claims, and the VIPs at
// which older units have all frontends that the unit claims. Older units must have been decided.
func (a *admission) charge(u *unit) {
	u.won, u.lostAddrs = 0, 0
	var at header.Addr
	asks, gets := 0, 0
	lost := func() {
		if asks > 0 && gets == 0 {
			u.lostAddrs++
		}
		asks, gets = 0, 0
	}
	for _, c := range u.claims {
		if c.nodePort() {
			continue
		}
		if c.key.Addr != at {
			lost()
			at = c.key.Addr
		}
		asks++
		if _, alone := a.contest.claims.only(c.key); alone || !a.claimedByOlder(u, c) {
			gets++
			u.won++
		}
	}
	lost()
}

func (a *admission) claimedByOlder(u *unit, c claim) (older bool) {
	a.contest.claims.each(c.key, func(num int32) {
		o := a.units.byNum[num]
		older = older || o != u && o.denied == "" && compareAges(o, u) < 0
	})
	return older
}

// list sets a unit's claims, or removes all its claims if it is unlisted. A unit is unlisted if the
// Services of its namespace claim more frontends than the table holds: to keep all claims would
// take too much memory.
func (a *admission) list(u *unit, unlisted bool, stale map[*unit]bool) {
	if unlisted == u.unlisted {
		return
	}
	a.younger(u, stale)
	u.unlisted = unlisted
	a.contest.setClaims(u, u.service, true)
	a.younger(u, stale)
	a.units.dirty[u], stale[u] = true, true
}

// deny denies a unit for a reason, or admits it.
func (a *admission) deny(u *unit, denied string, stale map[*unit]bool) {
	if denied == u.denied {
		return
	}
	if (denied == "") != (u.denied == "") {
		a.younger(u, stale)
	}
	u.denied = denied
	a.contest.setClaims(u, u.service, true)
	a.units.dirty[u] = true
}

// younger adds the units that must be charged again because u comes before them, or no longer does.
func (a *admission) younger(u *unit, stale map[*unit]bool) {
	for _, c := range u.claims {
		if _, alone := a.contest.claims.only(c.key); alone {
			continue
		}
		a.contest.claims.each(c.key, func(num int32) { stale[a.units.byNum[num]] = true })
	}
}
