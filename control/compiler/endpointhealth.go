package compiler

import (
	"cmp"
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

// EndpointHealth is what the checks of this gateway say of an endpoint.
type EndpointHealth struct {
	Endpoint
	Down bool
	// SlowStart is the part of its weight that an endpoint gets which is up again, in tenths; 0 is
	// all of it.
	SlowStart uint8
}

// place is an endpoint's address and port.
type place struct {
	addr header.Addr
	port uint16
}

type standing struct {
	down  bool
	share uint8 // of its weight, in tenths; 0 is all
}

// The problems of a Service by checks. They have no numbers and names of endpoints, which change
// all the time, as each change would be an Event.
const someDown = "some endpoints fail this gateway's checks and get no new flows; `sluice backends` says which"

const failOpen = "fewer than half of the endpoints are healthy by this gateway's checks, so all get new flows " +
	"(fail open); `sluice backends` says what fails"

// SetHealth changes what checks say of endpoints from the next compile on; of those that the list
// does not have, nothing changes. An endpoint is up until the list says otherwise. What it says of
// an endpoint that does not exist counts when it comes, so the caller must tell when it no longer
// checks one: it is up then.
//
// An endpoint that is down gets no new flows; those that it has stay. Objects come first: an
// endpoint that they do not let take flows takes none. If fewer than half of the endpoints that
// they let take a set's flows are up, all take them, and the Service has a Problem that says so.
func (c *Compiler) SetHealth(list []EndpointHealth) {
	for _, h := range list {
		port := portKey{unitKey{h.Namespace, h.Service}, h.PortName, h.Proto}
		at, now := place{h.Addr, h.Port}, standing{h.Down, h.SlowStart}
		before := c.checked[port][at]
		if now == before {
			continue
		}
		c.checkedUnits[port.unit] = true
		switch {
		case now != standing{}:
			if c.checked[port] == nil {
				c.checked[port] = map[place]standing{}
			}
			c.checked[port][at] = now
		case len(c.checked[port]) == 1:
			delete(c.checked, port)
		default:
			delete(c.checked[port], at)
		}
	}
}

// judge notes in the members of a port what checks say of them, in order of address and port.
func (r *run) judge(u *unit, p *port, members []member) {
	for at, s := range r.checked[portKey{u.key, p.spec.Name, p.spec.Proto}] {
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

// CheckedPort is a service port that has a check, and the endpoints that it is about: those that
// could get new flows here if all were up. With CheckNone it has no endpoints, and nothing of the
// port is to be checked. It is immutable.
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

// CheckedPorts returns all service ports that have a check, the oldest Service first, by which the
// caller may bound their number. What did not change since an earlier call is the same CheckedPort.
func (c *Compiler) CheckedPorts() []*CheckedPort {
	units := slices.SortedFunc(maps.Keys(c.withChecks), func(a, b *unit) int {
		return cmp.Or(cmp.Compare(created(a.service), created(b.service)), a.key.compare(b.key))
	})
	var list []*CheckedPort
	for _, u := range units {
		list = append(list, u.checks...)
	}
	return list
}

// CheckEdits counts how often the result of CheckedPorts changed.
func (c *Compiler) CheckEdits() uint64 { return c.checkEdits }

// checkOf returns the check of a service port, if it has one: that of its Service, or that of the
// configuration.
func (r *run) checkOf(s *objects.Service, p *objects.ServicePort) (objects.Check, bool) {
	if s.Checks != nil {
		return s.Checks.Of(p)
	}
	return r.cfg.Checks.Of(p)
}

// addCandidates adds the members of a set, which are in order of members.
func (f *familySet) addCandidates(chosen []services.BackendRef) {
	var list []netip.AddrPort
	i := 0
	for j := range f.members {
		if m := &f.members[j]; i < len(chosen) && m.ref == chosen[i] {
			list = append(list, netip.AddrPortFrom(m.addr.Netip(), m.port))
			i++
		}
	}
	if f.candidates != nil {
		list = slices.Compact(slices.SortedFunc(slices.Values(append(list, f.candidates...)),
			netip.AddrPort.Compare))
	}
	f.candidates = list
}

// setChecks records the checked ports of a built unit.
func (r *run) setChecks(u *unit) {
	var now []*CheckedPort
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
		if at := slices.IndexFunc(u.checks, c.equal); at >= 0 {
			c = u.checks[at]
		}
		now = append(now, c)
	}
	if slices.Equal(now, u.checks) {
		return
	}
	if u.checks = now; len(now) > 0 {
		r.withChecks[u] = true
	} else {
		delete(r.withChecks, u)
	}
	r.checkEdits++
}
