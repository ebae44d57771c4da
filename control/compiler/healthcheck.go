package compiler

import (
	"cmp"
	"slices"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/fastpath/services"
)

// HealthCheck is the answer of the health check node port of one Service (spec.healthCheckNodePort;
// type LoadBalancer with external traffic policy Local).
type HealthCheck struct {
	Namespace, Name string
	Port            uint16
	// V4 and V6 are the families that the Service is served in.
	V4, V6 bool
	// Local4 and Local6 count distinct addresses of ready endpoints on this node,
	// all ports together.
	Local4, Local6 int
}

func compareHealthChecks(a, b HealthCheck) int {
	return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// healthChecks are the answers of all health check node ports.
type healthChecks struct {
	of    map[*unit]HealthCheck // of units that have one
	list  []HealthCheck         // in order of port
	edits uint64                // how often list changed
}

// HealthChecks returns the answers of the health check node ports of all Services, in order of
// port. The caller may keep it.
func (hs *healthChecks) HealthChecks() []HealthCheck { return slices.Clone(hs.list) }

// HealthEdits counts how often the result of HealthChecks changed.
func (hs *healthChecks) HealthEdits() uint64 { return hs.edits }

// set records the answer of a built unit's health check node port.
func (hs *healthChecks) set(u *unit, scratch *scratch) {
	now, before := u.healthCheck(scratch), hs.of[u]
	if now == before {
		return
	}
	hs.edits++
	if before.Port != 0 {
		delete(hs.of, u)
		if at, ok := slices.BinarySearchFunc(hs.list, before, compareHealthChecks); ok {
			hs.list = slices.Delete(hs.list, at, at+1)
		}
	}
	if now.Port != 0 {
		hs.of[u] = now
		at, _ := slices.BinarySearchFunc(hs.list, now, compareHealthChecks)
		hs.list = slices.Insert(hs.list, at, now)
	}
}

// healthCheck counts the distinct addresses of ready endpoints on this node or, of a direct
// Service, of nodes with ready endpoints. It ignores drained endpoints and endpoints of weight 0:
// they take no new flows, so a load balancer in front of the gateways should send its flows
// elsewhere.
func (u *unit) healthCheck(scratch *scratch) (h HealthCheck) {
	if !u.service.Served() || u.service.HealthPort == 0 {
		return h
	}
	h = HealthCheck{
		Namespace: u.key.namespace, Name: u.key.name, Port: u.service.HealthPort,
		V4: u.service.Families[objects.Family(false)], V6: u.service.Families[objects.Family(true)],
	}
	for f, count := range [...]*int{&h.Local4, &h.Local6} {
		addrs := scratch.addrs[:0]
		for _, p := range u.ports {
			for _, m := range p.families[f].members {
				if (p.service.Direct || m.flags&services.BackendLocal != 0) && m.ready() {
					addrs = append(addrs, m.addr)
				}
			}
		}
		slices.SortFunc(addrs, objects.CompareAddrs)
		*count = len(slices.Compact(addrs))
		scratch.addrs = addrs
	}
	return h
}
