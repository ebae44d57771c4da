package compiler

import (
	"cmp"
	"net/netip"
	"reflect"
	"slices"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/steer"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// Config is the compiler's input besides objects.
type Config struct {
	// NodeName is this node's name: the endpoints with this nodeName are local.
	NodeName string
	// LocalAddresses are all of this node's. NodeAddresses are those of them that
	// accept node ports.
	LocalAddresses, NodeAddresses []header.Addr
	// ExternalIPs are what Services may have as external IPs. Empty: all but the addresses of this
	// node, which are LocalAddresses and OtherAddresses.
	ExternalIPs []netip.Prefix
	// OtherAddresses are this node's besides: those that its Node object has, and those of a scope
	// that is not global.
	OtherAddresses []header.Addr
	// DeniedHostPorts are the ports of this node's addresses that no endpoint has.
	DeniedHostPorts []services.PortRange
	// SNAT4 and SNAT6 are source addresses towards backends, SNATPorts their source ports.
	SNAT4, SNAT6 []header.Addr
	SNATPorts    services.PortRange
	// SNATByRoute4 and SNATByRoute6: the route chooses among these addresses.
	SNATByRoute4, SNATByRoute6 bool
	// SelectKey is the hash key of selection and Maglev tables; all gateways have the same.
	SelectKey [2]uint64
	// UnservedPort is what happens to packets for a VIP's port without a service.
	UnservedPort services.UnservedPolicy
	// ResetUnknown: see services.Snapshot.
	ResetUnknown bool

	// ClusterIPs: ClusterIPs are frontends, too.
	ClusterIPs bool
	// ClusterCIDRs are the addresses of pods; empty: no client is known to be a pod.
	ClusterCIDRs []netip.Prefix
	// MasqueradeAll: no client of a ClusterIP keeps its address.
	MasqueradeAll bool
	// StrictSourceRanges: source ranges guard node ports and external IPs, too.
	StrictSourceRanges bool
	// Scheduler is the scheduler of Services without the annotation.
	Scheduler services.Scheduler
	// Limits are those of Services without an annotation for them.
	Limits services.Limits
	// Checks are those of Services without an annotation for them.
	Checks objects.Checks
	// RetryOther: see services.Snapshot.
	RetryOther bool

	// MaxFrontends, MaxAddrs and MaxSources are what the kernel program has room for: frontends
	// with an address, addresses (VIPs and kept sources), kept sources. 0 is no bound.
	MaxFrontends, MaxAddrs, MaxSources int
	// NamespaceShare is the part of each of these, of all backends and of the slots of all tables
	// that the Services of one namespace may use, in percent. 0 is no bound.
	NamespaceShare int
}

// Compiler compiles objects into Snapshots. It keeps what it compiled, so that Compile rebuilds
// only what changed. Its result depends on objects, configuration and drains only, not on the order
// of their arrival, except for the numbers of services and backends. One goroutine uses it.
type Compiler struct {
	cfg    Config
	pods   [2]bool              // by family: ClusterCIDRs has one
	nodes  map[header.Addr]bool // the addresses of this node
	units  map[unitKey]*unit
	byNum  []*unit // by unit.num
	free   []int32 // unit numbers
	owner  map[objects.ObjectID]unitKey
	claims relation[services.FrontendKey]
	uses   relation[header.Addr]
	own    map[header.Addr]ownership
	keep   map[steer.KeepSource]int32
	drains map[Drain]bool
	// checked is what checks say of endpoints, see endpointhealth.go; checkedUnits are those of it
	// that changed since the last compile.
	checked      map[portKey]map[place]standing
	checkedUnits map[unitKey]bool
	// withChecks are the units that have checks; checkEdits counts how often they changed.
	withChecks map[*unit]bool
	checkEdits uint64
	// zones are those of Nodes by name, zone that of the node cfg.NodeName.
	zones map[string]string
	zone  string
	// health is in order of port; healthEdits counts how often it changed.
	health      []HealthCheck
	healthEdits uint64

	problemEdits uint64
	// touched are addresses whose drains changed since the last compile.
	touched  []header.Addr
	tables   tableStore
	ids      identities
	lostPins lostPins
	// queue are the tables to build, see deferred.go; wrongTable is a difference that Check
	// reports. comparing: large tables are not built, as a job compares them.
	deferring bool
	allowance int // slots that this Compile may still build, see BuildAtOnce
	comparing bool
	// inlineSlots is maxInlineSlots, keepFrom is minKept, but in tests.
	inlineSlots, keepFrom int
	queue                 []*TableJob
	wrongTable            string
	// total is the sum of all units' wants; crowded: some units are denied. short are those with an
	// endpoint that got no number.
	total         total
	crowded       bool
	short         map[*unit]bool
	deferProblems bool // DeferProblems
	// deniedBy, if not nil, decides instead of admit: it returns unit.denied and unit.unlisted.
	deniedBy func(unitKey) (denied string, unlisted bool)
	// former are the numbers of the compiler that this one replaces; otherwise nil.
	former *assignments

	snapshot     *services.Snapshot
	problems     []objects.Problem // of all units, in order, when problemEdits was listed
	listed       uint64
	withProblems map[*unit]bool
	read         uint64
	scratch      scratch
	// nextCheck is the unit number that sample begins at.
	nextCheck int
}

// unitKey names a Kubernetes Service.
type unitKey struct{ namespace, name string }

func (k unitKey) compare(o unitKey) int {
	return cmp.Or(cmp.Compare(k.namespace, o.namespace), cmp.Compare(k.name, o.name))
}

// unit is one Service and the EndpointSlices that name it. It is compiled as a whole.
type unit struct {
	num            int32
	key            unitKey
	service        *objects.Service // nil while there are only slices
	slices         []*objects.Slice // by name
	claims         []claim          // by key
	vips           []header.Addr    // the addresses that own counts it for
	held           []services.FrontendKey
	uses           []header.Addr    // its endpoints' addresses, in order, with duplicates
	usesSpare      []header.Addr    // memory for the next uses, where there are many
	usedBy         []*objects.Slice // the slices that have them
	reread         bool             // what endpoints depend on changed, besides their slices
	ports          []*port
	refusedClaims  []objects.Problem // claims refused regardless of other units
	shares         shares
	guard          guard
	fits           int // the first so many of the Service's ports are served
	wants          wants
	won, lostAddrs int    // see charge; valid only while some units are denied
	unlisted       bool   // its claims are not kept (list)
	denied         string // why the unit is not served; "" if it is admitted
	problems       []objects.Problem
	health         HealthCheck // Port 0: none
	checks         []*CheckedPort
}

// New returns a Compiler that has compiled nothing.
func New(cfg Config) *Compiler {
	c := &Compiler{
		cfg:          cfg,
		units:        map[unitKey]*unit{},
		owner:        map[objects.ObjectID]unitKey{},
		claims:       newRelation[services.FrontendKey](),
		uses:         newRelation[header.Addr](),
		own:          map[header.Addr]ownership{},
		keep:         map[steer.KeepSource]int32{},
		drains:       map[Drain]bool{},
		checked:      map[portKey]map[place]standing{},
		checkedUnits: map[unitKey]bool{},
		withChecks:   map[*unit]bool{},
		zones:        map[string]string{},
		withProblems: map[*unit]bool{},
		short:        map[*unit]bool{},
		total:        newTotal(),
		tables:       tableStore{},
		ids:          newIdentities(),
		inlineSlots:  maxInlineSlots,
		keepFrom:     minKept,
	}
	r := c.begin()
	r.configure(Config{}, &c.cfg)
	r.finish()
	return c
}

// Compile applies changes. It returns the snapshot, which is the same one if nothing in it changes;
// every outstanding Problem (without Source); and what the kernel program must open and close.
func (c *Compiler) Compile(ch *objects.Changes) (*services.Snapshot, []objects.Problem, *steer.Change) {
	r := c.begin()
	for _, n := range ch.Nodes {
		r.setNode(n.ID, n.Now)
	}
	for _, s := range ch.Services {
		r.setService(s.ID, s.Now)
	}
	for _, s := range ch.Slices {
		r.setSlice(s.ID, s.Now)
	}
	c.read = max(c.read, ch.Read)
	return r.finish()
}

// Configure changes the configuration.
func (c *Compiler) Configure(cfg Config) (*services.Snapshot, []objects.Problem, *steer.Change) {
	if reflect.DeepEqual(c.cfg, cfg) {
		return c.snapshot, c.Problems(), &steer.Change{} // callers do not know whether anything has changed
	}
	r := c.begin()
	old := c.cfg
	c.cfg = cfg
	r.configure(old, &c.cfg)
	return r.finish()
}

// Full compiles a state from scratch, with the same configuration and drains. Its result equals
// that of any sequence of changes that leads to the state.
func (c *Compiler) Full(s *objects.State) (*services.Snapshot, []objects.Problem, *steer.Change) {
	fresh := c.full(s)
	return fresh.snapshot, fresh.Problems(), fresh.Steer()
}

func (c *Compiler) full(s *objects.State) *Compiler {
	fresh := New(c.cfg)
	for d := range c.drains {
		fresh.drains[d] = true
	}
	fresh.checked = c.checked
	fresh.Compile(&s.All)
	return fresh
}

// Steer returns all that the kernel program must have open.
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
	for k := range c.keep {
		s.Open.KeepSources = append(s.Open.KeepSources, k)
	}
	s.Open.Sort()
	return s
}

