package compiler

import (
	"slices"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// LostPin is a backend that no longer takes new flows of a service port. Clients that were pinned
// to it lose the pin, even if the backend returns later. Port 0 means all backends of the service
// port, which no longer has session affinity.
type LostPin struct {
	Service uint64 // services.Service.Identity
	Addr    header.Addr
	Port    uint16
}

// WatchPins makes the compiler call lost with backends of service ports with session affinity once
// no snapshot in use gives new flows to them, and with service ports that lost session affinity. A
// backend that is chosen again before that is not reported: its clients keep it. lost is called on
// the compiler's goroutine and must not block.
func (l *lostPins) WatchPins(lost func([]LostPin)) { l.notify = lost }

// lostPins are reported once every worker has left the snapshots that could pin clients to them.
type lostPins struct {
	notify  func([]LostPin) // or nil
	waiting []retired[LostPin]
	of      map[uint64]int // how many of waiting are of a service
}

func (l *lostPins) wait(p LostPin, generation uint64) {
	if l.of == nil {
		l.of = map[uint64]int{}
	}
	l.of[p.Service]++
	l.waiting = append(l.waiting, retired[LostPin]{p, generation})
}

// forget decrements the number of a service's waiting pins.
func (l *lostPins) forget(service uint64) {
	if l.of[service]--; l.of[service] == 0 {
		delete(l.of, service)
	}
}

// retake removes backends that take new flows again from waiting: workers may have pinned clients
// to them since.
func (l *lostPins) retake(service uint64, chosen func(LostPin) bool) {
	if l.of[service] == 0 {
		return
	}
	l.waiting = slices.DeleteFunc(l.waiting, func(w retired[LostPin]) bool {
		again := w.what.Service == service && chosen(w.what)
		if again {
			l.forget(service)
		}
		return again
	})
}

// release reports the backends that snapshots from oldest on do not choose.
func (l *lostPins) release(oldest uint64) {
	n := 0
	var list []LostPin
	for n < len(l.waiting) && l.waiting[n].generation <= oldest {
		list = append(list, l.waiting[n].what)
		l.forget(l.waiting[n].what.Service)
		n++
	}
	l.waiting = l.waiting[n:]
	if len(list) > 0 {
		l.notify(list)
	}
}

// losePins records the backends that took new flows before this build and no longer do. families is
// the state before the build.
func (l *lostPins) losePins(p *port, families [2]familySet, generation uint64, scratch *scratch) {
	if l.notify == nil || p.service == nil || p.service.AffinitySeconds == 0 {
		return
	}
	now := scratch.chosen()
	for f := range families {
		for _, s := range p.families[f].sets {
			for _, ref := range s.backends() {
				now[ref.Index()] = ref
			}
		}
	}
	l.retake(p.identity, func(pin LostPin) bool {
		for f := range p.families {
			members := p.families[f].members
			at, is := slices.BinarySearchFunc(members, member{addr: pin.Addr, port: pin.Port}, compareMembers)
			if is && now[members[at].ref.Index()] == members[at].ref {
				return true
			}
		}
		return false
	})
	for f := range families {
		before, after := &families[f], &p.families[f]
		if before.sets == after.sets {
			continue
		}
		for _, s := range before.sets {
			l.losePinsOf(p, before.members, s.backends(), now, generation)
		}
	}
	for f := range families {
		for _, sets := range [][numSets]chosenSet{families[f].sets, p.families[f].sets} {
			for _, s := range sets {
				for _, ref := range s.backends() {
					now[ref.Index()] = 0
				}
			}
		}
	}
}

// loseAffinity adds a LostPin for all backends of a port that has lost session affinity since its
// last version.
func (l *lostPins) loseAffinity(p *port, seconds uint32, generation uint64) {
	if l.notify != nil && p.service != nil && p.service.AffinitySeconds != 0 && seconds == 0 {
		l.wait(LostPin{Service: p.identity}, generation)
	}
}

// losePinsOf records the backends of a set that are not in now, which is by index. set is in the
// order of members.
func (l *lostPins) losePinsOf(p *port, before []member, set, now []services.BackendRef, generation uint64) {
	rest := cursor(before)
	for _, ref := range set {
		m := rest.seek(ref)
		if m == nil {
			break
		}
		if now[m.ref.Index()] != m.ref {
			now[m.ref.Index()] = m.ref // once, if it was in both sets
			l.wait(LostPin{p.identity, m.addr, m.port}, generation)
		}
	}
}

// pins returns the backends that clients may be pinned to, and the service ports with session
// affinity.
func (us *units) pins() (chosen map[LostPin]bool, pinning map[uint64]bool) {
	chosen, pinning = map[LostPin]bool{}, map[uint64]bool{}
	for _, u := range us.byKey {
		for _, p := range u.ports {
			if p.service == nil || p.service.AffinitySeconds == 0 {
				continue
			}
			pinning[p.identity] = true
			for f := range p.families {
				inSets := map[services.BackendRef]bool{}
				for _, s := range p.families[f].sets {
					for _, ref := range s.backends() {
						inSets[ref] = true
					}
				}
				for _, m := range p.families[f].members {
					if inSets[m.ref] {
						chosen[LostPin{p.identity, m.addr, m.port}] = true
					}
				}
			}
		}
	}
	return chosen, pinning
}

// inherit copies a former compiler's lost pins that were not reported yet, with their receiver, and
// adds the pins that the new one no longer has.
func (l *lostPins) inherit(from *lostPins, former, us *units, generation uint64) {
	*l = *from
	if l.notify == nil {
		return
	}
	before, pinned := former.pins()
	now, pinning := us.pins()
	for service := range pinned {
		if pinning[service] {
			l.retake(service, func(p LostPin) bool { return now[p] })
		} else {
			l.wait(LostPin{Service: service}, generation)
		}
	}
	for p := range before {
		if !now[p] {
			l.wait(p, generation)
		}
	}
}
