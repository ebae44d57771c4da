// Package nexthop has the routes and next hops of translated packets: the contract between the
// control loop and the workers.
//
// The control loop mirrors the kernel's routes and neighbours into a Table. Workers look up a
// destination once per flow, store the hop's ID in the flow, and read the hop's MAC addresses for
// every packet. A new MAC address of a neighbour changes one Hop and no flow. A changed route makes
// a new View with a new generation, so every flow looks up its hops again.
package nexthop

import (
	"math"
	"sync/atomic"
	"unsafe"

	"github.com/gaissmai/bart"

	"sluice.dev/sluice/nat/header"
)

// ID names a Hop. Zero is none. An ID names the same neighbour as long as the View's generation is
// the same as at its lookup.
type ID uint16

// MaxHops bounds the next hops in use.
const MaxHops = 1 << 14

// Three hops always exist; the control loop gives out lower IDs.
const (
	// ViaKernel is the host link, without the MTU of a route beyond it. It is for this node's own
	// endpoints, and for destinations that only the kernel's routing reaches.
	ViaKernel ID = MaxHops - 1
	// NoRoute is the hop of destinations without a route: packets to them are dropped.
	NoRoute ID = MaxHops - 2
	// Tunnel is the hop of flows with direct return: which node they go to depends on the flow.
	Tunnel ID = MaxHops - 3
)

// Kind is the way in which packets reach a hop.
type Kind uint8

const (
	// Unreachable: the kernel has no route, or one of a type that rejects packets.
	Unreachable Kind = iota
	// OnLink: by one of the gateway's own links.
	OnLink
	// Kernel: through the host link, for this node's own endpoints and for
	// backends that only the kernel's routing reaches.
	Kernel
	// Tunneled: by the tunnel to the flow's node.
	Tunneled
)

// Hop has the link and link-layer addresses of one neighbour. It is immutable except for used; a
// change makes a new Hop.
type Hop struct {
	Kind           Kind
	Ready          bool   // DstMAC is known. For Kernel always true.
	Link           uint8  // OnLink: index of the interface in the configuration
	VLANs          uint8  // tags to push, 0 to 2
	MTU            uint16 // largest IP packet, in bytes; 0 is no limit
	DstMAC, SrcMAC [6]byte
	VLAN           [2]Tag      // outer first
	Addr           header.Addr // the neighbour, for display

	plainEnd uint32 // computed by SetHop
	// used is 1 if a worker has sent by the hop since the last TakeUsed. It is accessed atomically.
	// It is on the cache line that workers read for each packet, but is rarely written.
	used uint32
}

// Use marks the hop as used. Workers call it for each packet that they send by it. The atomics
// order no other memory accesses. The compiler inlines it.
func (h *Hop) Use() {
	if atomic.LoadUint32(&h.used) == 0 {
		atomic.StoreUint32(&h.used, 1)
	}
}

// TakeUsed reports whether a worker has sent by the hop since the last call. Only the control loop
// calls it.
func (h *Hop) TakeUsed() bool {
	return atomic.LoadUint32(&h.used) != 0 && atomic.SwapUint32(&h.used, 0) != 0
}

// Tag is a VLAN tag as in a frame (IEEE 802.1Q, clause 9).
type Tag struct {
	TPID uint16 // header.EtherTypeVLAN or header.EtherTypeQinQ, as the VLAN device has it
	TCI  uint16
}

// PlainEnd returns the size, in bytes, of the largest frame that can leave by this hop with only
// its MAC addresses replaced. It is 0 unless the hop is in a Table, resolved and without VLAN tags.
func (h *Hop) PlainEnd() uint32 { return h.plainEnd }

// Same reports whether two hops have the same content. Either may be in a table or not. It reads no
// field that workers write.
func (h *Hop) Same(as *Hop) bool {
	return h.Kind == as.Kind && h.Ready == as.Ready && h.Link == as.Link && h.VLANs == as.VLANs &&
		h.MTU == as.MTU && h.DstMAC == as.DstMAC && h.SrcMAC == as.SrcMAC && h.VLAN == as.VLAN && h.Addr == as.Addr
}

func (h *Hop) findPlainEnd() uint32 {
	switch {
	case h.Kind != OnLink || !h.Ready || h.VLANs != 0:
		return 0
	case h.MTU == 0:
		return math.MaxUint32
	}
	return header.EthernetBytes + uint32(h.MTU)
}

