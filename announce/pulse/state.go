package pulse

import (
	"net/netip"
	"slices"
	"time"
)

// Intervals.
const (
	// Every is the interval of a gateway's lines.
	Every = 100 * time.Millisecond
	// Silence is the time without a line after which a gateway counts as hung. It is several lines
	// long, since a machine may be busy.
	Silence = 500 * time.Millisecond
)

// Phase is the state of a gateway's process.
type Phase string

// The phases, in their order.
const (
	Opening     Phase = "opening"     // it does not forward yet; flows of the previous process are kept
	Serving     Phase = "serving"     // it forwards, unless there are Failures
	Draining    Phase = "draining"    // it forwards existing flows, and ends; no process follows
	HandingOver Phase = "handingOver" // it ends, and leaves its flows to the next process
)

// State is a gateway's report about itself.
type State struct {
	PID   int   `json:"pid"`
	Phase Phase `json:"phase"`
	// Failures are reasons why packets that arrive here would not be forwarded, such as a stalled
	// worker or an interface that is down. Empty: they would.
	Failures []string `json:"failures,omitempty"`
	// Interfaces are the names of the interfaces that it serves, by its configuration. Older
	// versions do not send them.
	Interfaces []string `json:"interfaces,omitempty"`
	// VIPs are the served addresses of Services of type LoadBalancer, in order.
	VIPs []VIP `json:"vips,omitempty"`
	// Sources are the source addresses of the gateway's group whose packets it can translate, in
	// order.
	Sources []Source `json:"sources,omitempty"`
	// Copied: another gateway has copies of this one's flows, and can go on with them at once.
	Copied bool `json:"copied,omitempty"`
}

// Source is a source address of a group of gateways.
type Source struct {
	Address netip.Addr `json:"address"`
	// Rank is the number of gateways that come before this one: 0 is the owner of the address.
	Rank int `json:"rank,omitempty"`
}

// Find returns the VIP with an address in a sorted list; nil if it is not there.
func Find(list []VIP, a netip.Addr) *VIP {
	i, found := search(list, a)
	if !found {
		return nil
	}
	return &list[i]
}

// search returns the index of the VIP with an address in a sorted list, or where it would be.
func search(list []VIP, a netip.Addr) (i int, found bool) {
	return slices.BinarySearchFunc(list, a, func(v VIP, a netip.Addr) int { return v.Address.Compare(a) })
}

// Equal reports whether two VIPs are equal.
func (v *VIP) Equal(o *VIP) bool {
	return v.Address == o.Address && slices.Equal(v.Services, o.Services)
}

// VIP is an address and its Services.
type VIP struct {
	Address  netip.Addr `json:"address"`
	Services []Service  `json:"services"` // in order; several may share the address
}

// Service is one Service of a VIP.
type Service struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Local: externalTrafficPolicy is Local. A Service with direct return is Local only if all its
	// endpoints are on this node: only other gateways reach them. Usable: new connections to the
	// VIP find an endpoint, with policy Local on this node, with direct return on another node.
	Local  bool `json:"local,omitempty"`
	Usable bool `json:"usable"`
	// Impaired is why new connections are likely to fail here but perhaps not at another gateway:
	// this one cannot reach endpoints. Empty: no reason is known.
	Impaired string `json:"impaired,omitempty"`
}

// Equal reports whether two states are equal.
func (s *State) Equal(o *State) bool {
	return s.PID == o.PID && s.Phase == o.Phase && slices.Equal(s.Failures, o.Failures) &&
		slices.Equal(s.Interfaces, o.Interfaces) && slices.Equal(s.Sources, o.Sources) && s.Copied == o.Copied &&
		slices.EqualFunc(s.VIPs, o.VIPs, func(a, b VIP) bool { return a.Equal(&b) })
}
