package compiler

import (
	"maps"
	"math"
	"slices"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/fastpath/services"
)

// shares are the weights of a unit's endpoints, by slice. They are kept while slice and rules stay
// the same.
type shares struct {
	rules objects.WeightRules
	table *objects.WeightTable // of rules, nil until it is needed
	of    map[*objects.Slice][]uint16
}

// renew drops the results if the rules changed, and reports whether they did.
func (h *shares) renew(s *objects.Service) bool {
	var rules objects.WeightRules
	if s != nil {
		rules = s.Weights
	}
	if slices.Equal(h.rules, rules) {
		return false
	}
	*h = shares{rules: rules}
	return true
}

// sweep drops results of former slices.
func (h *shares) sweep(list []*objects.Slice) {
	if len(h.of) <= len(list) {
		return
	}
	known := make(map[*objects.Slice]bool, len(list))
	for _, s := range list {
		known[s] = true
	}
	maps.DeleteFunc(h.of, func(s *objects.Slice, _ []uint16) bool { return !known[s] })
}

// get returns the weights of a slice's endpoints by the annotations of slice and Service; nil if
// all are 1.
func (h *shares) get(s *objects.Slice) []uint16 {
	if h.rules == nil && s.Weights == nil {
		return nil
	}
	list, known := h.of[s]
	if known {
		return list
	}
	if h.table == nil {
		h.table = h.rules.Table()
	}
	for i := range s.Endpoints {
		e, w := &s.Endpoints[i], int32(-1)
		if s.Weights != nil {
			w = s.Weights[i]
		}
		if w < 0 {
			w = h.table.Weight(e.Addr, s.Node(e), s.Zone(e))
		}
		if w < 0 {
			w = 1
		}
		list = append(list, uint16(w))
	}
	if h.of == nil {
		h.of = map[*objects.Slice][]uint16{}
	}
	h.of[s] = list
	return list
}

// weightsOf lists the weights of chosen members by position; nil if all are 1. If a member starts
// slowly, all weights are multiplied by ten, or by less if a weight would overflow, and that member
// gets its share.
func weightsOf(members []member, chosen []services.BackendRef) (list []uint16) {
	slow := false
	rest := cursor(members)
	for i, ref := range chosen {
		m := rest.seek(ref)
		if m == nil {
			break
		}
		slow = slow || m.share != 0
		if (m.weight != 1 || slow) && list == nil {
			list = make([]uint16, len(chosen))
			for j := range list[:i] {
				list[j] = 1
			}
		}
		if list != nil {
			list[i] = m.weight
		}
	}
	if slow {
		startSlowly(members, chosen, list)
	}
	return list
}

const shareParts = 10 // of member.share

func startSlowly(members []member, chosen []services.BackendRef, weights []uint16) {
	scale := min(shareParts, math.MaxUint16/int(slices.Max(weights)))
	rest := cursor(members)
	for i, ref := range chosen {
		m := rest.seek(ref)
		if m == nil {
			break
		}
		w := int(weights[i]) * scale
		if m.share != 0 {
			w = max(1, w*int(m.share)/shareParts)
		}
		weights[i] = uint16(w)
	}
}
