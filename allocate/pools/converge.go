package pools

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Result is what becomes of a Service.
type Result struct {
	// Keep: nothing is known of pools yet, so the status must stay as it is.
	Keep bool
	// Addresses is what the status must list. None: it must list nothing.
	Addresses []netip.Addr
	// Pool has them; empty if no pool that can be read does.
	Pool string
	// Refusal is why there are no addresses; nil if there are, or if the Service asks for none.
	Refusal *Refusal
	// Notes are what its author should know although it has addresses.
	Notes []*Refusal
	// Lacks: it has no address, or lacks one of a family.
	Lacks bool
}

// none is the result for a Service that gets nothing.
func none(why *Refusal, notes ...*Refusal) Result {
	return Result{Refusal: why, Notes: notes, Lacks: true}
}

// Forget drops what a Service has, which was deleted or is not ours any more. It reports whether
// it had something.
func (a *Allocator) Forget(key string) (had bool) {
	had = a.Release(key)
	a.waitFor(key, nil)
	return had
}

// Adopt claims what the status of a Service lists, if it may have that. Call it for every Service
// before Converge is called for the first, and after SetPools: so nobody is given an address that
// another Service has.
func (a *Allocator) Adopt(s *corev1.Service, namespaceLabels map[string]string) {
	r, refusal := RequestOf(s, namespaceLabels)
	a.AdoptRequest(r, refusal, StatusOf(s))
}

// AdoptRequest is Adopt for a Service that was read, as in ConvergeRequest.
func (a *Allocator) AdoptRequest(r *Request, refusal *Refusal, has []netip.Addr) {
	if !a.ready || refusal != nil {
		return
	}
	a.sameService(r)
	a.adopt(r, has)
}

// sameService drops a claim of another Service that had the name.
func (a *Allocator) sameService(r *Request) {
	if c := a.claims[r.Key]; c != nil && c.uid != r.UID {
		a.Release(r.Key)
	}
}

// adopt returns why what a Service has cannot stay; nil if it does, or if it has nothing.
func (a *Allocator) adopt(r *Request, has []netip.Addr) *Refusal {
	if len(has) == 0 {
		return nil
	}
	v4, v6 := families(has)
	if len(has) == 2 && v4 && v6 && r.V4 != r.V6 { // it has given up a family, and keeps the other one's
		has = slices.DeleteFunc(slices.Clone(has), func(a netip.Addr) bool { return a.Is4() != r.V4 })
		v4, v6 = r.V4, r.V6
	}
	switch {
	case len(has) > 2 || len(has) == 2 && !(v4 && v6), v4 && !r.V4, v6 && !r.V6:
		return refuse(WrongFamily, "the status lists %s, and the ClusterIPs are %s", join(has), familyNames(r.V4, r.V6))
	case len(r.Addresses) > 0 && !sameAddresses(has, r.Addresses):
		return refuse(BadWish, "the Service asks for %s instead", join(r.Addresses))
	case a.pool(r.Pool) != nil && !a.pool(r.Pool).containsAll(has) && a.presumed(r.Pool, has) == nil:
		return refuse(BadWish, "the Service asks for pool %s instead", r.Pool)
	}
	return a.assign(r, has, true)
}

func sameAddresses(a, b []netip.Addr) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(x netip.Addr) bool { return !slices.Contains(b, x) })
}

// Converge decides what a Service of type LoadBalancer that is ours has from now on.
func (a *Allocator) Converge(s *corev1.Service, namespaceLabels map[string]string) (result Result) {
	r, refusal := RequestOf(s, namespaceLabels)
	return a.ConvergeRequest(r, refusal, StatusOf(s))
}

// ConvergeRequest is Converge for a Service that was read: r and refusal are of RequestOf, has is
// what its status lists (StatusOf).
func (a *Allocator) ConvergeRequest(r *Request, refusal *Refusal, has []netip.Addr) (result Result) {
	if !a.ready {
		return Result{Keep: true}
	}
	defer func() {
		if a.waits != nil {
			a.waitFor(r.Key, a.conditions(r, &result))
		}
	}()
	key := r.Key
	a.sameService(r)
	switch {
	case !r.V4 && !r.V6: // the API server has not given it a ClusterIP
		a.Release(key)
		return Result{}
	case len(a.pools)+len(a.unreadable) == 0:
		a.Release(key)
		return none(refuse(NoPool, "there are no pools: create an AddressPool"))
	case refusal != nil:
		a.Release(key)
		return none(refusal)
	}
	return a.converge(r, has)
}

func (a *Allocator) converge(r *Request, has []netip.Addr) Result {
	var notes []*Refusal
	if why := a.adopt(r, has); why != nil {
		a.Release(r.Key)
		if why.Reason != BadWish { // that its author asks for another address is no news to the author
			notes = append(notes, refuse(why.Reason, "the address was replaced: %s", why.Message))
		}
	}
	addresses, refusal := a.Allocate(r)
	if refusal != nil {
		if current, _ := a.Claimed(r.Key); current != nil {
			// What it has is not enough, or not its own any more. The next try begins with nothing.
			a.Release(r.Key)
			addresses, refusal = a.Allocate(r)
		}
	}
	if refusal != nil {
		a.Release(r.Key)
		if result := a.unmoved(r, has, refusal); result != nil {
			return *result
		}
		return none(refusal, notes...)
	}
	if a.presumes(r.Key) {
		return *a.kept(r, notes...)
	}
	_, pool := a.Claimed(r.Key)
	result := Result{Addresses: addresses, Pool: pool, Notes: notes}
	if r.dual() && len(addresses) < 2 {
		result.Lacks = true
		result.Notes = append(result.Notes, refuse(PoolEmpty,
			"one family only: pool %s has no free address of the other", pool))
	}
	return result
}
