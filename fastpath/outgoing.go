package fastpath

import (
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
)

// outgoing is an IP packet that is ready to be sent, except for its Ethernet header.
type outgoing struct {
	desc       Desc
	l3, end    uint16 // IP header and end of the IP packet, bytes from desc.Addr
	v6         bool
	splittable bool // IPv4 without DF: may be fragmented
	dst        header.Addr
	precedence precedence // while it waits for its next hop
}

// precedence orders packets that wait for next hops. Packets of a lower precedence are evicted
// first.
type precedence uint8

const (
	// unproven: to an address that a sender may have invented: a client whose flow is not
	// established, or the sender of a ping. A flood from invented addresses makes as many
	// destinations.
	unproven precedence = iota
	// known: to a backend, or to a next hop that was resolved before.
	known
	// established: of a connection past its handshake.
	established
)

// precedenceOf returns the precedence of a flow's packet that came from side.
func precedenceOf(s flowtable.State, side flowtable.Side) precedence {
	switch {
	case s >= flowtable.Established && s <= flowtable.TimeWaitBackend:
		return established
	case side == flowtable.ClientSide:
		return known
	}
	return unproven
}

// egressQueue collects the packets that a step sends on one link.
type egressQueue struct {
	n    int
	desc [2 * BatchSize]Desc
	link int    // its position in Links
	long uint64 // bytes of the packets that are chains
}

// put appends, or returns false if the queue is full.
func (q *egressQueue) put(d Desc) bool {
	if uint(q.n) >= uint(len(q.desc)) {
		return false
	}
	q.desc[q.n] = d
	q.n++
	return true
}

// egress has the egress queues of a worker.
type egress struct {
	queues []egressQueue     // by position in Links
	to     [256]*egressQueue // by nexthop.Hop.Link; nil where there is none
}

// newEgress returns the queues for a number of links. byInterface is Config.Egress.
func newEgress(links int, byInterface []int) (e egress) {
	e.queues = make([]egressQueue, links)
	for i := range e.queues {
		e.queues[i].link = i
	}
	for i, link := range byInterface[:min(len(byInterface), len(e.to))] {
		e.to[i] = &e.queues[link]
	}
	return e
}
