package neigh

import (
	"time"

	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/nat/header"
)

// neighKey is the address and interface of a neighbour.
type neighKey struct {
	dev  int32
	addr header.Addr
}

// hopKey identifies a hop. Routes with different MTUs through one neighbour have different hops.
type hopKey struct {
	kind  nexthop.Kind
	neigh neighKey // OnLink
	mtu   uint16   // of the route
}

// hopIDs assigns IDs to hops and frees them. An ID that is no longer used is retired first: a
// worker may still use a View that has it, and a flow may have it until it is bound again. A
// retired hop that is needed again keeps its ID.
//
// Invariant: an ID must not be given to another key before a newer generation than its last one is
// published and grace has passed.
type hopIDs struct {
	table *nexthop.Table
	grace time.Duration
	byKey map[hopKey]*hopID
	free  []nexthop.ID
	next  nexthop.ID // IDs from next on were never used
}

type hopID struct {
	id         nexthop.ID
	retired    bool
	generation uint32 // retired: the last generation that used it
	at         time.Time
}

func newHopIDs(table *nexthop.Table, grace time.Duration) *hopIDs {
	return &hopIDs{table: table, grace: grace, byKey: make(map[hopKey]*hopID), next: 1}
}

// acquire returns the ID of a hop, and assigns one if it has none; false if all are in use.
func (h *hopIDs) acquire(k hopKey) (nexthop.ID, bool) {
	if e, ok := h.byKey[k]; ok {
		e.retired = false
		return e.id, true
	}
	var id nexthop.ID
	switch {
	case len(h.free) > 0:
		id, h.free = h.free[len(h.free)-1], h.free[:len(h.free)-1]
	case h.next < nexthop.Tunnel: // Tunnel is the lowest reserved ID
		id = h.next
		h.next++
	default:
		return 0, false
	}
	h.byKey[k] = &hopID{id: id}
	return id, true
}

// retireAllBut retires the hops that are not in used. generation is the last generation that used
// them; the caller publishes the next one.
func (h *hopIDs) retireAllBut(used map[hopKey]struct{}, generation uint32, now time.Time) {
	for k, e := range h.byKey {
		if _, ok := used[k]; !ok && !e.retired {
			e.retired, e.generation, e.at = true, generation, now
		}
	}
}

// reap frees the IDs whose grace time is over.
func (h *hopIDs) reap(generation uint32, now time.Time) {
	for k, e := range h.byKey {
		if e.retired && e.generation != generation && now.Sub(e.at) >= h.grace {
			h.table.SetHop(e.id, nil)
			h.free = append(h.free, e.id)
			delete(h.byKey, k)
		}
	}
}

// set writes a hop's content, if it changed.
func (h *hopIDs) set(id nexthop.ID, hop nexthop.Hop) {
	if old := h.table.Hop(id); old == nil || !old.Same(&hop) {
		h.table.SetHop(id, &hop)
	}
}
