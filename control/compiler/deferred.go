package compiler

import (
	"math/bits"
	"slices"

	"sluice.dev/sluice/fastpath/services"
)

// A table of 65,000 endpoints has 4 million slots and takes a third of a second. Once tables are
// deferred, another goroutine builds the tables that are larger than maxInlineSlots, one at a time:
//
//	Compile ──▶ queue of TableJobs ──NextTable──▶ Build (any goroutine) ──Install──▶ snapshot
//
// Until then the set keeps its former table, in which backends of the set take the positions of
// backends that left it (EndpointSet.Named). So a backend that ends gets no new flows from the very
// next snapshot on, and a new backend gets its share with the new table. A set without a former
// table has a slot for each backend, so weights do not count yet.
//
// A set has at most one job in the queue, for its newest version. A result is installed even if the
// set has changed since; otherwise a set that always changes would never get a table. Jobs of one
// set are built in order, so no older table replaces a newer one.

// maxInlineSlots is the largest table that is built in Compile: about a millisecond, of up to 160
// endpoints.
const maxInlineSlots = 16_001

// maxInlineOfUnit bounds the slots of a Service's tables that are built in one Compile: a Service
// may have many ports.
const maxInlineOfUnit = 8 * maxInlineSlots

// tables builds the tables of sets.
type tables struct {
	cfg     *settings
	scratch *scratch
	store   tableStore
	queue   []*TableJob // to build later

	deferring bool
	allowance int // slots that this Compile may still build, see BuildAtOnce
	inlined   int // slots of the unit that is built
	// inlineSlots is maxInlineSlots, but in tests.
	inlineSlots int
	// comparing: large tables are not built, as a job compares them.
	comparing bool
	wrong     string // a difference that Check reports
}

// defers reports whether a table of slots slots is deferred.
func (ts *tables) defers(slots int) bool {
	if slots <= ts.allowance {
		ts.allowance -= slots
		return false
	}
	ts.inlined += slots
	return slots > ts.inlineSlots || ts.inlined > maxInlineOfUnit
}

// next removes the next table to build from the queue; nil if there is none.
func (ts *tables) next() *TableJob {
	for len(ts.queue) > 0 {
		j := ts.queue[0]
		ts.queue[0] = nil
		ts.queue = ts.queue[1:]
		if j.dropped || !ts.wants(j) {
			continue
		}
		if d := j.set().deferred; j.verify == nil {
			d.queued, d.building = nil, j
		}
		return j
	}
	ts.queue = nil
	return nil
}

// wants reports whether a job in the queue is still for a set in the snapshot.
func (ts *tables) wants(j *TableJob) bool {
	s := j.set()
	if j.verify == nil {
		return s.deferred != nil && s.deferred.queued == j
	}
	return s.deferred == nil && s.table == j.verify && s.set != nil && slices.Equal(s.set.Backends, j.chosen) &&
		slices.Equal(s.set.Weights, j.weights)
}

// Build builds the table.
func (j *TableJob) Build() {
	j.slots = j.kind.build(j.names, j.weights, len(j.chosen), j.key)
	if j.verify != nil {
		j.wrong = !slices.Equal(j.slots, j.verify.slots)
		return
	}
	j.sum = checksum(j.slots)
}

func (j *TableJob) names() []string {
	names := make([]string, len(j.chosen))
	for i, ref := range j.chosen {
		b := j.snapshot.Backend(ref)
		names[i] = endpointName(b.Addr, b.Port, b.Proto)
	}
	return names
}

