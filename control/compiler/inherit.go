package compiler

import (
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// assignments are the numbers of a compiler that is replaced. Its successor assigns the same number
// to the same service port and endpoint, so that live flows keep their backends.
type assignments struct {
	services map[portKey]services.ServiceID
	backends map[memberKey]services.BackendRef
}

type portKey struct {
	unit  unitKey
	name  string
	proto uint8
}

type memberKey struct {
	service services.ServiceID
	addr    header.Addr
	port    uint16
}

// numbersInUse lists the numbers in use, none twice, even if the state of this compiler is wrong.
func (c *Compiler) numbersInUse() *assignments {
	a := &assignments{map[portKey]services.ServiceID{}, map[memberKey]services.BackendRef{}}
	ids, refs := map[services.ServiceID]bool{}, map[services.BackendRef]bool{}
	for _, u := range c.units {
		for _, p := range u.ports {
			if ids[p.id] {
				continue
			}
			ids[p.id] = true
			a.services[portKey{u.key, p.spec.Name, p.spec.Proto}] = p.id
			for f := range p.families {
				for _, m := range p.families[f].members {
					if !refs[m.ref] {
						refs[m.ref] = true
						a.backends[memberKey{p.id, m.addr, m.port}] = m.ref
					}
				}
			}
		}
	}
	return a
}

// serviceID returns the number of a new service port.
func (r *run) serviceID(u *unit, spec *objects.ServicePort) services.ServiceID {
	if r.former != nil {
		k := portKey{u.key, spec.Name, spec.Proto}
		if id, ok := r.former.services[k]; ok {
			delete(r.former.services, k)
			return id
		}
	}
	return r.ids.service()
}

// backendRef returns the number of a new endpoint; false if there is none left.
func (r *run) backendRef(p *port, m *member) (services.BackendRef, bool) {
	if r.former != nil {
		k := memberKey{p.id, m.addr, m.port}
		if ref, ok := r.former.backends[k]; ok {
			delete(r.former.backends, k)
			return ref, true
		}
	}
	return r.ids.backend()
}

// retireRest retires the numbers that were not taken over, as of a generation.
func (a *assignments) retireRest(ids *identities, generation uint64) {
	for k, ref := range a.backends {
		ids.retireBackend(ref, k.service, generation)
	}
	for _, id := range a.services {
		ids.retireService(id, generation)
	}
}

// pins returns the backends that clients may be pinned to, and the service ports with session
// affinity.
func (c *Compiler) pins() (chosen map[LostPin]bool, pinning map[uint64]bool) {
	chosen, pinning = map[LostPin]bool{}, map[uint64]bool{}
	for _, u := range c.units {
		for _, p := range u.ports {
			if p.service == nil || p.service.AffinitySeconds == 0 {
				continue
			}
			pinning[p.identity] = true
			for f := range p.families {
				taking := map[services.BackendRef]bool{}
				for _, s := range p.families[f].sets {
					for _, ref := range s.backends() {
						taking[ref] = true
					}
				}
				for _, m := range p.families[f].members {
					if taking[m.ref] {
						chosen[LostPin{p.identity, m.addr, m.port}] = true
					}
				}
			}
		}
	}
	return chosen, pinning
}

// inheritPins takes over the lost pins that were not reported yet, with their receiver, and adds
// those that differ from the former compiler.
func (c *Compiler) inheritPins(from *Compiler) {
	c.lostPins = from.lostPins
	if c.lostPins.notify == nil {
		return
	}
	before, pinned := from.pins()
	now, pinning := c.pins()
	for service := range pinned {
		if pinning[service] {
			c.lostPins.retake(service, func(p LostPin) bool { return now[p] })
		} else {
			c.lostPins.wait(LostPin{Service: service}, c.snapshot.Generation)
		}
	}
	for p := range before {
		if !now[p] {
			c.lostPins.wait(p, c.snapshot.Generation)
		}
	}
}