// Snapshot returns the snapshot of the last compile.
func (c *Compiler) Snapshot() *services.Snapshot { return c.snapshot }

// Config returns the configuration. The caller must not write to its lists.
func (c *Compiler) Config() Config { return c.cfg }

// Problems returns the problems of the last compile, which the caller must not modify; ProblemEdits
// counts how often they changed.
func (c *Compiler) Problems() []objects.Problem {
	if c.listed != c.problemEdits {
		c.problems, c.listed = c.gather(), c.problemEdits
	}
	return c.problems
}
func (c *Compiler) ProblemEdits() uint64 { return c.problemEdits }

// DeferProblems: with true no compile returns problems, and Problems lists them when it is called.
// To list thousands of them takes longer than most changes.
func (c *Compiler) DeferProblems(on bool) { c.deferProblems = on }

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

// unit returns the unit of a Service, making it if needed.
func (c *Compiler) unit(k unitKey) *unit {
	if u := c.units[k]; u != nil {
		return u
	}
	u := &unit{key: k}
	if c.deniedBy != nil {
		u.denied, u.unlisted = c.deniedBy(k)
	}
	if n := len(c.free); n > 0 {
		u.num, c.free = c.free[n-1], c.free[:n-1]
		c.byNum[u.num] = u
	} else {
		u.num = int32(len(c.byNum))
		c.byNum = append(c.byNum, u)
	}
	c.units[k] = u
	return u
}

// forget removes a unit without a Service and slices.
func (c *Compiler) forget(u *unit) {
	delete(c.units, u.key)
	delete(c.short, u)
	c.byNum[u.num] = nil
	c.free = append(c.free, u.num)
}

// gather returns all problems in order.
func (c *Compiler) gather() []objects.Problem {
	var all []objects.Problem
	for u := range c.withProblems {
		all = append(all, u.problems...)
	}
	slices.SortFunc(all, objects.CompareProblems)
	return all
}
