package announce

import (
	"net/netip"
	"slices"

	"sluice.dev/sluice/announce/kinds"
	"sluice.dev/sluice/announce/view"
)

// World is the input of speakers. It must not be changed.
type World struct {
	Node Node
	// Gateway is how far the gateway as a whole is announced.
	Gateway Grade
	// Serves: the gateway's pulse arrives and it forwards. During a hold it is false, Gateway is
	// Yes.
	Serves bool
	VIPs   []*VIPVerdict // in order of their addresses
	// Sources are source addresses of the gateway's group.
	Sources []*VIPVerdict
	// Interfaces are the names of the interfaces that the gateway serves; nil: unknown.
	Interfaces []string
	Set        *kinds.Set
	// Number counts Worlds. If Since is not 0, this World differs from the one with the number
	// Since only in the VIPs of Changed (including ones that came or went), in Serves and in
	// Interfaces.
	Number, Since uint64
	Changed       []netip.Addr
}

// Find returns the verdict about a VIP; nil if there is none.
func (w *World) Find(vip netip.Addr) *VIPVerdict {
	i, found := slices.BinarySearchFunc(w.VIPs, vip, compareVIP)
	if !found {
		return nil
	}
	return w.VIPs[i]
}

// Speaker attracts packets to this node by one protocol. All methods except Lines are called by one
// goroutine, and must not wait for the network.
type Speaker interface {
	// Name is the name of the protocol: bgp, layer2.
	Name() string
	// Apply replaces the announcements. It is also called regularly with an unchanged World, so
	// that failed operations are retried.
	Apply(w *World)
	// Changed receives when Report may return another result.
	Changed() <-chan struct{}
	// Report returns the peers, and problems that were found while announcing.
	Report() Report
	// Lines returns to whom a VIP or source address is announced, or why it is not, in order. Any
	// goroutine may call it.
	Lines(vip netip.Addr) []view.Line
	// Close ends it. If the gateway forwards or is held (World.Gateway is Yes), peers with graceful
	// restart keep its routes, and other gateways of a link get its VIPs.
	// Otherwise the routes are withdrawn.
	Close()
}

// Report is the state of a speaker. Its lists are in order.
type Report struct {
	Peers []view.Peer
	// Problems are problems of objects, found while they are used.
	Problems []kinds.Problem
}