// MACs returns the destination and source addresses as in a frame.
func (h *Hop) MACs() *[12]byte {
	return (*[12]byte)(unsafe.Pointer(&h.DstMAC)) // Safety: SrcMAC follows directly, as the line below proves
}

const _ = -(unsafe.Offsetof(Hop{}.SrcMAC) ^ (unsafe.Offsetof(Hop{}.DstMAC) + 6))

// Table has the hops and the current View. One writer (control), any number of readers.
type Table struct {
	hops     [MaxHops]atomic.Pointer[Hop]
	view     atomic.Pointer[View]
	number   uint64 // of the last View; only Publish uses it
	requests chan Request
	first    chan Request
}

// Request makes the control loop resolve the next hop of an address.
type Request struct{ Addr header.Addr }

// requestQueue bounds the waiting requests. A request that does not fit is repeated with the next
// packet.
const requestQueue = 256

// NewTable returns a table without routes.
func NewTable() *Table {
	t := &Table{requests: make(chan Request, requestQueue), first: make(chan Request, requestQueue)}
	t.view.Store(&View{})
	t.hops[ViaKernel].Store(&Hop{Kind: Kernel, Ready: true})
	t.hops[NoRoute].Store(&Hop{Kind: Unreachable})
	t.hops[Tunnel].Store(&Hop{Kind: Tunneled})
	return t
}

// View returns the current routes. A worker loads it once per batch.
func (t *Table) View() *View { return t.view.Load() }

// Publish makes a copy of v current. Only the control loop calls it.
func (t *Table) Publish(v *View) {
	t.number++
	t.view.Store(&View{Generation: v.Generation, Routes: v.Routes, number: t.number})
}

// Hop returns a hop, or nil if the ID is not in use.
func (t *Table) Hop(id ID) *Hop { return t.hops[id&(MaxHops-1)].Load() }

// SetHop stores a copy of a hop, or removes it if h is nil. Only the control loop calls it.
func (t *Table) SetHop(id ID, h *Hop) {
	if h != nil {
		kept := *h
		kept.plainEnd = h.findPlainEnd()
		h = &kept
	}
	t.hops[id&(MaxHops-1)].Store(h)
}

// Resolve requests the next hop of an address. It never blocks. Workers call it on the rare path of
// an unknown hop.
func (t *Table) Resolve(a header.Addr) {
	select {
	case t.requests <- Request{a}:
	default:
	}
}

// ResolveFirst is Resolve for a destination that no sender of packets can invent: a backend, the
// client of an established connection, or an address that was resolved before. Such requests have a
// separate queue. The author of an EndpointSlice can invent backends, so they are bounded as well.
func (t *Table) ResolveFirst(a header.Addr) {
	select {
	case t.first <- Request{a}:
	default:
	}
}

// Requests returns the channel of Resolve's requests, for the control loop.
func (t *Table) Requests() <-chan Request { return t.requests }

// FirstRequests returns the channel of ResolveFirst's requests.
func (t *Table) FirstRequests() <-chan Request { return t.first }

// Route is the result of a lookup.
type Route struct {
	// Hop is the next hop; NoRoute if Kind is Unreachable. A Kernel route that was inserted without
	// a hop gets ViaKernel. Zero if the destination is on a link and its neighbour is not known
	// yet: call Table.Resolve, and look up the destination again later.
	Hop ID
	// Kind is Unreachable, OnLink or Kernel.
	Kind Kind
	// Source is the address that the kernel would send from: the route's preferred source, or else
	// the interface's primary address. OnLink only; zero if the interface has none of the family.
	Source header.Addr
}

// View is an immutable routing table.
type View struct {
	// Generation changes whenever a flow must look up its hops again.
	Generation uint32
	// Routes has the kernel's prefixes and, as host routes, the known neighbours. The writer makes
	// new versions with bart's persistent operations.
	Routes *bart.Table[Route]

	number uint64 // see Number
}

// Number returns a number that no other View of the table has. Caches of lookups keep it in place
// of a pointer, which would keep the routes of an old View in memory.
func (v *View) Number() uint64 { return v.number }

// Lookup finds the route to an address; Kind is Unreachable if there is none. It does not allocate.
func (v *View) Lookup(a *header.Addr) Route {
	if v.Routes == nil {
		return Route{Hop: NoRoute}
	}
	r, _ := v.Routes.Lookup(a.Netip())
	switch {
	case r.Kind == Kernel && r.Hop == 0:
		r.Hop = ViaKernel
	case r.Kind == Unreachable:
		r.Hop = NoRoute
	}
	return r
}
