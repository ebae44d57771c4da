package flowtable

import (
	"unsafe"

	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/prefetch"
)

// A worker prefetches the lines that Create will write in these steps:
//
//	Missed          the packet's own key seems to be absent
//	FetchCreate     prefetch the lines that Create will write
//	FetchPortOwner  prefetch the flow that has its first port, if there is one
//
// The search has already brought the bucket of the client key into the cache. The bucket of the
// reply key is known only when backend, source address and first port have been chosen, and its
// load is a cache miss.

// Missed reports whether FetchFlows found no flow that may be the packet's. Like every result of a
// Search it is a hint: an overflow bucket may have the flow, or another worker may have made it
// since.
func (s *Search) Missed() bool { return s.slot == 0 && s.Family != header.NotPlain }

// Found reports whether FetchFlows found a slot.
func (s *Search) Found() bool { return s.slot != 0 }

// Overflowed reports whether keys of the search's home are in the buckets that follow it, which
// FetchFlows does not search.
func (h *Handle) Overflowed(s *Search) bool {
	a := &h.t.arenas[s.Family]
	return a.buckets[a.home(s.hash)].ctl.Load()&(memberMask&^slotMask) != 0
}

// TagCollision reports whether FetchFlows found a flow with other ports than the packet's: their
// tags are the same, which happens for about one in a hundred packets without a flow. It is a hint.
func (h *Handle) TagCollision(s *Search) bool {
	i, side := slotIndex(s.slot), slotSideOf(s.slot)
	if s.Family == header.PlainIPv6 {
		return h.six[i].ports[side].Load() != s.Ports
	}
	return h.four[i].ports[side].Load() != s.Ports
}

// Hash returns the hash of the key, for Lookup.
func (s *Search) Hash() uint64 { return s.hash }

// FetchCreate prefetches the lines that Create of this flow will write if the first port is free:
// the bucket of the reply key, the word that shows whether the port rests, and the load of the
// backend. It changes nothing, and returns the hash of the reply key, for FetchPortOwner.
func (h *Handle) FetchCreate(n *NewFlow) (reply uint64) {
	a := h.arena(n.Client.V6)
	port, ok := n.Port(0)
	if !ok {
		return 0
	}
	reply = h.replyHash(a, n, port)
	at := &h.fetches
	at[0] = uint64(uintptr(unsafe.Pointer(&a.buckets[a.home(reply)])))
	at[1] = uint64(uintptr(unsafe.Pointer(h.t.restingOf(n.Client.Proto).at(reply))))
	at[2] = uint64(uintptr(unsafe.Pointer(h.t.loadOf(uint64(n.BackendRef)))))
	// Safety: addresses that are prefetched are not dereferenced, and their memory does not move.
	prefetch.WriteAll(nil, &at[0], 8, len(at))
	return reply
}

// FetchPortOwner must be called when the bucket of the reply key is in the cache. If the first port
// seems to be taken, it prefetches the flow that has the port, which Create will read, and the
// bucket of the second port.
func (h *Handle) FetchPortOwner(n *NewFlow, reply uint64) {
	a := h.arena(n.Client.V6)
	slot := a.buckets[a.home(reply)].find(uint8(reply))
	if slot == 0 {
		return
	}
	prefetch.Read((*byte)(unsafe.Pointer(a.flow(slotIndex(slot)))))
	if port, ok := n.Port(1); ok {
		prefetch.Read((*byte)(unsafe.Pointer(&a.buckets[a.home(h.replyHash(a, n, port))])))
	}
}

// replyHash returns the hash of the reply key with the given source port.
func (h *Handle) replyHash(a *arena, n *NewFlow, port uint16) uint64 {
	var k key
	n.reply(&k)
	k.ports = n.replyPorts(port)
	return h.secret.hash(a.v6, &k)
}
