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

// evidence is the state, in the newest versions of a Service's slices, of the endpoints that the
// Tracker has as ready.
type evidence struct {
	now       map[string]bool // all that are there: ready or not
	ready     int             // endpoints that the Tracker has as ready
	left      int             // how many of the ready ones are still ready in the slices
	explained bool            // a slice lists some of the ready ones as not ready
	fresh     bool            // others are ready
}

func (s *heldService) compare() evidence {
	e := evidence{now: map[string]bool{}}
	given := map[string]bool{}
	for _, slice := range s.slices {
		for _, p := range slice.given {
			if p.ready {
				given[p.address] = true
			}
		}
		for _, p := range slice.newest() {
			e.now[p.address] = e.now[p.address] || p.ready
		}
	}
	e.ready = len(given)
	for address := range given {
		if ready, there := e.now[address]; ready {
			e.left++
		} else if there {
			e.explained = true
		}
	}
	for address, ready := range e.now {
		e.fresh = e.fresh || ready && !given[address]
	}
	return e
}

func (s *heldSlice) newest() []seen {
	if s.waiting != nil {
		return s.next
	}
	return s.given
}

// vanished reports whether a slice had ready endpoints and no slice has any of these now.
func (e *evidence) vanished(s *heldSlice) bool {
	had := false
	for _, p := range s.given {
		if !p.ready {
			continue
		}
		if _, there := e.now[p.address]; there {
			return false
		}
		had = true
	}
	return had
}

// prune removes endpoints that were not ready and are gone from the version of a waiting slice that
// the Tracker has.
func (s *heldSlice) prune(e *evidence, b *tracker.Batch) {
	if s.waiting == nil || s.object == nil {
		return
	}
	over := func(p seen) bool {
		_, there := e.now[p.address]
		return !p.ready && !there
	}
	if !slices.ContainsFunc(s.given, over) {
		return
	}
	rest := *s.object // shares memory with the former version, which is not modified
	rest.Endpoints = slices.DeleteFunc(slices.Clone(rest.Endpoints), func(p discoveryv1.Endpoint) bool {
		return len(p.Addresses) > 0 && over(seen{p.Addresses[0], isReady(&p)})
	})
	s.object, s.given = &rest, endpointsOf(&rest)
	add(b, s.from, &change{id: s.waiting.id, object: &rest})
}
