package compiler

import (
	"cmp"
	"net/netip"
	"slices"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// member is an endpoint of a service port.
type member struct {
	addr   header.Addr
	port   uint16
	flags  services.BackendFlags
	hints  hintBits
	weight uint16
	// share is the part of the weight in force while the endpoint starts slowly (SlowStart), in
	// tenths; 0 is the whole weight.
	share uint8
	node  bool // of a direct Service: the address is a node's, and the port the Service's
	ref   services.BackendRef
}

func compareMembers(a, b member) int {
	return cmp.Or(objects.CompareAddrs(a.addr, b.addr), cmp.Compare(a.port, b.port))
}

// hintBits are an endpoint's topology hints, as seen from this node.
type hintBits uint8

const (
	hintedNode hintBits = 1 << iota // it has hints for nodes
	hintedZone                      // it has hints for zones
	hintsNode                       // they name this node
	hintsZone                       // they name this node's zone
)

// compareListed orders a port's endpoints. The first of several duplicates is used: an endpoint
// that is not terminating before one that is, then by readiness, then by the remaining fields, so
// that the order of slices does not matter.
func compareListed(a, b member) int {
	if a.addr != b.addr || a.port != b.port {
		return compareMembers(a, b)
	}
	return cmp.Or(cmp.Compare(rank(b.flags), rank(a.flags)), cmp.Compare(b.hints, a.hints),
		cmp.Compare(b.weight, a.weight), cmp.Compare(a.flags, b.flags))
}

// same reports whether two members are one backend. An endpoint in the host's network may have the
// address and port of a node's member: flows to it are translated, so the two share no ref.
func (m *member) same(o *member) bool {
	return m.addr == o.addr && m.port == o.port && m.node == o.node
}

func rank(f services.BackendFlags) int {
	n := 0
	for i, good := range [...]bool{
		f&services.BackendLocal != 0, f&services.BackendServing != 0, f&services.BackendReady != 0,
		f&services.BackendTerminating == 0,
	} {
		if good {
			n |= 1 << i
		}
	}
	return n
}

func (m *member) ready() bool {
	return m.weight != 0 && m.flags&(services.BackendReady|services.BackendDrained) == services.BackendReady
}

func (m *member) terminatingServing() bool {
	const want = services.BackendServing | services.BackendTerminating
	return m.weight != 0 && m.flags&(want|services.BackendDrained) == want
}

// cursor iterates over members in order.
type cursor []member

// seek returns the next member that has the given ref, and moves past it; nil if there is none.
func (c *cursor) seek(ref services.BackendRef) *member {
	for i := range *c {
		if m := &(*c)[i]; m.ref == ref {
			*c = (*c)[i+1:]
			return m
		}
	}
	*c = nil
	return nil
}

// appendNames appends the names of chosen members in Maglev tables: address, port and protocol,
// which are the same on every gateway.
func appendNames(names []string, members []member, chosen []services.BackendRef, proto uint8) []string {
	rest := cursor(members)
	for _, ref := range chosen {
		m := rest.seek(ref)
		if m == nil {
			break
		}
		names = append(names, endpointName(m.addr, m.port, proto))
	}
	return names
}

// appendAddrs appends the addresses and ports of chosen members to list, which is in order, as the
// result is.
func appendAddrs(list []netip.AddrPort, members []member, chosen []services.BackendRef) []netip.AddrPort {
	var more []netip.AddrPort
	rest := cursor(members)
	for _, ref := range chosen {
		m := rest.seek(ref)
		if m == nil {
			break
		}
		more = append(more, netip.AddrPortFrom(m.addr.Netip(), m.port))
	}
	if list == nil {
		return more
	}
	return slices.Compact(slices.SortedFunc(slices.Values(append(more, list...)), netip.AddrPort.Compare))
}
