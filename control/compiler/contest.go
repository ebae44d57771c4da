package compiler

import (
	"cmp"
	"fmt"
	"math"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// contest decides which unit gets a frontend that several units claim.
type contest struct {
	cfg    *settings
	units  *units
	addrs  *addresses
	claims relation[services.FrontendKey]
	// Both maps are of the running compile. changed has the frontends whose claims changed. winners
	// caches the results of winner for frontends that several units claim.
	changed map[services.FrontendKey]bool
	winners map[services.FrontendKey]*unit
	// stale are units whose problems name a unit that has lost the frontend since (refresh).
	stale map[*unit]bool
	// behind are the units whose endpoints at unit.moved must be read again. A run builds some of
	// them, with about turn endpoints in total. If turn is 0, it builds all of them.
	behind map[*unit]bool
	turn   int
}

// change records that these frontends may change hands.
func (c *contest) change(claims []claim) {
	for _, cl := range claims {
		c.changed[cl.key] = true
	}
}

// endpointPort is a port of an endpoint.
type endpointPort struct {
	port  uint16
	proto uint8
}

// reach has the namespaces in which a frontend, before and after it moved, rules out endpoints at
// its address and port (notAnEndpoint).
type reach struct {
	all bool
	in  [2]string
}

// set sets the reach before (0) or after (1), when a unit has the frontend by a kind of claim.
func (r *reach) set(i int, u *unit, kind services.FrontendKind) {
	switch {
	case u == nil:
	case kind == services.ExternalIP:
		r.in[i] = u.key.namespace
	default:
		r.all = true
	}
}

func (r *reach) has(namespace string) bool {
	return r.all || r.in[0] == namespace || r.in[1] == namespace
}

// markUnits makes units dirty: the unit that loses a frontend and the unit that gets it. Units with
// endpoints at its address and port are built in turns (takeTurn), in this run or a later one: a
// namespace may have tens of thousands of them. Problems of the other units that claim it become
// stale: a thousand Services may claim one frontend. It is called once in a run, after the last
// change of a claim.
func (c *contest) markUnits(snapshot *services.Snapshot) {
	moved := map[header.Addr]map[endpointPort]reach{}
	for k := range c.changed {
		before, kind := c.holder(snapshot, k)
		now := c.winner(k)
		kindNow := services.FrontendKind(0)
		if now != nil {
			kindNow = now.kindOf(k)
		}
		if before == now && (now == nil || kindNow == kind) {
			continue
		}
		ports := moved[k.Addr]
		if ports == nil {
			ports = map[endpointPort]reach{}
			moved[k.Addr] = ports
		}
		var r reach
		r.set(0, before, kind)
		r.set(1, now, kindNow)
		ports[endpointPort{k.Port, k.Proto}] = r
		if before == now {
			continue
		}
		for _, u := range [...]*unit{before, now} {
			if u != nil {
				c.units.dirty[u] = true
			}
		}
		c.claims.each(k, func(num int32) {
			if u := c.units.byNum[num]; u.denied == "" {
				c.stale[u] = true
			}
		})
	}
	for a, ports := range moved {
		c.addrs.uses.each(a, func(num int32) {
			u := c.units.byNum[num]
			u.eachPort(func(p endpointPort) {
				if r, ok := ports[p]; ok && r.has(u.key.namespace) {
					c.setBehind(u, services.FrontendKey{Addr: a, Port: p.port, Proto: p.proto})
				}
			})
		})
	}
	c.takeTurn()
}

func (c *contest) setBehind(u *unit, k services.FrontendKey) {
	if u.moved == nil {
		u.moved = map[services.FrontendKey]bool{}
	}
	u.moved[k] = true
	c.behind[u] = true
}

// A turn builds units with about turnEndpoints endpoints. Each unit counts as leastBehind endpoints
// more than it has.
const (
	turnEndpoints = 20_000
	leastBehind   = 100
)

// takeTurn marks some of the units in behind as dirty.
func (c *contest) takeTurn() {
	left := c.turn
	for u := range c.behind {
		switch {
		case c.units.dirty[u]:
			continue
		case c.turn > 0 && left <= 0:
			return
		}
		left -= leastBehind + len(u.uses)
		c.units.dirty[u] = true
	}
}

// DeferEndpoints(true) lets a compile leave stale endpoints: an endpoint at an address and port
// that has become a frontend, or a refused endpoint at an address and port that is no longer a
// frontend. The caller must compile again until StaleEndpoints returns false.
func (s *state) DeferEndpoints(on bool) {
	if s.contest.turn = 0; on {
		s.contest.turn = turnEndpoints
	}
}

// StaleEndpoints reports whether the last compile has left stale endpoints.
func (s *state) StaleEndpoints() bool { return len(s.contest.behind) > 0 }

// holder returns the unit that has a frontend in the snapshot before this run, and the kind of its
// claim; nil if no unit has it.
func (c *contest) holder(snapshot *services.Snapshot, k services.FrontendKey) (*unit, services.FrontendKind) {
	if snapshot == nil {
		return nil, 0
	}
	f, ok := snapshot.FrontendByKey(k)
	if !ok {
		return nil, 0
	}
	return c.units.byKey[unitKey{f.Service.Namespace, f.Service.Name}], f.Kind
}

// winner returns the unit that gets a frontend; nil if no admitted unit claims it. Claims by
// ClusterIP and by the status of a load balancer, which are allocated, come before those by
// external IP, because any author of a Service may write any address there (CVE-2020-8554). The
// claims of one frontend are compared once in a run.
func (c *contest) winner(k services.FrontendKey) *unit {
	if only, ok := c.claims.only(k); ok {
		if u := c.units.byNum[only]; u.denied == "" {
			return u
		}
		return nil
	}
	w, known := c.winners[k]
	if !known {
		w = c.compete(k)
		c.winners[k] = w
	}
	return w
}

func (c *contest) compete(k services.FrontendKey) (best *unit) {
	taken := false // best claims it by an external IP
	c.claims.each(k, func(num int32) {
		u := c.units.byNum[num]
		if u.denied != "" {
			return
		}
		external := u.kindOf(k) == services.ExternalIP
		if best == nil || external != taken && taken ||
			external == taken && cmp.Or(cmp.Compare(u.service.Created, best.service.Created),
				u.key.compare(best.key)) < 0 {
			best, taken = u, external
		}
	})
	return best
}

// conflicts are the problems of a unit that loses frontends.
type conflicts struct {
	list []objects.Problem
	more int // beyond objects.MaxFieldProblems
}

func (l *conflicts) add(u *unit, c claim, winner *unit) {
	if len(l.list) == objects.MaxFieldProblems {
		l.more++
		return
	}
	l.list = append(l.list, objects.Problem{Object: u.service.ID, Field: fmt.Sprintf("spec.ports[%d]", c.port),
		Severity: objects.Refused, Reason: objects.ReasonFrontendConflict,
		Message: fmt.Sprintf("%s %s belongs to Service %s/%s%s", c.kind, frontendName(c.key), winner.key.namespace,
			winner.key.name, youngestNote(u.service))})
}

func (l *conflicts) problems(u *unit) []objects.Problem {
	if l.more == 0 {
		return l.list
	}
	return append(l.list, objects.Problem{Object: u.service.ID, Severity: objects.Refused,
		Reason:  objects.ReasonFrontendConflict,
		Message: fmt.Sprintf("%d more frontends belong to other Services", l.more)})
}

// conflicts returns the problems of a unit that loses frontends.
func (c *contest) conflicts(u *unit) []objects.Problem {
	var l conflicts
	if u.denied == "" {
		for _, cl := range u.claims {
			if w := c.winner(cl.key); w != u {
				l.add(u, cl, w)
			}
		}
	}
	return l.problems(u)
}

// youngestNote returns the part of a conflict message that explains the age of the losing Service.
// It depends on that Service only: if the age of the winner changes, the loser is not built again.
func youngestNote(s *objects.Service) string {
	if s.Created != math.MaxInt64 {
		return ""
	}
	return " (it has no metadata.creationTimestamp, so it counts as the youngest; among several such the name decides)"
}

// notAnEndpoint returns the reason that an address cannot be an endpoint of a unit: packets to it
// would come back to the gateway. It returns "" if it can be an endpoint. Addresses of this node
// are allowed, except for the ports that the operator denies: the kernel delivers packets to them,
// as for a host-network pod. A node may have any address, so the tunnel's port is refused at all
// addresses. An external IP rules out endpoints in its own namespace only: otherwise the author of
// a Service could remove any endpoint (CVE-2020-8554).
func (c *contest) notAnEndpoint(u *unit, a header.Addr, port uint16, proto uint8) string {
	o, ours := c.addrs.own[a]
	switch {
	case c.cfg.deniedHostPort(a, port):
		return fmt.Sprintf("%q is a port of this node that no Service may reach (proxy.deniedHostPorts)",
			endpointName(a, port, proto))
	case proto == header.ProtoUDP && port == c.cfg.TunnelPort: // which is 0 without a tunnel
		return fmt.Sprintf("%q is at the port of the tunnel to nodes, which admit gateways only (directReturn.port)",
			endpointName(a, port, proto))
	case !ours || o.flags&services.AddrLocal != 0:
		return ""
	case o.flags&services.AddrSNAT != 0:
		return fmt.Sprintf("%q is a source address of this gateway, not one of an endpoint", a)
	case o.vips == 0:
		return ""
	}
	k := services.FrontendKey{Addr: a, Port: port, Proto: proto}
	w := c.winner(k)
	if w == nil || w.kindOf(k) == services.ExternalIP && w.key.namespace != u.key.namespace {
		return ""
	}
	return fmt.Sprintf("%q is a frontend of Service %s/%s, not an endpoint", frontendName(k), w.key.namespace,
		w.key.name)
}
