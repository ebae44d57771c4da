package compiler

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"

	"sluice.dev/sluice/control/maglev"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/fastpath/services"
)

// A service port has up to two endpoint sets in each family.
const (
	clusterSet = iota // of policy Cluster
	localSet          // of policy Local
	numSets
)

// chosenSet is an endpoint set, its table and the kind of the table.
type chosenSet struct {
	set   *services.EndpointSet
	table *sharedTable
	kind  tableKind
	// deferred: the table is an older one, or none, until the set's own is built.
	deferred *deferral
}

// keepMode is which members' replies carry no address of ours.
type keepMode uint8

const (
	keepNone  keepMode = iota
	keepLocal          // those of the members on this node
	keepAll
)

// policy is a Rule before its set is known.
type policy struct {
	set  int
	keep bool
}

// policies returns the policies of a kind of frontend for outside clients and for pods (KEP-2086;
// k8s.io/kubernetes pkg/proxy/nftables/proxier.go):
//
//	                    outside                      pod
//	ClusterIP           translated                   kept, unless MasqueradeAll
//	others, Cluster     translated                   translated
//	others, Local       this node's, kept            everywhere, kept
//
// Without ClusterCIDRs of the family both are the same.
func (r *run) policies(s *objects.Service, kind services.FrontendKind, f int) (outside, pod policy) {
	switch {
	case kind == services.ClusterIP:
		pod.keep = !r.cfg.MasqueradeAll
		if s.LocalInternal {
			outside.set, pod.set = localSet, localSet
		}
	case s.LocalExternal:
		outside, pod = policy{localSet, true}, policy{clusterSet, true}
	}
	if !r.pods[f] {
		pod = outside
	}
	return outside, pod
}

// needs are the sets and the keepMode that the frontends of a service port need in one family.
type needs struct {
	sets [numSets]bool
	keep keepMode
}

func (r *run) needs(s *objects.Service, p objects.ServicePort, f int) (n needs) {
	add := func(kind services.FrontendKind) {
		outside, pod := r.policies(s, kind, f)
		for _, p := range [...]policy{outside, pod} {
			n.sets[p.set] = true
			switch {
			case p.keep && p.set == localSet:
				n.keep = max(n.keep, keepLocal)
			case p.keep:
				n.keep = keepAll
			}
		}
	}
	if p.NodePort != 0 {
		add(services.NodePort)
	}
	for _, v := range s.VIPs {
		if f == objects.Family(!is4(v.Addr)) && r.serves(v) {
			add(v.Kind)
		}
	}
	return n
}

// setSets chooses the backends of every set that is needed.
func (r *run) setSets(u *unit, p *port, f *familySet, n needs) (problems []objects.Problem) {
	f.topology, f.candidates = services.TopologyNone, nil
	for which := range f.sets {
		if !n.sets[which] {
			r.dropSet(&f.sets[which])
			continue
		}
		chosen, empty, topology := choose(f.members, which == localSet, r.scratch.refs[:0])
		r.scratch.refs = chosen
		if which == clusterSet {
			f.topology = topology
		}
		if p.check.Kind != objects.CheckNone {
			f.addCandidates(chosen)
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
		r.setSet(u, p, f, which, &services.EndpointSet{Backends: chosen, Weights: f.weights(chosen), Empty: empty})
	}
	return problems
}

// setSet makes a set equal to want, and copies want.Backends. It builds a table only if neither the
// former set nor the port's other set has it.
func (r *run) setSet(u *unit, p *port, f *familySet, which int, want *services.EndpointSet) {
	kind, now := tableOf(p.scheduler), &f.sets[which]
	if now.is(kind, want) {
		return
	}
	other := &f.sets[clusterSet]
	if which == localSet && other.is(kind, want) && other.deferred == nil {
		r.tables.share(other.table)
		r.dropSet(now)
		*now = *other
		return
	}
	if now.set != nil && slices.Equal(now.set.Backends, want.Backends) {
		want.Backends = now.set.Backends
	} else {
		want.Backends = slices.Clone(want.Backends)
	}
	if r.deferring && r.defers(slotsOf(kind, want)) {
		family := 0
		if f == &p.families[1] {
			family = 1
		}
		r.deferTable(r.job(u, p, family, which, kind, want), want)
		return
	}
	var table *sharedTable
	if !r.comparing || !r.large(kind, want) {
		table = r.buildTable(p, f, kind, want)
	}
	if table != nil {
		want.Table = table.slots
	}
	r.dropSet(now)
	*now = chosenSet{set: want, table: table, kind: kind}
}

// dropSet removes a set, and releases its table.
func (r *run) dropSet(c *chosenSet) {
	r.tables.release(c.table)
	c.deferred.drop()
	*c = chosenSet{}
}

func (c *chosenSet) is(kind tableKind, want *services.EndpointSet) bool {
	return c.set != nil && c.kind == kind && c.set.Empty == want.Empty &&
		slices.Equal(c.set.Backends, want.Backends) && slices.Equal(c.set.Weights, want.Weights)
}

func (r *run) buildTable(p *port, f *familySet, kind tableKind, s *services.EndpointSet) *sharedTable {
	return r.tables.get(kind.build(func() []string {
		r.scratch.names = appendNames(r.scratch.names[:0], f.members, s.Backends, p.spec.Proto)
		return r.scratch.names
	}, s.Weights, len(s.Backends), r.cfg.SelectKey))
}

// build returns the slots of a table over n backends; nil if a set of them needs none. It calls
// names for those of the backends if it needs them.
func (kind tableKind) build(names func() []string, weights []uint16, n int, key [2]uint64) []uint16 {
	switch {
	case n == 0:
		return nil
	case kind == hashTable:
		return maglev.Table(names(), widen(weights), key, maglev.Size(n))
	case kind == turnTable && weights != nil:
		return turns(weights, maglev.Size(n))
	}
	return nil
}

func widen(weights []uint16) (wide []uint32) {
	for _, w := range weights {
		wide = append(wide, uint32(w))
	}
	return wide
}

// appendNames appends the names of chosen members in Maglev tables: address, port and protocol,
// which are the same on every gateway.
func appendNames(names []string, members []member, chosen []services.BackendRef, proto uint8) []string {
	i := 0
	for _, m := range members {
		if i < len(chosen) && chosen[i] == m.ref {
			names = append(names, endpointName(m.addr, m.port, proto))
			i++
		}
	}
	return names
}

// dropSets makes the next build choose every set and build every table again.
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

// serviceIdentity is a service port's number on every gateway and in every version: the first eight
// bytes of the SHA-256 of "namespace/name:port name/protocol", the first the most significant. So
// nobody can choose names with the same number.
func serviceIdentity(k unitKey, p objects.ServicePort) uint64 {
	sum := sha256.Sum256([]byte(k.namespace + "/" + k.name + ":" + p.Name + "/" + objects.ProtocolName(p.Proto)))
	return binary.BigEndian.Uint64(sum[:8])
}
