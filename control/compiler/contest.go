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

// contest notes that who has these frontends may be another than before.
func (r *run) contest(claims []claim) {
	for _, c := range claims {
		r.contested[c.key] = true
	}
}

// settleClaims makes those dirty whom a contest concerns: whoever claims a frontend that
// changes hands, and those whose endpoints have its address. It is called once in a run,
// when no claim changes any more.
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
		r.uses.each(a, func(num int32) { r.dirty[r.byNum[num]] = true })
	}
}

// holder is who has a frontend in the snapshot before this run; nil if nobody.
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

// winner is who has a frontend; nil if nobody claims it. Whoever may write a Service may write
// any address as an external IP (CVE-2020-8554); cluster IPs and the status of a load balancer are
// allocated, so they go first. The many who may claim one frontend are compared once in a run.
func (r *run) winner(k services.FrontendKey) *unit {
	if only, ok := r.claims.only(k); ok {
		return r.byNum[only]
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
		external := u.kindOf(k) == services.ExternalIP
		if best == nil || external != taken && taken ||
			external == taken && cmp.Or(cmp.Compare(u.service.Created, best.service.Created), u.key.compare(best.key)) < 0 {
			best, taken = u, external
		}
	})
	return best
}

// youngestNote is what to know of a loser that nobody can see is the older one. It is about the
// loser alone: who wins may change its age without the loser being looked at again.
func youngestNote(s *objects.Service) string {
	if s.Created != math.MaxInt64 {
		return ""
	}
	return " (it has no metadata.creationTimestamp, so it counts as the youngest; among several such the name decides)"
}

// kindOf is which field a unit claims a frontend by.
func (u *unit) kindOf(k services.FrontendKey) services.FrontendKind {
	i, _ := slices.BinarySearchFunc(u.claims, k, func(c claim, k services.FrontendKey) int { return steer.CompareKeys(c.key, k) })
	return u.claims[i].kind
}

// notAnEndpoint says why packets to an endpoint of a unit would not arrive there; "" if they
// would. An address of this node is different: the kernel delivers to it, as to the
// endpoint of a host-network pod. A frontend that is an external IP keeps endpoints of its own
// namespace alone from its address: the others' might be there before it, and whoever
// writes one could take any endpoint away (CVE-2020-8554).
func (r *run) notAnEndpoint(u *unit, a header.Addr, port uint16, proto uint8) string {
	o, ours := r.own[a]
	switch {
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
	return fmt.Sprintf("%q is where Service %s/%s is reached, not an endpoint", keyString(k), w.key.namespace, w.key.name)
}
