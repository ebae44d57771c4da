package control

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// annotationWeights gives endpoints their shares of new flows, on a Service or on an
// EndpointSlice: MATCH=WEIGHT, comma separated, where MATCH is an address, a CIDR,
// node:NAME or zone:NAME. The first that matches decides, a slice's before the
// Service's, and without any the weight is 1. Weight 0 takes no new flows.
const annotationWeights = "sluice.dev/weights"

// maxWeightRules bounds what every endpoint is held against.
const maxWeightRules = 1000

// weightRule has one of prefix, node and zone. It is comparable.
type weightRule struct {
	prefix     netip.Prefix
	node, zone string
	weight     uint16 // up to 65,535, as in ipvsadm(8)
}

type weightRules []weightRule

// readWeights leaves out entries that say nothing; nil where none is left.
func readWeights(annotations map[string]string) (rules weightRules, faults []fault) {
	text, ok := annotations[annotationWeights]
	if !ok {
		return nil, nil
	}
	const field = "metadata.annotations[" + annotationWeights + "]"
	for entry := range strings.SplitSeq(text, ",") {
		if entry = strings.TrimSpace(entry); entry == "" {
			continue
		}
		if len(rules) == maxWeightRules {
			return rules, append(faults, fault{field, fmt.Sprintf("only the first %d entries are used", maxWeightRules), Warning})
		}
		rule, why := parseWeight(entry)
		if why != "" {
			faults = append(faults, fault{field, fmt.Sprintf("%q %s; it is ignored", entry, why), Warning})
			continue
		}
		rules = append(rules, rule)
	}
	return rules, faults
}

func parseWeight(entry string) (rule weightRule, why string) {
	match, number, found := strings.Cut(entry, "=")
	weight, err := strconv.ParseUint(strings.TrimSpace(number), 10, 16)
	if !found || err != nil {
		return rule, "is not MATCH=WEIGHT with a weight from 0 to 65535"
	}
	rule.weight = uint16(weight)
	match = strings.TrimSpace(match)
	if name, ok := strings.CutPrefix(match, "node:"); ok && name != "" {
		rule.node = name
		return rule, ""
	}
	if name, ok := strings.CutPrefix(match, "zone:"); ok && name != "" {
		rule.zone = name
		return rule, ""
	}
	if a, err := parseAddr(match); err == nil {
		rule.prefix = netip.PrefixFrom(a, a.BitLen())
		return rule, ""
	}
	if rule.prefix, err = parsePrefix(match); err != nil {
		return rule, "matches neither an address, a CIDR, node:NAME nor zone:NAME"
	}
	return rule, ""
}

// weight returns an endpoint's weight; -1 where no rule matches it.
func (rs weightRules) weight(a header.Addr, node, zone string) int32 {
	ip := a.Netip()
	for i := range rs {
		r := &rs[i]
		if r.node != "" && r.node == node || r.zone != "" && r.zone == zone || r.prefix.IsValid() && r.prefix.Contains(ip) {
			return int32(r.weight)
		}
	}
	return -1
}

// shares are the weights of a unit's endpoints, by slice. Up to a thousand rules are held
// against each endpoint, so that is done once for a version of a slice and of the rules, not
// for every port and build.
type shares struct {
	rules weightRules
	of    map[*slice][]uint16
}

// renew forgets what is not so any more.
func (h *shares) renew(u *unit) {
	var rules weightRules
	if u.service != nil {
		rules = u.service.weights
	}
	if !slices.Equal(h.rules, rules) {
		*h = shares{rules: rules}
	}
	for s := range h.of {
		if !slices.Contains(u.slices, s) {
			delete(h.of, s)
		}
	}
}

// get returns the weights of a slice's endpoints, which its own annotation and the rules of the
// Service make; nil if all are 1.
func (h *shares) get(s *slice) []uint16 {
	if h.rules == nil && s.weights == nil {
		return nil
	}
	list, known := h.of[s]
	if known {
		return list
	}
	for i := range s.endpoints {
		e, w := &s.endpoints[i], int32(-1)
		if s.weights != nil {
			w = s.weights[i]
		}
		if w < 0 {
			w = h.rules.weight(e.addr, s.node(e), s.zone(e))
		}
		if w < 0 {
			w = 1
		}
		list = append(list, uint16(w))
	}
	if h.of == nil {
		h.of = map[*slice][]uint16{}
	}
	h.of[s] = list
	return list
}

// weights lists those of chosen members by position; nil if all are 1.
func (f *familySet) weights(chosen []services.BackendRef) (list []uint16) {
	i := 0
	for _, m := range f.members {
		if i == len(chosen) {
			break
		}
		if m.ref != chosen[i] {
			continue
		}
		if m.weight != 1 && list == nil {
			list = make([]uint16, len(chosen))
			for j := range list[:i] {
				list[j] = 1
			}
		}
		if list != nil {
			list[i] = m.weight
		}
		i++
	}
	return list
}
