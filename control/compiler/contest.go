package compiler

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/steer"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// contest records that the holders of these frontends may change.
func (r *run) contest(claims []claim) {
	for _, c := range claims {
		r.contested[c.key] = true
	}
}

// settleClaims marks the affected units as dirty: those that claim a frontend whose holder changes,
// and those with endpoints at its address. It is called once in a run, after the last change of a
// claim.
func (r *run) settleClaims() {
	addrs := map[header.Addr]bool{}
	for k := range r.contested {
		addrs[k.Addr] = true
		before, now := r.holder(k), r.winner(k)
		if before == now {
			continue
		}
		if before != nil {
			r.dirty[before] = true
		}
		r.claims.each(k, func(num int32) { r.dirty[r.byNum[num]] = true })
	}
	for a := range addrs {
		r.uses.each(a, r.reread)
	}
}

// reread makes a unit dirty whose endpoints may be other ones, though its slices are the same.
func (r *run) reread(num int32) {
	u := r.byNum[num]
	r.dirty[u], u.reread = true, true
}

// holder returns the unit that has a frontend in the snapshot before this run; nil if none has.
func (r *run) holder(k services.FrontendKey) *unit {
	if r.snapshot == nil {
		return nil
	}
	f, ok := r.snapshot.FrontendByKey(k)
	if !ok {
		return nil
	}
	return r.units[unitKey{f.Service.Namespace, f.Service.Name}]
}

// winner returns the unit that gets a frontend; nil if no admitted one claims it. Claims by
// ClusterIP and by the status of a load balancer, which are allocated, come before those by
// external IP, because any author of a Service may write any address there (CVE-2020-8554). The
// claims of one frontend are compared once in a run.
func (r *run) winner(k services.FrontendKey) *unit {
	if only, ok := r.claims.only(k); ok {
		if u := r.byNum[only]; u.denied == "" {
			return u
		}
		return nil
	}
	w, known := r.winners[k]
	if !known {
		w = r.compete(k)
		r.winners[k] = w
	}
	return w
}

func (r *run) compete(k services.FrontendKey) (best *unit) {
	taken := false // by an external IP
	r.claims.each(k, func(num int32) {
		u := r.byNum[num]
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

// youngestNote returns the part of a loser's message that explains its age. It depends on the loser
// only: the winner may change its age without a new build of the loser.
func youngestNote(s *objects.Service) string {
	if s.Created != math.MaxInt64 {
		return ""
	}
	return " (it has no metadata.creationTimestamp, so it counts as the youngest; among several such the name decides)"
}

// kindOf returns the field by which a unit claims a frontend.
func (u *unit) kindOf(k services.FrontendKey) services.FrontendKind {
	i, _ := slices.BinarySearchFunc(u.claims, k,
		func(c claim, k services.FrontendKey) int { return steer.CompareKeys(c.key, k) })
	return u.claims[i].kind
}

// notAnEndpoint returns why packets to an endpoint of a unit would come back to the gateway; "" if
// they would not. Addresses of this node are allowed, but for the ports that the operator denies:
// the kernel delivers to them, as to the endpoint of a host-network pod. An external IP rules out
// endpoints of its own namespace only: otherwise its author could remove any endpoint
// (CVE-2020-8554).
func (r *run) notAnEndpoint(u *unit, a header.Addr, port uint16, proto uint8) string {
	o, ours := r.own[a]
	switch {
	case r.deniedHostPort(a, port):
		return fmt.Sprintf("%q is a port of this node that no Service may reach (proxy.deniedHostPorts)",
			endpointName(a, port, proto))
	case !ours || o.flags&services.AddrLocal != 0:
		return ""
	case o.flags&services.AddrSNAT != 0:
		return fmt.Sprintf("%q is a source address of this gateway, not one of an endpoint", a)
	case o.vips == 0:
		return ""
	}
	k := services.FrontendKey{Addr: a, Port: port, Proto: proto}
	w := r.winner(k)
	if w == nil || w.kindOf(k) == services.ExternalIP && w.key.namespace != u.key.namespace {
		return ""
	}
	return fmt.Sprintf("%q is where Service %s/%s is reached, not an endpoint", keyString(k), w.key.namespace,
		w.key.name)
}
