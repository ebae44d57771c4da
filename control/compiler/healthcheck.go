package compiler

import (
	"cmp"
	"slices"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/fastpath/services"
)

// HealthCheck is what the health check node port of one Service answers
// (spec.healthCheckNodePort; type LoadBalancer with external traffic policy Local).
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

// HealthChecks returns what the health check node ports of all Services answer, in
// order of port. The caller may keep it.
func (c *Compiler) HealthChecks() []HealthCheck { return slices.Clone(c.health) }

// HealthEdits counts how often the result of HealthChecks changed.
func (c *Compiler) HealthEdits() uint64 { return c.healthEdits }

// setHealthCheck records the answer of a built unit's health check node port.
func (r *run) setHealthCheck(u *unit) {
	now := r.healthCheck(u)
	if now == u.health {
		return
	}
	r.healthEdits++
	if u.health.Port != 0 {
		if at, ok := slices.BinarySearchFunc(r.health, u.health, compareHealthChecks); ok {
			r.health = slices.Delete(r.health, at, at+1)
		}
	}
	if now.Port != 0 {
		at, _ := slices.BinarySearchFunc(r.health, now, compareHealthChecks)
		r.health = slices.Insert(r.health, at, now)
	}
	u.health = now
}

// healthCheck counts the distinct addresses of ready endpoints on this node. It ignores drained
// endpoints and those of weight 0: they take no new flows, so a load balancer in front of the
// gateways should send those elsewhere.
func (r *run) healthCheck(u *unit) (h HealthCheck) {
	if !u.service.Served() || u.service.HealthPort == 0 {
		return h
	}
	h = HealthCheck{
		Namespace: u.key.namespace, Name: u.key.name, Port: u.service.HealthPort,
		V4: u.service.Families[objects.Family(false)], V6: u.service.Families[objects.Family(true)],
	}
	for f, count := range [...]*int{&h.Local4, &h.Local6} {
		addrs := r.scratch.addrs[:0]
		for _, p := range u.ports {
			for _, m := range p.families[f].members {
				if m.flags&services.BackendLocal != 0 && m.ready() {
					addrs = append(addrs, m.addr)
				}
			}
		}
		slices.SortFunc(addrs, objects.CompareAddrs)
		*count = len(slices.Compact(addrs))
		r.scratch.addrs = addrs
	}
	return h
}
