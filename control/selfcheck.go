package control

import (
	"fmt"
	"slices"
	"time"

	"sluice.dev/sluice/fastpath/services"
)

// The table is built change by change, so a mistake in that would stay until its
// Service changes again, and nobody would see it. So every checkEvery the loop compiles a
// few Services from nothing and compares. What it costs is bounded by endpoints, but for
// a Service that has more than that alone.
const (
	checkEvery     = 30 * time.Second
	checkEndpoints = 40 // of the units of one check together
	checkUnits     = 8
	checkObjects   = 64  // of the Tracker's, looked for in the compiler
	checkHoles     = 512 // unused unit numbers passed over in one check
)

// SelfCheck is what the loop found when it compared its table with one compiled anew.
type SelfCheck struct {
	// Runs counts checks, Services what they compared, Differences the checks that found
	// one. After one, the whole table is built anew.
	Runs        uint64 `json:"runs"`
	Services    uint64 `json:"services"`
	Differences uint64 `json:"differences"`
	// Last is what the last difference was, At when.
	Last string    `json:"last,omitempty"`
	At   time.Time `json:"at,omitzero"`
}

// SelfCheck may be called from any goroutine.
func (l *Loop) SelfCheck() SelfCheck {
	l.progress.mu.Lock()
	defer l.progress.mu.Unlock()
	return l.progress.check
}

// selfCheck compares a few Services, when it is time, and repairs what is wrong. It runs
// on the loop's goroutine, so that what the Tracker handed out is what was compiled.
func (l *Loop) selfCheck(now time.Time) {
	if !l.replaced || now.Sub(l.checked) < checkEvery {
		return
	}
	l.checked = now
	units := l.Compiler.sample()
	difference := l.Compiler.missing(l.Tracker)
	if difference == "" {
		difference = l.Compiler.compare(units, l.Tracker, l.Publisher.handle.Load())
	}
	p := &l.progress
	p.mu.Lock()
	p.check.Runs++
	p.check.Services += uint64(len(units))
	if difference != "" {
		p.check.Differences++
		p.check.Last, p.check.At = difference, now
	}
	p.mu.Unlock()
	if difference == "" {
		return
	}
	l.Log.Error("the table is not what the objects say, which is a bug of Sluice; please report it. All of it is built anew", "difference", difference)
	none := &Changes{}
	l.began(none.sync(true))
	l.apply(l.Compiler.rebuild(l.Tracker.State()))
	l.tell(none)
}

// sample takes the next few units in turn.
func (c *Compiler) sample() (units []*unit) {
	endpoints := 0
	for range min(len(c.byNum), checkHoles) {
		if c.nextCheck >= len(c.byNum) {
			c.nextCheck = 0
		}
		u := c.byNum[c.nextCheck]
		if u != nil && len(units) > 0 && endpoints+len(u.uses) > checkEndpoints {
			break
		}
		c.nextCheck++
		if u == nil || c.short[u] { // who finds no number depends on who came first
			continue
		}
		units = append(units, u)
		if endpoints += len(u.uses); endpoints > checkEndpoints || len(units) == checkUnits {
			break
		}
	}
	return units
}

// missing says which of a few objects the compiler does not know as the Tracker handed it
// out; "" if none.
func (c *Compiler) missing(t *Tracker) string {
	for _, o := range t.some(checkObjects) {
		known := true
		switch o := o.(type) {
		case *service:
			u := c.units[unitKey{o.id.Namespace, o.id.Name}]
			known = u != nil && u.service == o
		case *slice:
			u := c.units[unitKey{o.id.Namespace, o.service}]
			known = o.service == "" || u != nil && slices.Contains(u.slices, o)
		case *node:
			known = c.zones[o.id.Name] == o.zone
		}
		if !known {
			return fmt.Sprintf("%v is not known as it was read", objectID(o))
		}
	}
	return ""
}

func objectID(o any) ObjectID {
	switch o := o.(type) {
	case *service:
		return o.id
	case *slice:
		return o.id
	}
	return o.(*node).id
}

