package pools

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Result is the decision about a Service.
type Result struct {
	// Keep: no pools are known yet, so the status must stay unchanged.
	Keep bool
	// Addresses is the list that the status must have; nil: an empty one.
	Addresses []netip.Addr
	// Pool contains the addresses; empty if no readable pool does.
	Pool string
	// Refusal is why the Service has no address; nil if it has one, or needs none.
	Refusal *Refusal
	// Notes are warnings for the Service's author although it has addresses.
	Notes []*Refusal
	// Lacks: the Service has no address, or has none of one family.
	Lacks bool
}

// none is the result for a Service that gets nothing.
func none(why *Refusal, notes ...*Refusal) Result {
	return Result{Refusal: why, Notes: notes, Lacks: true}
}

// Forget drops the claim of a Service that was deleted or that this controller no longer serves. It
// reports whether there was a claim.
func (a *Allocator) Forget(key string) (had bool) {
	had = a.Release(key)
	a.waitFor(key, nil)
	return had
}

// Adopt claims the addresses that the status of a Service lists, if the Service may have them. Call
// it for every Service after SetPools and before the first call of Converge: otherwise a Service
// could get an address that another one has.
func (a *Allocator) Adopt(s *corev1.Service, namespaceLabels map[string]string) {
	r, refusal := RequestOf(s, namespaceLabels)
	a.AdoptRequest(r, refusal, StatusOf(s))
}

// AdoptRequest is Adopt for a Service that RequestOf has parsed, as in ConvergeRequest.
func (a *Allocator) AdoptRequest(r *Request, refusal *Refusal, has []netip.Addr) {
	if !a.ready || refusal != nil {
		return
	}
	a.sameService(r)
	a.adopt(r, has)
}

// sameService drops the claim of a deleted Service with the same name.
func (a *Allocator) sameService(r *Request) {
	if c := a.claims[r.Key]; c != nil && c.uid != r.UID {
		a.Release(r.Key)
	}
}

// adopt returns why a Service cannot keep its addresses; nil if it keeps them, or has none.
func (a *Allocator) adopt(r *Request, has []netip.Addr) *Refusal {
	if len(has) == 0 {
		return nil
	}
	v4, v6 := families(has)
	if len(has) == 2 && v4 && v6 && r.V4 != r.V6 { // it no longer asks for one family: keep the other address
		has = slices.DeleteFunc(slices.Clone(has), func(a netip.Addr) bool { return a.Is4() != r.V4 })
		v4, v6 = r.V4, r.V6
	}
	switch {
	case len(has) > 2 || len(has) == 2 && !(v4 && v6), v4 && !r.V4, v6 && !r.V6:
		return refuse(WrongFamily, "the status lists %s, and the ClusterIPs are %s", Join(has), familyNames(r.V4, r.V6))
	case len(r.Addresses) > 0 && !sameAddresses(has, r.Addresses):
		return refuse(BadWish, "the Service asks for %s instead", Join(r.Addresses))
	case a.pool(r.Pool) != nil && !a.pool(r.Pool).containsAll(has) && a.presumed(r.Pool, has) == nil:
		return refuse(BadWish, "the Service asks for pool %s instead", r.Pool)
	}
	return a.assign(r, has, true)
}

func sameAddresses(a, b []netip.Addr) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(x netip.Addr) bool { return !slices.Contains(b, x) })
}

// Converge decides which addresses a Service of type LoadBalancer has from now on.
func (a *Allocator) Converge(s *corev1.Service, namespaceLabels map[string]string) (result Result) {
	r, refusal := RequestOf(s, namespaceLabels)
	return a.ConvergeRequest(r, refusal, StatusOf(s))
}

// ConvergeRequest is Converge for a Service that was already parsed: r and refusal are results of
// RequestOf, has is the result of StatusOf.
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
		if why.Reason != BadWish { // the author knows that the Service asks for another address
			notes = append(notes, refuse(why.Reason, "the address was replaced: %s", why.Message))
		}
	}
	addresses, refusal := a.Allocate(r)
	if refusal != nil {
		if current, _ := a.Claimed(r.Key); current != nil {
			// Its addresses are too few, or it may not keep them: try again without them.
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
