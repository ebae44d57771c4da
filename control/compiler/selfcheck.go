package compiler

import (
	"fmt"
	"slices"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/steer"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// The table is built incrementally, so a mistake would stay unseen until its Service changes again.
// Therefore each Check compiles a few Services from scratch and compares. A bound on the number of
// endpoints limits its cost; only a single Service may exceed it.
const (
	checkEndpoints = 40 // of the units of one check together
	checkUnits     = 8
	checkObjects   = 64  // random objects of the tracker, looked up in the compiler
	checkHoles     = 512 // unused unit numbers passed over in one check
)

// HandedOut is the source of a compiler's changes, the Tracker.
type HandedOut interface {
	// Some returns up to n random objects in the versions that were handed out.
	Some(n int) []any
	// HandedOut reports whether an object is the version that was last handed out.
	HandedOut(id objects.ObjectID, object any) bool
}

// Check compares the next few Services with freshly compiled ones, and the published snapshot with
// the compiler's. It returns how many Services it compared, and the first difference; "" if there
// is none. It must run on the goroutine of Compile, so that the tracker's last changes are
// compiled.
func (c *Compiler) Check(given HandedOut, published *services.Snapshot) (checked int, difference string) {
	units := c.sample()
	if difference = c.missing(given); difference == "" {
		difference = c.compare(units, given, published)
	}
	if difference == "" {
		difference, c.tables.wrong = c.tables.wrong, ""
	}
	for _, u := range units {
		c.tables.verifyTables(u)
	}
	return len(units), difference
}

// sample takes the next few units in turn.
func (c *Compiler) sample() (units []*unit) {
	endpoints := 0
	for range min(len(c.units.byNum), checkHoles) {
		if c.nextCheck >= len(c.units.byNum) {
			c.nextCheck = 0
		}
		u := c.units.byNum[c.nextCheck]
		if u != nil && len(units) > 0 && endpoints+len(u.uses) > checkEndpoints {
			break
		}
		c.nextCheck++
		// If numbers are short, the order of arrival decides which endpoints get one.
		if u == nil || c.ids.short[u] || u.waits() || c.contest.stale[u] || c.contest.behind[u] {
			continue
		}
		units = append(units, u)
		if endpoints += len(u.uses); endpoints > checkEndpoints || len(units) == checkUnits {
			break
		}
	}
	return units
}

// missing looks up a few objects of the tracker, and returns an error text for the first one that
// the compiler does not have; "" if it has all.
func (c *Compiler) missing(given HandedOut) string {
	for _, o := range given.Some(checkObjects) {
		known := true
		switch o := o.(type) {
		case *objects.Service:
			u := c.units.byKey[unitKey{o.ID.Namespace, o.ID.Name}]
			known = u != nil && u.service == o
		case *objects.Slice:
			u := c.units.byKey[unitKey{o.ID.Namespace, o.Service}]
			known = o.Service == "" || u != nil && slices.Contains(u.slices, o)
		case *objects.Node:
			a, ok := o.Address()
			known = c.zones.byName[o.ID.Name] == o.Zone && (!ok || c.nodes.byName[o.ID.Name] == header.AddrFrom(a))
		}
		if !known {
			return fmt.Sprintf("%v is not compiled in the version that was read", objects.IDOf(o))
		}
	}
	return ""
}

// compare compiles units from scratch and describes the first difference between the published
// snapshot and the result; "" if they are equal.
func (c *Compiler) compare(units []*unit, given HandedOut, published *services.Snapshot) string {
	for _, u := range units {
		if u.service != nil && !given.HandedOut(u.service.ID, u.service) {
			return fmt.Sprintf("%v is compiled in an old version", u.service.ID)
		}
		for _, s := range u.slices {
			if !given.HandedOut(s.ID, s) {
				return fmt.Sprintf("%v is compiled in an old version", s.ID)
			}
		}
	}
	if published == nil || published != c.snapshot {
		return "the published snapshot is not the last compiled one"
	}
	fresh := c.fresh(units)
	got := &facts{Compiler: c, skipTables: c.tables.deferring}
	want := &facts{Compiler: fresh, skipTables: c.tables.deferring}
	for _, u := range units {
		if d := got.differ(u, want); d != "" {
			return fmt.Sprintf("Service %s/%s: %s differ", u.key.namespace, u.key.name, d)
		}
	}
	return ""
}

// fresh compiles units with a fresh compiler. It copies the state of other units on which these
// units depend: claims of the same frontends, claims of their endpoints' addresses, and whether
// the units are denied.
func (c *Compiler) fresh(units []*unit) *Compiler {
	fresh := New(c.cfg.Config)
	fresh.drains.set, fresh.endpointChecks.of = c.drains.set, c.endpointChecks.of
	fresh.zones.byName, fresh.zones.here, fresh.nodes.byName = c.zones.byName, c.zones.here, c.nodes.byName
	fresh.tables.comparing, fresh.tables.inlineSlots = c.tables.deferring, c.tables.inlineSlots
	fresh.units.deniedBy = func(k unitKey) (string, bool) {
		if u := c.units.byKey[k]; u != nil {
			return u.denied, u.unlisted
		}
		return "", false
	}
	known, changes := map[*unit]bool{}, &objects.Changes{}
	claimant := func(u *unit) {
		if u.service != nil && !known[u] {
			known[u] = true
			changes.Services = append(changes.Services, objects.Changed[*objects.Service]{ID: u.service.ID,
				Now: u.service})
		}
	}
	for _, u := range units {
		claimant(u)
		for _, cl := range u.claims {
			c.contest.claims.each(cl.key, func(num int32) { claimant(c.units.byNum[num]) })
		}
		for _, s := range u.slices {
			changes.Slices = append(changes.Slices, objects.Changed[*objects.Slice]{ID: s.ID, Now: s})
		}
		c.eachPlace(u, func(k services.FrontendKey) {
			c.contest.claims.each(k, func(num int32) { claimant(c.units.byNum[num]) })
		})
	}
	fresh.Compile(changes)
	return fresh
}

// eachPlace calls f for the address and port of each endpoint of a unit whose address the gateway
// itself uses.
func (c *Compiler) eachPlace(u *unit, f func(services.FrontendKey)) {
	for _, s := range u.slices {
		for _, e := range s.Endpoints {
			if _, ours := c.addrs.own[e.Addr]; ours {
				for _, p := range s.Ports {
					f(services.FrontendKey{Addr: e.Addr, Port: p.Port, Proto: p.Proto})
				}
			}
		}
	}
}

// Rebuild replaces everything by a compile from scratch. Service ports and endpoints keep their
// numbers, and watchers are called as before. The change opens everything that the kernel program
// must have, and closes everything else that it had.
func (c *Compiler) Rebuild(s *objects.State) (*services.Snapshot, []objects.Problem, *steer.Change) {
	fresh := New(c.cfg.Config)
	fresh.drains.set, fresh.endpointChecks.of = c.drains.set, c.endpointChecks.of
	fresh.ids.identities, fresh.ids.former = c.ids.identities, c.units.inUse()
	fresh.snapshot.Follow(c.snapshot) // no other goroutine has seen it
	fresh.endpointChecks.edits, fresh.healthChecks.edits = c.endpointChecks.edits+1, c.healthChecks.edits+1
	fresh.problems.edits, fresh.read = c.problems.edits+1, c.read
	before := c.Steer()
	snapshot, problems, _ := fresh.Compile(&s.All)
	fresh.ids.former.retireRest(&fresh.ids.identities, snapshot.Generation)
	fresh.ids.former = nil // later ones get new numbers
	fresh.tables.deferring, fresh.tables.inlineSlots = c.tables.deferring, c.tables.inlineSlots
	fresh.keepFrom, fresh.problems.later = c.keepFrom, c.problems.later
	fresh.contest.turn = c.contest.turn
	fresh.lostPins.inherit(&c.lostPins, &c.units, &fresh.units, fresh.snapshot.Generation)
	c.state = fresh.state
	steer := c.Steer()
	steer.Close = before.Open.Without(&steer.Open)
	return snapshot, problems, steer
}
