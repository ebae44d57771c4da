package k8s

import (
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"

	"sluice.dev/sluice/control/tracker"
)

// seen is an endpoint of a slice. The address is the API's text, because only versions of one
// object are compared.
type seen struct {
	address string
	ready   bool
}

func endpointsOf(object *discoveryv1.EndpointSlice) (list []seen) {
	if object == nil {
		return nil
	}
	for i := range object.Endpoints {
		e := &object.Endpoints[i]
		if len(e.Addresses) == 0 {
			continue
		}
		list = append(list, seen{e.Addresses[0], isReady(e)})
	}
	return list
}

func isReady(e *discoveryv1.Endpoint) bool {
	c := &e.Conditions
	return (c.Ready == nil || *c.Ready) && (c.Terminating == nil || !*c.Terminating)
}

// endpoint counts the slices of a Service with an address: the versions that the Tracker has, and
// the newest ones, which may wait.
type endpoint struct {
	given  int32 // the Tracker's that have it as ready
	listed int32 // newest that have it, ready or not
	ready  int32 // newest that have it as ready
}

// evidence sums up the endpoints of a Service.
type evidence struct {
	ready     int // endpoints that the Tracker has as ready
	left      int // how many of the ready ones are still ready in the slices
	explained int // how many of them the slices list as not ready
	fresh     int // others that are ready in the slices
}

func (v *evidence) add(e endpoint, by int) {
	switch {
	case e.given == 0 && e.ready > 0:
		v.fresh += by
	case e.given == 0:
	case e.ready > 0:
		v.left += by
	case e.listed > 0:
		v.explained += by
	}
	if e.given > 0 {
		v.ready += by
	}
}

// edit changes the counts of an address.
func (s *heldService) edit(address string, change func(*endpoint)) {
	e := s.endpoints[address]
	before := e
	change(&e)
	s.sum.add(before, -1)
	s.sum.add(e, +1)
	if e == (endpoint{}) {
		delete(s.endpoints, address)
	} else {
		s.endpoints[address] = e
	}
	if (before.listed > 0) != (e.listed > 0) {
		for _, slice := range s.former[address] {
			s.review(slice)
		}
	}
}

// countNewest counts the endpoints of a newest version (by 1), or no longer (by -1).
func (s *heldService) countNewest(list []seen, by int32) {
	for _, p := range list {
		s.edit(p.address, func(e *endpoint) {
			e.listed += by
			if p.ready {
				e.ready += by
			}
		})
	}
}

// countGiven counts the ready endpoints of a version that the Tracker has, or no longer.
func (s *heldService) countGiven(list []seen, by int32) {
	for _, p := range list {
		if p.ready {
			s.edit(p.address, func(e *endpoint) { e.given += by })
		}
	}
}

func (s *heldSlice) newest() []seen {
	if s.waiting != nil {
		return s.next
	}
	return s.given
}

func (s *heldService) lists(p seen) bool { return s.endpoints[p.address].listed > 0 }

// vanished reports whether a slice had ready endpoints and no slice has any of these now.
func (s *heldService) vanished(slice *heldSlice) bool {
	had := false
	for _, p := range slice.given {
		if !p.ready {
			continue
		}
		if s.lists(p) {
			return false
		}
		had = true
	}
	return had
}

// prune removes endpoints that were not ready and are gone from the version of a waiting slice that
// the Tracker has.
func (s *heldService) prune(slice *heldSlice, b *tracker.Batch) {
	if slice.object == nil {
		return
	}
	over := func(p seen) bool { return !p.ready && !s.lists(p) }
	if !slices.ContainsFunc(slice.given, over) {
		return
	}
	rest := *slice.object // shares memory with the former version, which is not modified
	rest.Endpoints = slices.DeleteFunc(slices.Clone(rest.Endpoints), func(p discoveryv1.Endpoint) bool {
		return len(p.Addresses) > 0 && over(seen{p.Addresses[0], isReady(&p)})
	})
	s.remember(slice, false)
	slice.object, slice.given = &rest, endpointsOf(&rest)
	s.remember(slice, true)
	add(b, slice.from, &change{id: slice.waiting.id, object: &rest})
}

// remember adds the endpoints of a waiting slice's former version to s.former, or removes them.
func (s *heldService) remember(slice *heldSlice, on bool) {
	for _, p := range slice.given {
		list := slices.DeleteFunc(s.former[p.address], func(o *heldSlice) bool { return o == slice })
		if on {
			list = append(list, slice)
		}
		if len(list) > 0 {
			s.former[p.address] = list
		} else {
			delete(s.former, p.address)
		}
	}
}
