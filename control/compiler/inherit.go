package compiler

import (
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// inheritance is the numbers of a compiler that is replaced: its successor gives the
// same service port and the same endpoint the same number, so that live flows keep
// their backends.
type inheritance struct {
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

// numbersInUse lists the numbers in use, none twice: a compiler that is replaced may be
// wrong about them.
func (c *Compiler) numbersInUse() *inheritance {
	i := &inheritance{map[portKey]services.ServiceID{}, map[memberKey]services.BackendRef{}}
	ids, refs := map[services.ServiceID]bool{}, map[services.BackendRef]bool{}
	for _, u := range c.units {
		for _, p := range u.ports {
			if ids[p.id] {
				continue
			}
			ids[p.id] = true
			i.services[portKey{u.key, p.spec.Name, p.spec.Proto}] = p.id
			for f := range p.families {
				for _, m := range p.families[f].members {
					if !refs[m.ref] {
						refs[m.ref] = true
						i.backends[memberKey{p.id, m.addr, m.port}] = m.ref
					}
				}
			}
		}
	}
	return i
}

// serviceID returns the number of a new service port.
func (r *run) serviceID(u *unit, spec *objects.ServicePort) services.ServiceID {
	if r.inherit != nil {
		k := portKey{u.key, spec.Name, spec.Proto}
		if id, ok := r.inherit.services[k]; ok {
			delete(r.inherit.services, k)
			return id
		}
	}
	return r.ids.service()
}

// backendRef returns the number of a new endpoint; false if there is none left.
func (r *run) backendRef(p *port, m *member) (services.BackendRef, bool) {
	if r.inherit != nil {
		k := memberKey{p.id, m.addr, m.port}
		if ref, ok := r.inherit.backends[k]; ok {
			delete(r.inherit.backends, k)
			return ref, true
		}
	}
	return r.ids.backend()
}

// retireRest gives back what was not taken over, as if it had gone in a generation.
func (i *inheritance) retireRest(ids *identities, generation uint64) {
	for k, ref := range i.backends {
		ids.retireBackend(ref, k.service, generation)
	}
	for _, id := range i.services {
		ids.retireService(id, generation)
	}
}

// pins are who may be given to clients that are pinned, and the service ports that pin.
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

// inheritPins takes over who is to hear of lost pins, what he was not told yet, and what
// differs from the compiler before.
func (c *Compiler) inheritPins(from *Compiler) {
	c.lostPins = from.lostPins
	if c.lostPins.notify == nil {
		return
	}
	before, pinned := from.pins()
	now, pinning := c.pins()
	for service := range pinned {
		if pinning[service] {
			c.lostPins.retake(service, now)
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
