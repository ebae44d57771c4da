package compiler

import (
	"maps"
	"net/netip"
	"slices"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// Endpoint names an endpoint of a service port.
type Endpoint struct {
	Namespace, Service, PortName string
	Proto                        uint8
	Addr                         header.Addr
	Port                         uint16
}

// EndpointHealth is the result of this gateway's checks of an endpoint.
type EndpointHealth struct {
	Endpoint
	Down bool
	// SlowStart is the share of its weight that an endpoint gets while it starts slowly, in tenths;
	// 0 is the whole weight.
	SlowStart uint8
}

type healthState struct {
	down  bool
	share uint8 // see SlowStart
}

// endpointChecks has the health of endpoints, and the ports that have checks.
type endpointChecks struct {
	of map[portKey]map[place]healthState
	// changed are the units with endpoints whose health changed since the last compile.
	changed map[unitKey]bool
	ports   map[*unit][]*CheckedPort // of units that have any
	edits   uint64                   // of ports
}

// SetHealth sets the health of the listed endpoints from the next compile on. An endpoint is up
// until a list reports it as down. The health of an endpoint that does not exist yet applies once
// it exists, so the caller must list an endpoint as up when it stops checking it.
//
// An endpoint that is down gets no new flows; its flows stay. Objects come first: checks never give
// flows to an endpoint that the objects exclude. If fewer than half of the eligible endpoints of a
// set are up, all of them take its flows, and the Service has a Problem that explains it.
func (cs *endpointChecks) SetHealth(list []EndpointHealth) {
	for _, h := range list {
		port := portKey{unitKey{h.Namespace, h.Service}, portID{h.PortName, h.Proto}}
		at, now := place{h.Addr, h.Port}, healthState{h.Down, h.SlowStart}
		before := cs.of[port][at]
		if now == before {
			continue
		}
		cs.changed[port.unit] = true
		switch {
		case now != healthState{}:
			if cs.of[port] == nil {
				cs.of[port] = map[place]healthState{}
			}
			cs.of[port][at] = now
		case len(cs.of[port]) == 1:
			delete(cs.of, port)
		default:
			delete(cs.of[port], at)
		}
	}
}

// markUnits makes the units dirty whose endpoints' health changed.
func (cs *endpointChecks) markUnits(us *units) {
	for k := range cs.changed {
		if u := us.byKey[k]; u != nil {
			us.dirty[u] = true
		}
	}
	clear(cs.changed)
}

// applyHealth sets the health of a port's members, which are in order of address and port.
func (cs *endpointChecks) applyHealth(u *unit, p *port, members []member) {
	for at, s := range cs.of[portKey{u.key, p.key()}] {
		i, found := slices.BinarySearchFunc(members, member{addr: at.addr, port: at.port}, compareMembers)
		if !found {
			continue
		}
		if s.down {
			members[i].flags |= services.BackendDown
		}
		members[i].share = s.share
	}
}

// CheckedPort is a service port that has a check, with the endpoints to check: every endpoint that
// could get new flows here if all were up. With CheckNone it has no endpoints, and the port must
// not be checked. It is immutable.
type CheckedPort struct {
	Namespace, Service, PortName string
	Proto                        uint8
	Created                      int64 // of the Service, Unix seconds
	Check                        objects.Check
	Endpoints                    []netip.AddrPort // in order
}

func (p *CheckedPort) equal(o *CheckedPort) bool {
	return p.PortName == o.PortName && p.Proto == o.Proto && p.Created == o.Created && p.Check == o.Check &&
		slices.Equal(p.Endpoints, o.Endpoints)
}

// CheckedPorts returns all service ports that have a check, ports of the oldest Service first, so
// that the caller may bound their number. A port that did not change since an earlier call is the
// same *CheckedPort.
func (cs *endpointChecks) CheckedPorts() []*CheckedPort {
	units := slices.SortedFunc(maps.Keys(cs.ports), compareAges)
	var list []*CheckedPort
	for _, u := range units {
		list = append(list, cs.ports[u]...)
	}
	return list
}

// CheckEdits counts how often the result of CheckedPorts changed.
func (cs *endpointChecks) CheckEdits() uint64 { return cs.edits }

// setChecks records the checked ports of a built unit.
func (cs *endpointChecks) setChecks(u *unit) {
	var now []*CheckedPort
	before := cs.ports[u]
	for _, p := range u.ports {
		if !p.hasCheck {
			continue
		}
		c := &CheckedPort{
			Namespace: u.key.namespace, Service: u.key.name, PortName: p.spec.Name, Proto: p.spec.Proto,
			Created: created(u.service), Check: p.check,
			Endpoints: slices.Concat(p.families[0].candidates, p.families[1].candidates),
		}
		if len(c.Endpoints) == 0 && c.Check.Kind != objects.CheckNone {
			continue
		}
		if at := slices.IndexFunc(before, c.equal); at >= 0 {
			c = before[at]
		}
		now = append(now, c)
	}
	if slices.Equal(now, before) {
		return
	}
	if len(now) > 0 {
		cs.ports[u] = now
	} else {
		delete(cs.ports, u)
	}
	cs.edits++
}
