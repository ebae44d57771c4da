package kinds

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"sluice.dev/sluice/allocate/pools"
	"sluice.dev/sluice/internal/wording"
)

// Gap is a field of an object that asks for something that Sluice does not support.
type Gap struct {
	Path string // such as spec.vrf
	Why  string
	Do   string // what to do instead
}

// String returns the gap on one line.
func (g Gap) String() string { return fmt.Sprintf("%s (%s: %s)", g.Path, g.Why, g.Do) }

// Gaps returns the fields of an object's specification that Sluice does not support, in order.
// Events and `sluice config from-metallb` both use it.
func Gaps(kind string, spec map[string]any) (list []Gap) {
	if Pools(kind) {
		for _, path := range pools.Unread(spec) {
			list = append(list, gap(kind, strings.TrimPrefix(path, "spec.")))
		}
		return list
	}
	for _, name := range slices.Sorted(maps.Keys(spec)) {
		if slices.Contains(known[kind], name) || asksNothing(name, spec[name]) {
			continue
		}
		list = append(list, gap(kind, name))
	}
	if profile, _ := spec["bfdProfile"].(string); kind == "BGPPeer" && profile != "" && spec["ebgpMultiHop"] == true {
		list = append(list, Gap{"spec.bfdProfile", "with ebgpMultiHop: BFD is for routers of one link (RFC 5881)",
			"remove it: the session's hold time finds out"})
	}
	return list
}

// GapsNote returns the note of a Problem with reason FieldNotDone.
func GapsNote(gaps []Gap) string {
	var texts []string
	for _, g := range gaps {
		texts = append(texts, g.String())
	}
	return "Sluice does not support these fields: " + strings.Join(texts, "; ")
}

// Pools reports whether a kind is a kind of pools.
func Pools(kind string) bool { return kind == "AddressPool" || kind == "IPAddressPool" }

// Known reports whether Sluice reads objects of a kind.
func Known(kind string) bool { return Pools(kind) || known[kind] != nil }

func gap(kind, name string) Gap {
	if g, there := notDone[kind+"."+name]; there {
		g.Path = "spec." + name
		return g
	}
	if best := wording.Nearest(name, known[kind]); best != "" {
		return Gap{"spec." + name, "not a field that Sluice knows", "did you mean " + best + "?"}
	}
	return Gap{"spec." + name, "not a field that Sluice knows", "remove it"}
}

// notDone are fields of MetalLB 0.16 that Sluice knows but does not support.
var notDone = map[string]Gap{
	"BGPPeer.vrf": {Why: "sessions are made in the node's main routing table",
		Do: "reach the router by a route of that table"},
	"BGPPeer.dynamicASN": {Why: "the router's AS number is not chosen by whether it is this side's",
		Do: "write it as peerASN; with interface, leave it out for any"},
	"BGPPeer.localASN": {Why: "a session has one AS number on this side, and each peer may have another",
		Do: "write that number as myASN"},
	"BFDProfile.echoMode": {Why: "BFD packets go both ways here, none are looped back (RFC 5880, section 6.4)",
		Do: "remove it, and set receiveInterval and transmitInterval"},
	"BFDProfile.echoInterval": {Why: "there is no echo mode", Do: "remove it"},
	"BFDProfile.passiveMode": {Why: "BFD sessions begin from this side",
		Do: "remove it: the router may be passive or active"},
	"L2Advertisement.preferredNodeSelectors": {
		Why: "which gateway has an address follows from the address and the gateways that live",
		Do:  "use nodeSelectors to leave gateways out"},
	"BFDProfile.minimumTtl": {Why: "BFD is for routers of one link, whose packets have TTL 255 (RFC 5881, section 5)",
		Do: "remove it"},
}

// idle are fields with values that change nothing. MetalLB's API server adds them. With disableMP a
// session carries only the family of its addresses, which is always so here.
var idle = map[string][]any{"disableMP": {false, true}, "echoMode": {false}, "passiveMode": {false}, "vrf": {""},
	"dynamicASN": {""}}

func asksNothing(name string, value any) bool {
	return slices.ContainsFunc(idle[name], func(v any) bool { return reflect.DeepEqual(v, value) })
}

// DropIdle removes fields with values that change nothing.
func DropIdle(spec map[string]any) {
	maps.DeleteFunc(spec, asksNothing)
}
