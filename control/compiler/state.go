package compiler

import (
	"sluice.dev/sluice/control/steer"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// state has the data that a Compiler keeps between compiles, by owner. An owner has pointers to
// other owners, so a state must not be copied.
type state struct {
	cfg       settings
	units     units
	zones     zones
	nodes     nodes
	addrs     addresses
	kept      keptSources
	contest   contest
	admission admission
	ids       numbers
	tables    tables

	// Their exported methods are the Compiler's.
	drains
	endpointChecks
	healthChecks
	lostPins
	problems

	snapshot *services.Snapshot
	read     uint64
	scratch  scratch
	keepFrom int // minKept, but in tests
	// nextCheck is the unit number that sample begins at.
	nextCheck int
}

func newState(cfg Config) *state {
	s := &state{keepFrom: minKept}
	s.cfg.set(cfg)
	s.units = newUnits()
	s.zones = zones{cfg: &s.cfg, units: &s.units, byName: map[string]string{}}
	s.nodes = nodes{cfg: &s.cfg, units: &s.units, byName: map[string]header.Addr{}}
	s.addrs = newAddresses(&s.units)
	s.kept = keptSources{count: map[steer.KeepSource]int32{}}
	s.contest = contest{cfg: &s.cfg, units: &s.units, addrs: &s.addrs, claims: newRelation[services.FrontendKey](),
		stale: map[*unit]bool{}, behind: map[*unit]bool{}}
	s.admission = admission{cfg: &s.cfg, units: &s.units, nodes: &s.nodes, contest: &s.contest, total: newTotal()}
	s.ids = numbers{identities: newIdentities(), short: map[*unit]bool{}}
	s.tables = tables{cfg: &s.cfg, scratch: &s.scratch, store: tableStore{}, inlineSlots: maxInlineSlots}
	s.drains = drains{units: &s.units, addrs: &s.addrs, set: map[Drain]bool{}}
	s.endpointChecks = endpointChecks{of: map[portKey]map[place]healthState{}, changed: map[unitKey]bool{},
		ports: map[*unit][]*CheckedPort{}}
	s.healthChecks = healthChecks{of: map[*unit]HealthCheck{}}
	s.problems = problems{units: map[*unit]bool{}}
	s.end()
	return s
}

// run is one compile: it changes the state and makes a draft of the next snapshot.
type run struct {
	*state
	draft
}

func (s *state) begin() *run { return &run{s, newDraft(s.snapshot)} }

// end empties the maps of a compile.
func (s *state) end() {
	s.units.dirty = emptied(s.units.dirty)
	s.contest.changed, s.contest.winners = emptied(s.contest.changed), emptied(s.contest.winners)
	s.addrs.before = emptied(s.addrs.before)
	s.kept.delta = emptied(s.kept.delta)
}

// emptied returns an empty map: m itself if it is small, so that the memory for a large change is
// not kept.
func emptied[K comparable, V any](m map[K]V) map[K]V {
	if m == nil || len(m) > 64 {
		return map[K]V{}
	}
	clear(m)
	return m
}
