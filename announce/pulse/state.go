package pulse

import (
	"net/netip"
	"slices"
	"time"
)

// Intervals.
const (
	// Every is how often a gateway writes a line.
	Every = 100 * time.Millisecond
	// Silence is after how long without a line a gateway counts as standing still: several lines,
	// since a machine may be busy.
	Silence = 500 * time.Millisecond
)

// Phase is what a gateway's process does.
type Phase string

// The phases, in their order.
const (
	Opening     Phase = "opening"     // it does not forward yet; flows of the process before wait for it
	Serving     Phase = "serving"     // it forwards, unless Failures says otherwise
	Draining    Phase = "draining"    // it forwards what it has, and ends; nobody follows
	HandingOver Phase = "handingOver" // it ends, and leaves its flows to the next process
)

// State is what a gateway says of itself.
type State struct {
	PID   int   `json:"pid"`
	Phase Phase `json:"phase"`
	// Failures are why packets that are sent here would not be forwarded: a worker that stands, an
	// interface that is down. Empty: they would.
	Failures []string `json:"failures,omitempty"`
	// Interfaces are the names of those that it serves, by its configuration. Gateways of builds
	// before do not say it.
	Interfaces []string `json:"interfaces,omitempty"`
	// VIPs are the addresses of Services of type LoadBalancer that are served, in order.
	VIPs []VIP `json:"vips,omitempty"`
}

// Find returns the VIP with an address of a list in order; nil if there is none.
func Find(list []VIP, a netip.Addr) *VIP {
	i, found := search(list, a)
	if !found {
		return nil
	}
	return &list[i]
}

// search returns where the VIP with an address is in a list in order, or belongs.
func search(list []VIP, a netip.Addr) (i int, found bool) {
	return slices.BinarySearchFunc(list, a, func(v VIP, a netip.Addr) int { return v.Address.Compare(a) })
}

// Equal reports whether two VIPs say the same.
func (v *VIP) Equal(o *VIP) bool {
	return v.Address == o.Address && slices.Equal(v.Services, o.Services)
}

// VIP is an address and whose it is.
type VIP struct {
	Address  netip.Addr `json:"address"`
	Services []Service  `json:"services"` // in order; several share the address
}

// Service is one Service of a VIP.
type Service struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Local: externalTrafficPolicy is Local. Usable: new connections to the VIP find an endpoint
	// here, with policy Local one of this node.
	Local  bool `json:"local,omitempty"`
	Usable bool `json:"usable"`
	// Impaired is why new connections are likely to fail here, where another gateway may serve
	// them: endpoints that cannot be reached from here. Empty: nothing is known against it.
	Impaired string `json:"impaired,omitempty"`
}

// Equal reports whether two states say the same.
func (s *State) Equal(o *State) bool {
	return s.PID == o.PID && s.Phase == o.Phase && slices.Equal(s.Failures, o.Failures) &&
		slices.Equal(s.Interfaces, o.Interfaces) &&
		slices.EqualFunc(s.VIPs, o.VIPs, func(a, b VIP) bool { return a.Equal(&b) })
}
