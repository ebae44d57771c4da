package control

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/fastpath/services"
)

// healthPort is the health check node port of a Service that has one: type
// LoadBalancer with external traffic policy Local (k8s.io/kubernetes
// pkg/api/v1/service, NeedsHealthCheck). A number in another Service is ignored.
func healthPort(spec *corev1.ServiceSpec) uint16 {
	p := spec.HealthCheckNodePort
	if spec.Type != corev1.ServiceTypeLoadBalancer || spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal || p < 1 || p > 1<<16-1 {
		return 0
	}
	return uint16(p)
}

func compareHealthChecks(a, b HealthCheck) int {
	return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// HealthChecks returns what the health check node ports of all Services answer, in
// order of port. The caller may keep it.
func (c *Compiler) HealthChecks() []HealthCheck { return slices.Clone(c.health) }

// setHealthCheck notes what a built unit's health check node port answers.
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

// healthCheck counts the distinct addresses of ready endpoints on this node. One that
// an operator drained, and one of weight 0, count as if they were not there: they take no new
// flows, and whoever balances over gateways should send them elsewhere.
func (r *run) healthCheck(u *unit) (h HealthCheck) {
	if !u.service.served() || u.service.healthPort == 0 {
		return h
	}
	h = HealthCheck{
		Namespace: u.key.namespace, Name: u.key.name, Port: u.service.healthPort,
		V4: u.service.families[family(false)], V6: u.service.families[family(true)],
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
		slices.SortFunc(addrs, compareAddrs)
		*count = len(slices.Compact(addrs))
		r.scratch.addrs = addrs
	}
	return h
}
