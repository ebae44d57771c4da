package compiler

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/nat/header"
)

// total is what units use of the shared tables: all, and those of each namespace. It has no entry
// for a namespace that uses nothing.
type total struct {
	all wants
	of  map[string]wants
}

func newTotal() total { return total{of: map[string]wants{}} }

func (t *total) add(namespace string, w wants, by int) {
	t.all.add(w, by)
	n := t.of[namespace]
	if n.add(w, by); n == (wants{}) {
		delete(t.of, namespace)
	} else {
		t.of[namespace] = n
	}
}

// fits reports whether no table and no namespace's share of one is exceeded.
func (t *total) fits(cfg *Config) bool {
	if t.all.exceeds(cfg, 0) != "" {
		return false
	}
	for _, n := range t.of {
		if n.exceeds(cfg, cfg.NamespaceShare) != "" {
			return false
		}
	}
	return true
}

// refuses returns why a unit that uses w besides does not fit; "" if it does.
func (t *total) refuses(cfg *Config, namespace string, w wants) string {
	n := t.of[namespace]
	n.add(w, +1)
	if limit := n.exceeds(cfg, cfg.NamespaceShare); limit != "" && cfg.NamespaceShare > 0 {
		return fmt.Sprintf("there is room for %s of one namespace (proxy.namespaceShare), and older Services of this "+
			"one have it", limit)
	}
	all := t.all
	all.add(w, +1)
	if limit := all.exceeds(cfg, 0); limit != "" {
		return fmt.Sprintf("there is room for %s of all Services together, and older Services have it", limit)
	}
	return ""
}

// admit denies the youngest Services where a namespace exceeds its share of a table, or all
// together exceed a table, so that no new Service displaces one that works, and every gateway
// decides alike. It is called once in a run, after all changes are recorded.
//
// As long as all that units claim fits, it adds up what changed. Otherwise it goes through all
// units by age, and counts what each is charged for: a claim that an older admitted unit has, too,
// is that unit's.
func (r *run) admit() {
	if r.deniedBy != nil {
		return
	}
	for u := range r.dirty {
		r.total.add(u.key.namespace, u.wants, -1)
		u.wants = r.wantsOf(u)
		r.total.add(u.key.namespace, u.wants, +1)
	}
	fits := r.total.fits(&r.cfg)
	if fits && !r.crowded {
		return
	}
	stale := r.staleCharges(!r.crowded)
	r.crowded = !fits
	taken, listed := newTotal(), map[string]int{}
	for _, u := range slices.SortedFunc(maps.Values(r.units), compareAges) {
		denied, unlisted := "", false
		if !fits && u.wants != (wants{}) {
			if listed[u.key.namespace] += u.wants.frontends; r.cfg.MaxFrontends > 0 &&
				listed[u.key.namespace] > r.cfg.MaxFrontends {
				unlisted = true
				denied = fmt.Sprintf("the Services of one namespace may ask for %d frontends, and older ones of this "+
					"namespace do", r.cfg.MaxFrontends)
			}
		}
		r.list(u, unlisted, stale)
		if stale[u] {
			r.charge(u)
		}
		w := u.wants
		w.frontends, w.addrs = u.won, w.addrs-u.lostAddrs
		if !fits && denied == "" && u.wants != (wants{}) {
			denied = taken.refuses(&r.cfg, u.key.namespace, w)
		}
		if denied == "" {
			taken.add(u.key.namespace, w, +1)
		}
		r.deny(u, denied, stale)
	}
}

// staleCharges returns the units whose charges must be counted again: all, or those that claim a
// frontend whose claims changed in this run.
func (r *run) staleCharges(all bool) map[*unit]bool {
	stale := map[*unit]bool{}
	if all {
		for _, u := range r.units {
			stale[u] = true
		}
		return stale
	}
	for k := range r.contested {
		r.claims.each(k, func(num int32) { stale[r.byNum[num]] = true })
	}
	for u := range r.dirty {
		stale[u] = true
	}
	return stale
}

// charge counts the frontends with an address that no older admitted unit claims, and the VIPs
// where older ones have all that the unit claims. Older units must have been decided.
func (r *run) charge(u *unit) {
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
		if _, alone := r.claims.only(c.key); alone || !r.claimedByOlder(u, c) {
			gets++
			u.won++
		}
	}
	lost()
}

func (r *run) claimedByOlder(u *unit, c claim) (older bool) {
	r.claims.each(c.key, func(num int32) {
		o := r.byNum[num]
		older = older || o != u && o.denied == "" && compareAges(o, u) < 0
	})
	return older
}

// list sets a unit's claims, or removes all of them if it is unlisted. Units are unlisted where the
// Services of their namespace claim more frontends than the table holds: all claims would take too
// much memory.
func (r *run) list(u *unit, unlisted bool, stale map[*unit]bool) {
	if unlisted == u.unlisted {
		return
	}
	r.younger(u, stale)
	u.unlisted = unlisted
	r.setClaims(u, u.service, true)
	r.younger(u, stale)
	r.dirty[u], stale[u] = true, true
}

// deny denies a unit for a reason, or admits it.
func (r *run) deny(u *unit, denied string, stale map[*unit]bool) {
	if denied == u.denied {
		return
	}
	if (denied == "") != (u.denied == "") {
		r.younger(u, stale)
	}
	u.denied = denied
	r.setClaims(u, u.service, true)
	r.dirty[u] = true
}

// younger adds the units that are charged anew if u no longer, or again, comes before them.
func (r *run) younger(u *unit, stale map[*unit]bool) {
	for _, c := range u.claims {
		if _, alone := r.claims.only(c.key); alone {
			continue
		}
		r.claims.each(c.key, func(num int32) { stale[r.byNum[num]] = true })
	}
}

// compareAges orders units by creation, then by name.
func compareAges(a, b *unit) int {
	return cmp.Or(cmp.Compare(created(a.service), created(b.service)), a.key.compare(b.key))
}

func created(s *objects.Service) int64 {
	if s == nil {
		return 0
	}
	return s.Created
}

// denials returns the problem of a Service that is denied.
func (u *unit) denials() []objects.Problem {
	return []objects.Problem{{Object: u.service.ID, Severity: objects.Refused, Reason: objects.ReasonNoRoom,
		Message: "is not served: " + u.denied}}
}
