package layer2

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"sluice.dev/sluice/announce"
	"sluice.dev/sluice/announce/kinds"
	"sluice.dev/sluice/announce/layer2/frame"
	"sluice.dev/sluice/announce/view"
)

// Interface is an interface of this node.
type Interface struct {
	Name     string
	Index    int
	Ethernet bool // it has an Ethernet address
	MAC      frame.MAC
	Networks []netip.Prefix // of its addresses
	// NotServed: packets that arrive there do not reach the gateway (package links).
	NotServed bool
}

// Wish is a VIP on a link.
type LinkVIP struct {
	VIP   netip.Addr
	Grade announce.Grade
	Why   string // why Grade is not Yes
}

// Plan has the VIPs to announce on each link.
type Plan struct {
	// Ready: the gateway forwards or is held. Serves: its pulse arrives and it forwards.
	Ready, Serves bool
	// Links has the VIPs of each link, in order. A link without VIPs is there if an advertisement
	// may get some: a gateway that has joined before the first VIP can own it at once.
	Links map[string][]LinkVIP
	// Lines are the lines of VIPs that are on no link.
	Lines    map[netip.Addr]view.Line
	Problems []kinds.Problem
}

// NewPlan returns the plan for a World. It is a pure function.
func NewPlan(w *announce.World, interfaces []Interface) *Plan {
	p := &Plan{Ready: w.Gateway != announce.No, Serves: w.Serves, Links: map[string][]LinkVIP{},
		Lines: map[netip.Addr]view.Line{}}
	var here []*kinds.L2Advertisement
	for _, a := range w.Set.Layer2 {
		if a.NodeLabels.Match(w.Node.Labels) {
			here = append(here, a)
			p.open(w, a, interfaces)
		}
	}
	for i := range w.VIPs {
		if s := w.VIPs[i]; s.Pool != nil && len(w.Set.Layer2) > 0 {
			p.vip(s, here, interfaces)
		}
	}
	return p
}

// open adds the links of an advertisement.
func (p *Plan) open(w *announce.World, a *kinds.L2Advertisement, interfaces []Interface) {
	there := false
	for i := range interfaces {
		n := &interfaces[i]
		named := slices.Contains(a.Interfaces, n.Name)
		there = there || named
		if named && !n.Ethernet {
			p.Problems = append(p.Problems, kinds.Problem{About: a.Ref, Reason: kinds.Invalid,
				Note: "interfaces: " + n.Name + " of node " + w.Node.Name + " is no Ethernet interface"})
			continue
		}
		if !slices.ContainsFunc(w.Set.Pools, func(pool *kinds.Pool) bool {
			return a.ForPool(pool) && (named || len(a.Interfaces) == 0 && n.Ethernet &&
				slices.ContainsFunc(n.Networks, pool.Meets))
		}) {
			continue
		}
		if n.NotServed {
			p.Problems = append(p.Problems, kinds.Problem{About: a.Ref, Reason: kinds.NotServed,
				Note: fmt.Sprintf("interface %s of node %s is left out: the gateway there serves %s, and would not "+
					"get the packets; add it to interfaces of the gateway's configuration, or name others in "+
					"spec.interfaces", n.Name, w.Node.Name, strings.Join(w.Interfaces, ", "))})
			continue
		}
		p.Links[n.Name] = []LinkVIP{}
	}
	if !there && len(a.Interfaces) > 0 {
		p.Problems = append(p.Problems, kinds.Problem{About: a.Ref, Reason: kinds.NotFound,
			Note: "interfaces: node " + w.Node.Name + " has none of " + strings.Join(a.Interfaces, ", ")})
	}
}

// vip adds a VIP to the links of the advertisements that select it.
func (p *Plan) vip(s *announce.VIPVerdict, here []*kinds.L2Advertisement, interfaces []Interface) {
	selected, on := false, map[string]bool{}
	var left []string // interfaces that are not served
	for _, a := range here {
		if !a.ForPool(s.Pool) || !a.ForServices(s.Labels) {
			continue
		}
		selected = true
		for i := range interfaces {
			n := &interfaces[i]
			switch {
			case !n.Ethernet || !n.carries(a, s.VIP) || on[n.Name]:
			case n.NotServed:
				if !slices.Contains(left, n.Name) {
					left = append(left, n.Name)
				}
			default:
				on[n.Name] = true
				p.Links[n.Name] = append(p.Links[n.Name], LinkVIP{s.VIP, s.Grade, s.Why})
			}
		}
	}
	if len(on) > 0 {
		return
	}
	why := "no L2Advertisement is for pool " + s.Pool.Name + ", this node and these Services"
	switch {
	case len(left) > 0:
		why = "the gateway does not serve " + strings.Join(left, ", ") + ", and no other interface is for the VIP"
	case selected:
		why = "no interface of this node has an address in a network with the VIP, or is named in the L2Advertisement"
	}
	p.Lines[s.VIP] = view.Line{Speaker: view.Layer2, State: view.Not, Why: why}
}

// carries reports whether an advertisement announces a VIP on the interface.
func (n *Interface) carries(a *kinds.L2Advertisement, vip netip.Addr) bool {
	if len(a.Interfaces) > 0 {
		return slices.Contains(a.Interfaces, n.Name)
	}
	return slices.ContainsFunc(n.Networks, func(p netip.Prefix) bool { return p.Contains(vip) })
}
