package compiler

import (
	"fmt"
	"math/bits"
	"slices"

	"sluice.dev/sluice/control/maglev"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/steer"
	"sluice.dev/sluice/fastpath/services"
)

// A table of 65,000 endpoints has 4 million slots and takes a third of a second. Once tables are
// deferred, a larger one than maxInlineSlots is built by another goroutine, one at a time:
//
//	Compile ──▶ queue of TableJobs ──NextTable──▶ Build (any goroutine) ──Install──▶ snapshot
//
// Until then the set has the table before, in which the positions of backends that it lost stand
// for others (EndpointSet.Named): what ends gets no new flows from the very next snapshot on, and
// what is new gets its share with its table. A set without a former table has a slot for each
// backend, so weights do not count yet.
//
// A set has at most one job in the queue, which is that of its newest version. A result is
// installed even if the set has changed while it was built, or one that always changes would never
// get a table; jobs of one set are built in order, so a table never gives way to an older one.

// maxInlineSlots is the largest table that is built in Compile: about a millisecond, of up to 160
// endpoints.
const maxInlineSlots = 16_001

// maxInlineOfUnit bounds the slots of a Service's tables that are built in one Compile: a Service
// may have many ports.
const maxInlineOfUnit = 8 * maxInlineSlots

// deferral is a set's table that is yet to be built.
type deferral struct {
	queued   *TableJob             // of the newest version; nil if the job that is built is of that
	building *TableJob             // or nil
	base     []services.BackendRef // what the positions in the table in force meant when it was built
}

// TableJob is a table to build, of a set as it was at one time. Build may be called on any
// goroutine, once; the rest is the compiler's.
type TableJob struct {
	unit   *unit
	port   *port
	family int
	which  int
	verify *sharedTable // not nil: the result must be this table, of a set that has not changed

	// The inputs are immutable: a set that changes gets new ones. snapshot has the chosen backends.
	kind     tableKind
	key      [2]uint64
	snapshot *services.Snapshot
	chosen   []services.BackendRef
	weights  []uint16

	dropped bool // nobody wants it any more

	slots []uint16
	sum   uint64
	wrong bool // differs from verify
}

// DeferTables makes the next compiles defer large tables, or not. Without it they are not deferred.
func (c *Compiler) DeferTables(on bool) { c.deferring = on }

// BuildAtOnce lets the next Compile build large tables of so many slots in all. So after a
// restart a set has its table from the first packet on; but packets wait for the first snapshot,
// and one namespace must not hold up all others.
func (c *Compiler) BuildAtOnce(slots int) { c.allowance = slots }

// defers reports whether a table of so many slots is deferred.
func (r *run) defers(slots int) bool {
	if slots <= r.allowance {
		r.allowance -= slots
		return false
	}
	r.inlined += slots
	return slots > r.inlineSlots || r.inlined > maxInlineOfUnit
}

// NextTable returns a table that is to be built next; nil if there is none. The caller builds it
// and gives it to Install before it asks for another.
func (c *Compiler) NextTable() *TableJob {
	for len(c.queue) > 0 {
		j := c.queue[0]
		c.queue[0] = nil
		c.queue = c.queue[1:]
		if j.dropped || !c.wants(j) {
			continue
		}
		if d := j.set().deferred; j.verify == nil {
			d.queued, d.building = nil, j
		}
		j.snapshot = c.snapshot
		return j
	}
	c.queue = nil
	return nil
}

