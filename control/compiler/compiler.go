package compiler

import (
	"fmt"
	"reflect"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/steer"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// Compiler compiles objects into Snapshots. It keeps its results, so that Compile builds only
// changed parts again. The result depends on objects, configuration and drains only, not on the
// order of their arrival, except for the numbers of services and backends. One goroutine uses it.
type Compiler struct{ *state }

// New returns a Compiler without objects.
func New(cfg Config) *Compiler {
	c := &Compiler{newState(cfg)}
	r := c.begin()
	r.configure(&Config{})
	r.finish()
	return c
}

// Compile applies changes. It returns the snapshot, which is the same one if nothing in it changes;
// every outstanding Problem (without Source); and the frontends, addresses and sources that the
// kernel program must open and close.
func (c *Compiler) Compile(ch *objects.Changes) (*services.Snapshot, []objects.Problem, *steer.Change) {
	r := c.begin()
	for _, n := range ch.Nodes {
		r.zones.setNode(n.ID, n.Now)
		r.nodes.set(n.ID, n.Now)
	}
	for _, s := range ch.Services {
		r.setService(s.ID, s.Now)
	}
	for _, s := range ch.Slices {
		r.units.setSlice(s.ID, s.Now)
	}
	c.read = max(c.read, ch.Read)
	return r.finish()
}

// Configure changes the configuration.
func (c *Compiler) Configure(cfg Config) (*services.Snapshot, []objects.Problem, *steer.Change) {
	if reflect.DeepEqual(c.cfg.Config, cfg) {
		return c.snapshot, c.Problems(), &steer.Change{} // callers do not know whether anything has changed
	}
	r := c.begin()
	old := c.cfg.Config
	c.cfg.set(cfg)
	r.configure(&old)
	return r.finish()
}

// Full compiles a state from scratch, with the same configuration and drains. The result equals the
// result of any sequence of changes that leads to the state.
func (c *Compiler) Full(s *objects.State) (*services.Snapshot, []objects.Problem, *steer.Change) {
	fresh := c.full(s)
	return fresh.snapshot, fresh.Problems(), fresh.Steer()
}

func (c *Compiler) full(s *objects.State) *Compiler {
	fresh := New(c.cfg.Config)
	for d := range c.drains.set {
		fresh.drains.set[d] = true
	}
	fresh.endpointChecks.of = c.endpointChecks.of
	fresh.Compile(&s.All)
	return fresh
}

// Steer returns everything that must be open in the kernel program.
func (c *Compiler) Steer() *steer.Change {
	s := &steer.Change{}
	c.snapshot.Frontends(func(f *services.Frontend) bool {
		s.Open.AddFrontend(f.Key)
		return true
	})
	c.snapshot.Addrs(func(a header.Addr, flags services.AddrFlags) bool {
		s.Open.Addrs = append(s.Open.Addrs, steer.OwnAddr{Addr: a, Flags: flags})
		return true
	})
	for k := range c.kept.count {
		s.Open.KeepSources = append(s.Open.KeepSources, k)
	}
	s.Open.Sort()
	return s
}

// Snapshot returns the snapshot of the last compile.
func (c *Compiler) Snapshot() *services.Snapshot { return c.snapshot }

// Config returns the configuration. The caller must not write to its lists.
func (c *Compiler) Config() Config { return c.cfg.Config }

// Read returns the greatest Changes.Read that was compiled.
func (c *Compiler) Read() uint64 { return c.read }

// Watch makes the compiler call o for each number that it assigns and frees. It must be called
// before the first compile.
func (c *Compiler) Watch(o Owners) { c.ids.owners = o }

// WatchFlows sets the function that reports whether flows still count under a backend's number. The
// compiler frees such a number later. It calls busy on its own goroutine.
func (c *Compiler) WatchFlows(busy func(services.BackendRef) bool) { c.ids.busy = busy }

// Release frees the numbers that only snapshots older than oldest have. No such snapshot may be in
// use any more.
func (c *Compiler) Release(oldest uint64) {
	c.ids.release(oldest)
	if c.lostPins.notify != nil {
		c.lostPins.release(oldest)
	}
}

// Starved reports whether endpoints lack numbers although numbers are free.
func (c *Compiler) Starved() bool { return c.ids.starved() }

// Served reports whether a Service is served.
func (c *Compiler) Served(namespace, name string) bool {
	u := c.units.byKey[unitKey{namespace, name}]
	return u != nil && u.service.Served() && u.denied == ""
}

// Slice returns the version of an EndpointSlice that is compiled; nil if there is none.
func (c *Compiler) Slice(id objects.ObjectID) *objects.Slice { return c.units.slice(id) }

// DeferTables sets whether later compiles defer large tables. By default they do not.
func (c *Compiler) DeferTables(on bool) { c.tables.deferring = on }

// BuildAtOnce lets the next Compile build large tables with up to slots slots in total. So after a
// restart a set has its table from the first packet on. The caller bounds the number because
// packets wait for the first snapshot, and one namespace must not delay all others.
func (c *Compiler) BuildAtOnce(slots int) { c.tables.allowance = slots }

// NextTable returns the next table to build; nil if there is none. The caller builds it and calls
// Install before it calls NextTable again.
func (c *Compiler) NextTable() *TableJob {
	j := c.tables.next()
	if j != nil {
		j.snapshot = c.snapshot
	}
	return j
}

// Install puts a built table into force, and returns the results of a Compile. If the table was
// built to verify another one and differs from it, the next Check reports that.
func (c *Compiler) Install(j *TableJob) (*services.Snapshot, []objects.Problem, *steer.Change) {
	r := c.begin()
	if j.verify != nil {
		if j.wrong && c.units.byKey[j.unit.key] == j.unit && c.tables.wants(j) {
			c.tables.wrong = fmt.Sprintf("Service %s/%s: a table of %d slots differs", j.unit.key.namespace,
				j.unit.key.name, len(j.slots))
		}
		return r.finish()
	}
	if c.units.byKey[j.unit.key] == j.unit && c.tables.install(j) {
		r.setFrontends(j.unit)
	}
	return r.finish()
}