// some returns up to n objects as they were handed out, others each time: where a
// map's walk begins is random.
func (t *Tracker) some(n int) (objects []any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, o := range t.objects {
		if n--; n < 0 {
			break
		}
		if o.given != nil {
			objects = append(objects, o.given)
		}
	}
	return objects
}

// handedOut says whether an object is what Changes returned last.
func (t *Tracker) handedOut(id ObjectID, object any) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := t.objects[id]
	return o != nil && o.given == object
}

// compare compiles units from nothing and says in what a published snapshot differs
// from that; "" if in nothing.
func (c *Compiler) compare(units []*unit, t *Tracker, published *services.Snapshot) string {
	for _, u := range units {
		if u.service != nil && !t.handedOut(u.service.id, u.service) {
			return fmt.Sprintf("%v is compiled as it no longer is", u.service.id)
		}
		for _, s := range u.slices {
			if !t.handedOut(s.id, s) {
				return fmt.Sprintf("%v is compiled as it no longer is", s.id)
			}
		}
	}
	if published == nil || published != c.snapshot {
		return "what is published is not what was compiled last"
	}
	fresh := c.anew(units)
	got, want := &facts{Compiler: c}, &facts{Compiler: fresh}
	for _, u := range units {
		if d := got.differ(u, want); d != "" {
			return fmt.Sprintf("Service %s/%s: %s differ", u.key.namespace, u.key.name, d)
		}
	}
	return ""
}

// anew compiles units as if nothing had been before. Of other units it takes over what
// theirs depend on: who else claims their frontends and the places of their endpoints, and who
// is denied a place.
func (c *Compiler) anew(units []*unit) *Compiler {
	fresh := NewCompiler(c.cfg)
	fresh.drains, fresh.zones, fresh.zone = c.drains, c.zones, c.zone
	fresh.judged = func(k unitKey) string {
		if u := c.units[k]; u != nil {
			return u.denied
		}
		return ""
	}
	known, changes := map[*unit]bool{}, &Changes{}
	claimant := func(u *unit) {
		if u.service != nil && !known[u] {
			known[u] = true
			changes.services = append(changes.services, changed[*service]{u.service.id, u.service})
		}
	}
	for _, u := range units {
		claimant(u)
		for _, cl := range u.claims {
			c.claims.each(cl.key, func(num int32) { claimant(c.byNum[num]) })
		}
		for _, s := range u.slices {
			changes.slices = append(changes.slices, changed[*slice]{s.id, s})
		}
		c.eachPlace(u, func(k services.FrontendKey) {
			c.claims.each(k, func(num int32) { claimant(c.byNum[num]) })
		})
	}
	fresh.Compile(changes)
	return fresh
}

// eachPlace calls f for the places of a unit's endpoints that have an address of ours.
func (c *Compiler) eachPlace(u *unit, f func(services.FrontendKey)) {
	for _, s := range u.slices {
		for _, e := range s.endpoints {
			if _, ours := c.own[e.addr]; ours {
				for _, p := range s.ports {
					f(services.FrontendKey{Addr: e.addr, Port: p.port, Proto: p.proto})
				}
			}
		}
	}
}

// rebuild compiles a state from nothing and takes its result over. Service ports and
// endpoints keep their numbers, and whoever watches hears on. The kernel program is asked for all that it must have open,
// and to close what it had besides.
func (c *Compiler) rebuild(s *State) (*services.Snapshot, []Problem, *Steer) {
	fresh := NewCompiler(c.cfg)
	fresh.drains = c.drains
	fresh.ids, fresh.inherit = c.ids, c.bequeath()
	fresh.snapshot.Generation = c.snapshot.Generation // nobody else has seen it
	fresh.healthEdits, fresh.problemEdits, fresh.read = c.healthEdits+1, c.problemEdits+1, c.read
	before := c.Steer()
	snapshot, problems, _ := fresh.Compile(&s.all)
	fresh.inherit.retireRest(&fresh.ids, snapshot.Generation)
	fresh.inherit = nil // who comes later gets a number of his own
	fresh.inheritPins(c)
	*c = *fresh
	steer := c.Steer()
	steer.Close = before.Open.Without(&steer.Open)
	return snapshot, problems, steer
}