// wants reports whether a job that is not built yet is still of a set in the snapshot.
func (c *Compiler) wants(j *TableJob) bool {
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

// Install puts a built table into force. It returns what Compile returns. A table that was built to
// be compared, and differs, is reported by the next Check.
func (c *Compiler) Install(j *TableJob) (*services.Snapshot, []objects.Problem, *steer.Change) {
	r := c.begin()
	if j.verify != nil {
		if j.wrong && c.units[j.unit.key] == j.unit && c.wants(j) {
			c.wrongTable = fmt.Sprintf("Service %s/%s: a table of %d slots differs", j.unit.key.namespace,
				j.unit.key.name, len(j.slots))
		}
		return r.finish()
	}
	r.install(j)
	return r.finish()
}

func (j *TableJob) set() *chosenSet { return &j.port.families[j.family].sets[j.which] }

func (r *run) install(j *TableJob) {
	c := j.set()
	d := c.deferred
	if d == nil || d.building != j || r.units[j.unit.key] != j.unit {
		return // the set is gone, or got a table that is not deferred
	}
	d.building = nil
	before := c.table
	c.table = r.tables.add(j.slots, j.sum)
	r.tables.release(before)
	now := *c.set
	if d.queued == nil {
		c.deferred = nil
		now.Table, now.Named = c.table.slots, nil
	} else {
		d.base = j.chosen
		r.substitute(&now, c.table, d.base)
	}
	c.set = &now
	// What is equal is one set, as it is when both are built at once.
	f := &j.port.families[j.family]
	if a, b := &f.sets[clusterSet], &f.sets[localSet]; a.set != nil && b.set != nil && a.deferred == nil &&
		b.deferred == nil && a.set != b.set && b.is(a.kind, a.set) {
		r.tables.release(b.table)
		r.tables.share(a.table)
		*b = *a
	}
	r.setFrontends(j.unit)
}

// deferTable gives the set want, which is changed, the table in force until its own is built, and
// queues that.
func (r *run) deferTable(j *TableJob, want *services.EndpointSet) {
	c := j.set()
	d := c.deferred
	next := chosenSet{set: want, kind: j.kind}
	switch {
	case d == nil && (c.set == nil || c.kind != j.kind || c.table == nil):
		r.tables.release(c.table)
		d = &deferral{}
	case d == nil:
		d = &deferral{base: c.set.Backends}
		next.table = c.table
	case c.kind != j.kind:
		r.tables.release(c.table)
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
		r.queue = append(r.queue, j)
	}
	next.deferred = d
	*c = next
	if c.table != nil {
		r.substitute(want, c.table, d.base)
	}
}

// drop makes the jobs of a deferral be ignored.
func (d *deferral) drop() {
	if d == nil {
		return
	}
	for _, j := range []*TableJob{d.queued, d.building} {
		if j != nil {
			j.dropped = true
		}
	}
}

// substitute gives a set an older table, whose positions meant base. A position whose backend is
// not in the set stands for one of the set's, which the table chooses: its shares hold. The choice
// depends on the table alone, so that gateways that have seen the same choose alike.
func (r *run) substitute(s *services.EndpointSet, table *sharedTable, base []services.BackendRef) {
	in := r.scratch.chosen()
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
		for range 16 { // with a half of the backends gone, one position in 65,536 needs more
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

// large reports whether a set's table is one that is deferred.
func (c *Compiler) large(kind tableKind, s *services.EndpointSet) bool {
	return slotsOf(kind, s) > c.inlineSlots
}

// slotsOf is the size of a set's table.
func slotsOf(kind tableKind, s *services.EndpointSet) int {
	if len(s.Backends) == 0 || kind == noTable || kind == turnTable && s.Weights == nil {
		return 0
	}
	return maglev.Size(len(s.Backends))
}

// waits reports whether a table of a unit is yet to be built.
func (u *unit) waits() bool {
	for _, p := range u.ports {
		for f := range p.families {
			for which := range p.families[f].sets {
				if p.families[f].sets[which].deferred != nil {
					return true
				}
			}
		}
	}
	return false
}

// verifyTables queues builds of a unit's large tables, to compare them.
func (c *Compiler) verifyTables(u *unit) {
	for _, p := range u.ports {
		for f := range p.families {
			for which := range p.families[f].sets {
				s := &p.families[f].sets[which]
				if s.table == nil || s.set == nil || !c.large(s.kind, s.set) {
					continue
				}
				j := c.job(u, p, f, which, s.kind, s.set)
				j.verify = s.table
				c.queue = append(c.queue, j)
			}
		}
	}
}

func (c *Compiler) job(u *unit, p *port, family, which int, kind tableKind, s *services.EndpointSet) *TableJob {
	return &TableJob{unit: u, port: p, family: family, which: which, kind: kind, key: c.cfg.SelectKey,
		chosen: s.Backends, weights: s.Weights}
}
