package compiler

import (
	"fmt"
	"slices"

	"sluice.dev/sluice/control/maglev"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/fastpath/services"
)

// setSets chooses the backends of every set that is needed.
func (ts *tables) setSets(u *unit, p *port, f *familySet, n needs) (problems []objects.Problem) {
	f.topology, f.candidates = services.TopologyNone, nil
	for which := range f.sets {
		if !n.sets[which] {
			ts.dropSet(&f.sets[which])
			continue
		}
		chosen, empty, topology := choose(f.members, which == localSet, ts.scratch.refs[:0])
		ts.scratch.refs = chosen
		if len(chosen) == 0 && f.ownNode { // other gateways reach them
			empty = services.EmptyDrop
		}
		if which == clusterSet {
			f.topology = topology
		}
		if p.check.Kind != objects.CheckNone {
			f.candidates = appendAddrs(f.candidates, f.members, chosen)
		}
		left, why := healthy(f.members, chosen, f.down)
		if chosen = left; why != "" {
			problem := objects.Problem{Object: u.service.ID, Severity: objects.Warning, Message: why}
			if !slices.Contains(problems, problem) {
				problems = append(problems, problem)
			}
		}
		if over := len(chosen) - maglev.MaxNames; over > 0 {
			chosen = chosen[:maglev.MaxNames]
			problem := objects.Problem{Object: u.service.ID, Severity: objects.Refused,
				Message: fmt.Sprintf("%d endpoints are more than the %d a service port can have", len(chosen)+over,
					maglev.MaxNames)}
			if !slices.Contains(problems, problem) {
				problems = append(problems, problem)
			}
		}
		ts.setSet(u, p, f, which,
			&services.EndpointSet{Backends: chosen, Weights: weightsOf(f.members, chosen), Empty: empty})
	}
	return problems
}

// setSet makes a set equal to want, and copies want.Backends. It builds a table only if neither the
// former set nor the port's other set has it.
func (ts *tables) setSet(u *unit, p *port, f *familySet, which int, want *services.EndpointSet) {
	kind, now := tableOf(p.scheduler), &f.sets[which]
	if now.is(kind, want) {
		return
	}
	other := &f.sets[clusterSet]
	if which == localSet && other.is(kind, want) && other.deferred == nil {
		ts.store.share(other.table)
		ts.dropSet(now)
		*now = *other
		return
	}
	if now.set != nil && slices.Equal(now.set.Backends, want.Backends) {
		want.Backends = now.set.Backends
	} else {
		want.Backends = slices.Clone(want.Backends)
	}
	if ts.deferring && ts.defers(kind.slotsOf(want)) {
		family := 0
		if f == &p.families[1] {
			family = 1
		}
		ts.deferTable(ts.job(u, p, family, which, kind, want), want)
		return
	}
	var table *sharedTable
	if !ts.comparing || !ts.large(kind, want) {
		table = ts.buildTable(p, f, kind, want)
	}
	if table != nil {
		want.Table = table.slots
	}
	ts.dropSet(now)
	*now = chosenSet{set: want, table: table, kind: kind}
}

// dropSet removes a set, and releases its table.
func (ts *tables) dropSet(c *chosenSet) {
	ts.store.release(c.table)
	c.deferred.drop()
	*c = chosenSet{}
}

func (ts *tables) buildTable(p *port, f *familySet, kind tableKind, s *services.EndpointSet) *sharedTable {
	return ts.store.get(kind.build(func() []string {
		ts.scratch.names = appendNames(ts.scratch.names[:0], f.members, s.Backends, p.spec.Proto)
		return ts.scratch.names
	}, s.Weights, len(s.Backends), ts.cfg.SelectKey))
}
