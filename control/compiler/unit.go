package compiler

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"slices"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/steer"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// unit is one Service and the EndpointSlices that name it. It is compiled as a whole.
type unit struct {
	num            int32
	key            unitKey
	service        *objects.Service // nil while there are only slices
	slices         []*objects.Slice // by name
	claims         []claim          // by key
	vips           []header.Addr    // as counted in addresses.own
	held           []services.FrontendKey
	uses           []header.Addr    // its endpoints' addresses, in order, with duplicates
	usesSpare      []header.Addr    // memory for the next uses, where there are many
	usedBy         []*objects.Slice // the slices that have them
	reread         bool             // the slices must be read again, because weights or the configuration changed
	ports          []*port
	refusedClaims  []objects.Problem // claims refused regardless of other units
	shares         shares
	guard          guard
	fits           int // number of the Service's ports that are served, from the first on
	wants          wants
	won, lostAddrs int    // see charge; valid only while some units are denied
	unlisted       bool   // its claims are not kept (list)
	denied         string // why the unit is not served; "" if it is admitted
	problems       []objects.Problem
	others         []objects.Problem // the problems except lost frontends; nil if none is lost
	// moved are frontends that came or went since the unit was built. Its endpoints there must be
	// read again.
	moved map[services.FrontendKey]bool
}

// port is a compiled service port.
type port struct {
	id       services.ServiceID
	spec     objects.ServicePort
	service  *services.Service // as it is in the snapshot
	families [2]familySet

	identity  uint64
	scheduler services.Scheduler
	check     objects.Check
	hasCheck  bool
}

// familySet has a service port's endpoints of one family.
type familySet struct {
	members []member // in order of address and port
	spare   []member // the members before the last build, if many: memory for the next build
	sets    [numSets]chosenSet
	down    int // members that are down
	// ownNode: the Service is direct, and this gateway's node has usable endpoints, which are not
	// among the members.
	ownNode bool
	// candidates are the members that a set could give new flows to if all were up, in order; only
	// set for a port with a check.
	candidates []netip.AddrPort
	topology   services.Topology // the hints that the cluster set follows
	keep       keepMode
	merged     merged
}

// chosenSet is an endpoint set, its table and the kind of the table.
type chosenSet struct {
	set   *services.EndpointSet
	table *sharedTable
	kind  tableKind
	// deferred: the table is an older one, or none, until the set's own is built.
	deferred *deferral
}

// deferral is a set's table that is yet to be built.
type deferral struct {
	queued   *TableJob             // of the newest version; nil if the job in work is for that
	building *TableJob             // or nil
	base     []services.BackendRef // by position in the table in force: the backends when it was built
}

// TableJob is a table to build, for a set in one of its versions. Build may be called once, on any
// goroutine; the compiler owns the other fields.
type TableJob struct {
	unit   *unit
	port   *port
	family int
	which  int
	verify *sharedTable // not nil: the result must equal this table if the set has not changed

	// The inputs are immutable: a set that changes gets new ones. snapshot has the chosen backends.
	kind     tableKind
	key      [2]uint64
	snapshot *services.Snapshot
	chosen   []services.BackendRef
	weights  []uint16

	dropped bool // the result is ignored

	slots []uint16
	sum   uint64
	wrong bool // differs from verify
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

// kindOf returns the field by which a unit claims a frontend.
func (u *unit) kindOf(k services.FrontendKey) services.FrontendKind {
	i, _ := slices.BinarySearchFunc(u.claims, k,
		func(c claim, k services.FrontendKey) int { return steer.CompareKeys(c.key, k) })
	return u.claims[i].kind
}

// eachPort calls f for each port of each slice that the unit was built with. A port may occur in
// many slices.
func (u *unit) eachPort(f func(endpointPort)) {
	for _, s := range u.usedBy {
		for _, p := range s.Ports {
			f(endpointPort{p.Port, p.Proto})
		}
	}
}

// objectProblems returns the problems of the unit's objects that depend on no other object.
func (u *unit) objectProblems() (problems []objects.Problem) {
	if u.service != nil {
		for _, f := range u.service.Problems {
			problems = append(problems, f.Problem(u.service.ID))
		}
	}
	for _, s := range u.slices {
		for _, f := range s.Problems {
			problems = append(problems, f.Problem(s.ID))
		}
	}
	return problems
}

// denials returns the problem of a Service that is denied.
func (u *unit) denials() []objects.Problem {
	return []objects.Problem{{Object: u.service.ID, Severity: objects.Refused, Reason: objects.ReasonNoRoom,
		Message: "is not served: " + u.denied}}
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

// dropSets makes the next build choose every set again and build every table again.
func (u *unit) dropSets() {
	for _, p := range u.ports {
		for f := range p.families {
			for which := range p.families[f].sets {
				s := &p.families[f].sets[which]
				s.set = nil
				s.deferred.drop()
				s.deferred = nil
			}
		}
	}
}

// wanted returns the ports that the unit looks for in its slices.
func (u *unit) wanted() map[portID]bool {
	ids := make(map[portID]bool, len(u.ports))
	for _, p := range u.ports {
		ids[p.key()] = true
	}
	return ids
}

func (p *port) key() portID { return portID{p.spec.Name, p.spec.Proto} }

func (j *TableJob) set() *chosenSet { return &j.port.families[j.family].sets[j.which] }

// drop marks the jobs of a deferral, so that their results are ignored.
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

func (c *chosenSet) is(kind tableKind, want *services.EndpointSet) bool {
	return c.set != nil && c.kind == kind && c.set.Empty == want.Empty &&
		slices.Equal(c.set.Backends, want.Backends) && slices.Equal(c.set.Weights, want.Weights)
}

func (c *chosenSet) backends() []services.BackendRef {
	if c.set == nil {
		return nil
	}
	return c.set.Backends
}

// serviceIdentity is a service port's number, the same on every gateway and in every version: the
// first eight bytes of the SHA-256 of "namespace/name:port name/protocol", most significant byte
// first. So authors of Services cannot choose names that collide.
func serviceIdentity(k unitKey, p objects.ServicePort) uint64 {
	sum := sha256.Sum256([]byte(k.namespace + "/" + k.name + ":" + p.Name + "/" + objects.ProtocolName(p.Proto)))
	return binary.BigEndian.Uint64(sum[:8])
}