// install puts a built table into force. It returns false if the set is gone, or has meanwhile got
// a table that was not deferred.
func (ts *tables) install(j *TableJob) bool {
	c := j.set()
	d := c.deferred
	if d == nil || d.building != j {
		return false
	}
	d.building = nil
	before := c.table
	c.table = ts.store.add(j.slots, j.sum)
	ts.store.release(before)
	now := *c.set
	if d.queued == nil {
		c.deferred = nil
		now.Table, now.Named = c.table.slots, nil
	} else {
		d.base = j.chosen
		ts.substitute(&now, c.table, d.base)
	}
	c.set = &now
	// Equal sets share one EndpointSet, as after a build of both.
	f := &j.port.families[j.family]
	if a, b := &f.sets[clusterSet], &f.sets[localSet]; a.set != nil && b.set != nil && a.deferred == nil &&
		b.deferred == nil && a.set != b.set && b.is(a.kind, a.set) {
		ts.store.release(b.table)
		ts.store.share(a.table)
		*b = *a
	}
	return true
}

// deferTable sets a set to want, and queues the job for its table. Until that is built, the set
// uses the table in force.
func (ts *tables) deferTable(j *TableJob, want *services.EndpointSet) {
	c := j.set()
	d := c.deferred
	next := chosenSet{set: want, kind: j.kind}
	switch {
	case d == nil && (c.set == nil || c.kind != j.kind || c.table == nil):
		ts.store.release(c.table)
		d = &deferral{}
	case d == nil:
		d = &deferral{base: c.set.Backends}
		next.table = c.table
	case c.kind != j.kind:
		ts.store.release(c.table)
		d.drop()
		d = &deferral{}
	default:
		next.table = c.table
	}
	if d.queued != nil {
		// It keeps its place in the queue.
		*d.queued = *j
	} else {
		d.queued = j
		ts.queue = append(ts.queue, j)
	}
	next.deferred = d
	*c = next
	if c.table != nil {
		ts.substitute(want, c.table, d.base)
	}
}

// substitute gives a set an older table, whose positions refer to the backends in base. A position
// whose backend is not in the set is replaced by one of the set's backends, which the table itself
// selects: so shares stay in proportion. The selection depends on the table alone, so gateways with
// the same table select alike.
func (ts *tables) substitute(s *services.EndpointSet, table *sharedTable, base []services.BackendRef) {
	in := ts.scratch.chosen()
	for _, ref := range s.Backends {
		in[ref.Index()] = ref
	}
	s.Table, s.Named = table.slots, base
	own := false
	for i, ref := range base {
		if in[ref.Index()] == ref {
			continue
		}
		h := uint64(i)
		sub := services.BackendRef(0)
		for range 16 { // if half of the backends are gone, one position in 65,536 needs more attempts
			h = mix(h)
			slot, _ := bits.Mul64(h, uint64(len(table.slots)))
			if t := base[table.slots[slot]]; in[t.Index()] == t {
				sub = t
				break
			}
		}
		if sub == 0 {
			n, _ := bits.Mul64(mix(h), uint64(len(s.Backends)))
			sub = s.Backends[n]
		}
		if !own {
			s.Named, own = slices.Clone(base), true
		}
		s.Named[i] = sub
	}
	for _, ref := range s.Backends {
		in[ref.Index()] = 0
	}
}

// mix is the finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// large reports whether the table of a set is deferred because of its size.
func (ts *tables) large(kind tableKind, s *services.EndpointSet) bool {
	return kind.slotsOf(s) > ts.inlineSlots
}

// verifyTables queues builds of a unit's large tables, to compare the results with the tables in
// force.
func (ts *tables) verifyTables(u *unit) {
	for _, p := range u.ports {
		for f := range p.families {
			for which := range p.families[f].sets {
				s := &p.families[f].sets[which]
				if s.table == nil || s.set == nil || !ts.large(s.kind, s.set) {
					continue
				}
				j := ts.job(u, p, f, which, s.kind, s.set)
				j.verify = s.table
				ts.queue = append(ts.queue, j)
			}
		}
	}
}

func (ts *tables) job(u *unit, p *port, family, which int, kind tableKind, s *services.EndpointSet) *TableJob {
	return &TableJob{unit: u, port: p, family: family, which: which, kind: kind, key: ts.cfg.SelectKey,
		chosen: s.Backends, weights: s.Weights}
}
