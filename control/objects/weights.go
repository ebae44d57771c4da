package objects

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/gaissmai/bart"

	"sluice.dev/sluice/nat/header"
)

// annotationWeights is the annotation of a Service or an EndpointSlice with the weights of
// endpoints: MATCH=WEIGHT, comma separated, where MATCH is an address, a CIDR, node:NAME or
// zone:NAME. The first entry that matches an endpoint counts; entries of the slice come before
// entries of the Service. The default is 1. An endpoint of weight 0 gets no new flows.
const annotationWeights = "sluice.dev/weights"

// maxWeightRules bounds the rules that are kept for each Service and slice.
const maxWeightRules = 1000

// weightRule has one of prefix, node and zone. It is comparable.
type weightRule struct {
	prefix     netip.Prefix
	node, zone string
	weight     uint16 // up to 65,535, as in ipvsadm(8)
}

type WeightRules []weightRule

// readWeights returns the valid ones of the first entries, nil if there are none, and a problem for
// each invalid one. An annotation may have hundreds of thousands of entries.
func readWeights(annotations map[string]string) (rules WeightRules, problems []FieldProblem) {
	text, ok := annotations[annotationWeights]
	if !ok {
		return nil, nil
	}
	const field = "metadata.annotations[" + annotationWeights + "]"
	entries := 0
	for entry := range strings.SplitSeq(text, ",") {
		if entry = strings.TrimSpace(entry); entry == "" {
			continue
		}
		if entries++; entries > maxWeightRules {
			return rules, append(problems, warn(field, "only the first %d entries are used", maxWeightRules))
		}
		rule, why := parseWeight(entry)
		if why != "" {
			problems = append(problems, warn(field, "%q %s; it is ignored", entry, why))
			continue
		}
		rules = append(rules, rule)
	}
	return rules, problems
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

// WeightTable finds the first of the rules that match an endpoint, at the same cost for any number
// of rules.
type WeightTable struct {
	rules WeightRules
	// Positions of the first rule for a name, and of the first rule for a prefix or a wider one.
	nodes, zones map[string]int
	prefixes     bart.Table[int]
}

// Table returns a WeightTable of the rules.
func (rs WeightRules) Table() *WeightTable {
	t := &WeightTable{rules: rs, nodes: map[string]int{}, zones: map[string]int{}}
	var prefixes []netip.Prefix
	for i, r := range slices.Backward(rs) { // so that the first of equal ones stays
		switch {
		case r.node != "":
			t.nodes[r.node] = i
		case r.zone != "":
			t.zones[r.zone] = i
		default:
			t.prefixes.Insert(r.prefix, i)
			prefixes = append(prefixes, r.prefix)
		}
	}
	for _, p := range prefixes {
		first := len(rs)
		for _, i := range t.prefixes.Supernets(p) { // p too
			first = min(first, i)
		}
		t.prefixes.Insert(p, first)
	}
	return t
}

// Weight returns the weight of an endpoint; -1 if no rule matches it.
func (t *WeightTable) Weight(a header.Addr, node, zone string) int32 {
	first, found := t.prefixes.Lookup(a.Netip())
	if !found {
		first = len(t.rules)
	}
	if i, found := t.nodes[node]; found {
		first = min(first, i)
	}
	if i, found := t.zones[zone]; found {
		first = min(first, i)
	}
	if first == len(t.rules) {
		return -1
	}
	return int32(t.rules[first].weight)
}
