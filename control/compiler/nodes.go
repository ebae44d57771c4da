package compiler

import (
	"math"
	"slices"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// nodes are the addresses of Nodes at which tunnels end. A direct Service has a backend for each
// Node, also for Nodes without endpoints: a flow stays with its node when the node's last endpoint
// goes, and after a restart, as long as there is the Node.
type nodes struct {
	cfg    *settings
	units  *units
	byName map[string]header.Addr
	// idle are the Nodes as members without endpoints and without a port, in order, and at has the
	// position of each Node in it. list makes them after a change. This gateway's node
	// (Config.NodeName) is not among them.
	idle []member
	at   map[string]int
}

// set records a Node's new version; nil if it is deleted. If its address changes, direct Services
// become dirty.
func (ns *nodes) set(id objects.ObjectID, now *objects.Node) {
	before, had := ns.byName[id.Name]
	a, has := now.Address()
	if had == has && (!has || before == header.AddrFrom(a)) {
		return
	}
	if has {
		ns.byName[id.Name] = header.AddrFrom(a)
	} else {
		delete(ns.byName, id.Name)
	}
	ns.idle, ns.at = nil, nil
	for _, u := range ns.units.byKey {
		if ns.cfg.direct(u.service) {
			ns.units.dirty[u] = true
		}
	}
}

// list returns idle and at. A change of a direct Service's endpoints needs them once for each port,
// and there may be thousands of Nodes.
func (ns *nodes) list() ([]member, map[string]int) {
	if ns.at != nil {
		return ns.idle, ns.at
	}
	for name, a := range ns.byName {
		if name != ns.cfg.NodeName {
			ns.idle = append(ns.idle, member{addr: a, node: true})
		}
	}
	slices.SortFunc(ns.idle, compareMembers)
	ns.idle = slices.CompactFunc(ns.idle, func(a, b member) bool { return a.same(&b) })
	ns.at = make(map[string]int, len(ns.byName))
	for name, a := range ns.byName {
		if name != ns.cfg.NodeName {
			ns.at[name], _ = slices.BinarySearchFunc(ns.idle, member{addr: a}, compareMembers)
		}
	}
	return ns.idle, ns.at
}

// nodeMembers returns the nodes as members of a port of a direct Service, in order. The weight of a
// node is the number of its ready endpoints. Without ready ones it is the number of its endpoints
// that terminate and still serve. kube-proxy on the node chooses among the same endpoints
// (k8s.io/kubernetes pkg/proxy/topology.go). A node without either has weight 0. listed is how many
// endpoints the slices list, or the number of nodes if that is greater. It sets f.ownNode.
func (r *run) nodeMembers(u *unit, p *port, f *familySet, offered []offer, v6 bool) (
	members []member, listed int, problems []objects.Problem,
) {
	endpoints := map[header.Addr]nodeEndpoint{}
	for _, o := range offered {
		if o.slice.V6 != v6 {
			continue
		}
		listed += len(o.slice.Endpoints)
		for i := range o.slice.Endpoints {
			e := &o.slice.Endpoints[i]
			if known, ok := endpoints[e.Addr]; !ok || rank(known.flags) < rank(e.Flags) {
				endpoints[e.Addr] = nodeEndpoint{o.slice.Node(e), e.Flags}
			}
		}
	}
	count, unknown := map[string]*nodeCount{}, 0
	for _, e := range endpoints {
		if _, ok := r.nodes.byName[e.node]; !ok {
			unknown++
			continue
		}
		if count[e.node] == nil {
			count[e.node] = &nodeCount{}
		}
		count[e.node].add(e.flags)
	}
	if unknown > 0 {
		problems = append(problems, objects.Problem{Object: u.service.ID, Severity: objects.Warning,
			Message: "some endpoints have no nodeName, or one of a Node that is not known or has no address; a " +
				"direct Service cannot reach them"})
	}
	idle, at := r.nodes.list()
	members = slices.Clone(idle)
	for i := range members {
		members[i].port = p.spec.Port
	}
	for name, c := range count {
		if name == r.cfg.NodeName {
			problems = append(problems, objects.Problem{Object: u.service.ID, Severity: objects.Warning,
				Message: "some endpoints are on this gateway's own node; a direct Service does not reach them here"})
			f.ownNode = c.ready > 0 || c.terminating > 0
			continue
		}
		m := &members[at[name]]
		with := *m
		with.flags, with.weight = c.member()
		if m.flags == 0 || compareListed(with, *m) < 0 { // another Node with endpoints may have the address
			*m = with
		}
	}
	return members, max(listed, len(members)), problems
}

// nodeEndpoint is an endpoint of a direct Service.
type nodeEndpoint struct {
	node  string
	flags services.BackendFlags
}

// nodeCount counts the endpoints of a node.
type nodeCount struct{ ready, terminating, serving int }

func (c *nodeCount) add(f services.BackendFlags) {
	m := member{flags: f, weight: 1}
	switch {
	case m.ready():
		c.ready++
	case m.terminatingServing():
		c.terminating++
	case f&services.BackendServing != 0:
		c.serving++
	}
}

// member returns the flags and the weight of the node.
func (c *nodeCount) member() (services.BackendFlags, uint16) {
	switch {
	case c.ready > 0:
		return services.BackendReady | services.BackendServing, uint16(min(c.ready, math.MaxUint16))
	case c.terminating > 0:
		return services.BackendServing | services.BackendTerminating, uint16(min(c.terminating, math.MaxUint16))
	case c.serving > 0:
		return services.BackendServing, 0
	}
	return 0, 0
}

// directProblems reports a Service with direct return that this gateway does not offer.
func (r *run) directProblems(u *unit) []objects.Problem {
	if u.service == nil || !u.service.Direct || r.cfg.TunnelPort != 0 {
		return nil
	}
	return []objects.Problem{{Object: u.service.ID, Field: "metadata.annotations[sluice.dev/forwarding]",
		Severity: objects.Warning,
		Message: "direct: this gateway has no tunnel to nodes (directReturn.vni of its configuration is 0); packets " +
			"are translated (nat), and only endpoints of this node get them, by externalTrafficPolicy Local"}}
}
