package announce

import (
	"net/netip"
	"slices"

	"sluice.dev/sluice/announce/kinds"
	"sluice.dev/sluice/announce/view"
)

// World is what a speaker announces by. It must not be changed.
type World struct {
	Node Node
	// Gateway is how far this gateway as a whole would forward what is sent to it.
	Gateway Grade
	// Serves: it is heard, and forwards now. Gateway is Yes for a while after it is not any more.
	Serves bool
	VIPs   []*Standing // in order of their addresses
	// Interfaces are the names of those that the gateway serves; nil: not known.
	Interfaces []string
	Set        *kinds.Set
	// Number counts Worlds. Where Since is not 0, this one differs from that with the number Since
	// in the Standings of Changed alone, among them those that came or went, in Serves
	// and in Interfaces.
	Number, Since uint64
	Changed       []netip.Addr
}

// Find returns the Standing of a VIP; nil if there is none.
func (w *World) Find(vip netip.Addr) *Standing {
	i, found := slices.BinarySearchFunc(w.VIPs, vip, compareStanding)
	if !found {
		return nil
	}
	return w.VIPs[i]
}

// Speaker brings packets to this node by one protocol. Its methods but Lines are called by one
// goroutine, and must not wait for the network.
type Speaker interface {
	// Name is the protocol's: bgp, layer2.
	Name() string
	// Apply replaces what is announced. Now and then it is called with a World in which nothing has
	// changed, so that what could not be done is tried again.
	Apply(w *World)
	// Changed has a value when Report may say something else.
	Changed() <-chan struct{}
	// Report says what is announced now, and to whom.
	Report() Report
	// Lines says to whom a VIP is announced, or why it is not, in order. Any goroutine may call it.
	Lines(vip netip.Addr) []view.Line
	// Close ends it. Where the other side keeps routes of a process that restarts (graceful
	// restart) they stay if the gateway forwards or is waited for (World.Gateway is Yes), and go if
	// not; other gateways of a link are told that they have its VIPs.
	Close()
}

// Report is what a speaker does. Its lists are in order.
type Report struct {
	Peers []view.Peer
	// Problems are of objects, found while they are used.
	Problems []kinds.Problem
}
