package compiler

import (
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/fastpath/services"
)

// numbers assigns numbers to the service ports and endpoints of units.
type numbers struct {
	identities
	// former are the numbers of the compiler that this one replaces; otherwise nil.
	former *assignments
	short  map[*unit]bool // units with an endpoint that got no number
}

// starved reports whether endpoints lack numbers although numbers are free.
func (ns *numbers) starved() bool { return len(ns.short) > 0 && ns.backends.left() }

// assignments are the numbers of a compiler that is being replaced. The new compiler assigns the
// same number to the same service port and endpoint, so that live flows keep their backends.
type assignments struct {
	services map[portKey]services.ServiceID
	backends map[memberKey]services.BackendRef
}

type memberKey struct {
	service services.ServiceID
	place
	node bool // as in member
}

// inUse lists the numbers in use, none twice, even if the state of this compiler is wrong.
func (us *units) inUse() *assignments {
	a := &assignments{map[portKey]services.ServiceID{}, map[memberKey]services.BackendRef{}}
	ids, refs := map[services.ServiceID]bool{}, map[services.BackendRef]bool{}
	for _, u := range us.byKey {
		for _, p := range u.ports {
			if ids[p.id] {
				continue
			}
			ids[p.id] = true
			a.services[portKey{u.key, p.key()}] = p.id
			for f := range p.families {
				for _, m := range p.families[f].members {
					if !refs[m.ref] {
						refs[m.ref] = true
						a.backends[memberKey{p.id, place{m.addr, m.port}, m.node}] = m.ref
					}
				}
			}
		}
	}
	return a
}

// serviceID returns the number of a new service port.
func (ns *numbers) serviceID(unit unitKey, spec *objects.ServicePort) services.ServiceID {
	if ns.former != nil {
		k := portKey{unit, portID{spec.Name, spec.Proto}}
		if id, ok := ns.former.services[k]; ok {
			delete(ns.former.services, k)
			return id
		}
	}
	return ns.service()
}

// backendRef returns the number of a new endpoint; false if there is none left.
func (ns *numbers) backendRef(p *port, m *member) (services.BackendRef, bool) {
	if ns.former != nil {
		k := memberKey{p.id, place{m.addr, m.port}, m.node}
		if ref, ok := ns.former.backends[k]; ok {
			delete(ns.former.backends, k)
			return ref, true
		}
	}
	return ns.backend()
}

// retireRest retires the numbers that the new compiler did not use, as of a generation.
func (a *assignments) retireRest(ids *identities, generation uint64) {
	for k, ref := range a.backends {
		ids.retireBackend(ref, k.service, generation)
	}
	for _, id := range a.services {
		ids.retireService(id, generation)
	}
}
