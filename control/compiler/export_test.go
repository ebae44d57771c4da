package compiler

import (
	"fmt"
	"maps"
	"slices"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/steer"
	"sluice.dev/sluice/fastpath/services"
)

// CheckAll is the self check of every unit.
func (c *Compiler) CheckAll(t HandedOut) string {
	if d := c.missing(t); d != "" {
		return d
	}
	for _, u := range c.units.byKey { // alone, so that all it needs of others is taken over
		if d := c.compare([]*unit{u}, t, c.snapshot); d != "" {
			return d
		}
	}
	return ""
}

// TreatAllAsLarge makes the compiler defer every table, merge all endpoints as it does those of
// large Services, and evaluate endpoints of one Service again in each compile.
func (c *Compiler) TreatAllAsLarge() {
	c.contest.turn = 1
	c.tables.deferring, c.tables.inlineSlots, c.keepFrom = true, 0, 1
}

// Pending reports whether tables are to be built.
func (c *Compiler) Pending() bool {
	return slices.ContainsFunc(c.tables.queue, func(j *TableJob) bool { return !j.dropped && c.tables.wants(j) })
}

// FullHealthChecks are those of a state compiled from nothing.
func (c *Compiler) FullHealthChecks(s *objects.State) []HealthCheck { return c.full(s).HealthChecks() }

// Corruptions are ways in which a table can be wrong. Each makes it so for the Service
// bench/service-1 and reports whether the endpoints' numbers are still right.
var Corruptions = map[string]func(*Compiler){
	"a slot of a table": func(c *Compiler) {
		t := c.one().ports[0].families[0].sets[clusterSet].table.slots
		for i := range t {
			if t[i] != t[0] {
				t[i] = t[0]
				return
			}
		}
		panic("the table has one backend")
	},
	"a backend's flags": func(c *Compiler) {
		c.snapshot.Backend(c.one().ports[0].families[0].members[0].ref).Flags = 0
	},
	"a backend's address": func(c *Compiler) {
		c.snapshot.Backend(c.one().ports[0].families[0].members[0].ref).Addr[15]++
	},
	"a service port": func(c *Compiler) { c.one().ports[0].service.AffinitySeconds++ },
	"a frontend's rule": func(c *Compiler) {
		f, _ := c.snapshot.FrontendByKey(c.one().held[0])
		f.Outside.KeepClient = !f.Outside.KeepClient
	},
	"a frontend's service": func(c *Compiler) {
		f, _ := c.snapshot.FrontendByKey(c.one().held[0])
		copied := *f.Service
		f.Service = &copied
	},
	"an address": func(c *Compiler) { delete(c.addrs.own, c.one().vips[0]) },
	"a published address": func(c *Compiler) {
		b := services.NewBuilder(c.snapshot)
		b.SetAddr(c.one().vips[0], services.AddrVIP|services.AddrSNAT)
		generation := c.snapshot.Generation
		*c.snapshot = *b.Build()
		c.snapshot.Generation = generation
	},
	"a lost slice":   func(c *Compiler) { c.one().slices = nil },
	"a lost Service": func(c *Compiler) { c.one().service = nil },
	"an old Service": func(c *Compiler) { old := *c.one().service; c.one().service = &old },
	"a kept source":  func(c *Compiler) { clear(c.kept.count) },
	"a health check": func(c *Compiler) {
		h := c.healthChecks.of[c.one()]
		h.Local4++
		c.healthChecks.of[c.one()] = h
	},
	"a lost problem":   func(c *Compiler) { c.one().problems = nil },
	"a forgotten unit": func(c *Compiler) { c.units.forget(c.one()) },
	"a number given twice": func(c *Compiler) {
		m := c.one().ports[0].families[0].members
		m[1].ref = m[0].ref
		c.one().ports[0].service.Backends[1] = m[0].ref
	},
}

func (c *Compiler) one() *unit {
	u := c.units.byKey[unitKey{"bench", "service-1"}]
	if u == nil {
		panic(fmt.Sprintf("no such unit among %d", len(c.units.byKey)))
	}
	return u
}

// Facts are the compiled Services of a namespace, as a worker reads them.
func (c *Compiler) Facts(namespace string) []byte {
	var all []byte
	units := slices.SortedFunc(maps.Values(c.units.byKey), func(a, b *unit) int { return a.key.compare(b.key) })
	for _, u := range units {
		if u.key.namespace != namespace {
			continue
		}
		f := &facts{Compiler: c, unit: u}
		f.addPorts()
		f.addBackends()
		f.addFrontends(slices.SortedFunc(slices.Values(u.held), steer.CompareKeys))
		f.addProblems()
		all = append(all, f.buf...)
	}
	return all
}

// Queued is the number of tables that wait to be built.
func (c *Compiler) Queued() int { return len(c.tables.queue) }

// Contests is how many frontends other Services may win or lose by a new version of a Service. The
// compiler is of no use afterwards.
func (c *Compiler) Contests(s *objects.Service) int {
	r := c.begin()
	r.setService(s.ID, s)
	return len(r.contest.changed)
}

// Affected are the Services whose endpoints a new version of a Service makes the compiler evaluate
// again. The compiler is of no use afterwards.
func (c *Compiler) Affected(s *objects.Service) (names []string) {
	r := c.begin()
	r.setService(s.ID, s)
	r.admission.admit()
	r.contest.markUnits(r.snapshot)
	for u := range r.units.dirty {
		if u.reread || len(u.moved) > 0 {
			names = append(names, u.key.namespace+"/"+u.key.name)
		}
	}
	return names
}

// FullCheckedPorts are those of a state compiled from nothing.
func (c *Compiler) FullCheckedPorts(s *objects.State) []*CheckedPort { return c.full(s).CheckedPorts() }
