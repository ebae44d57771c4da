package flowtable

import (
	"sync/atomic"
	"unsafe"

	"sluice.dev/sluice/flowtable/conn"
	"sluice.dev/sluice/nat/header"
)

// Ref names a flow: its record's number, with bit 30 set in the IPv6 arena.
// Zero is no flow. A Ref is valid until its holder's next Enter or Leave.
type Ref uint32

const refV6 Ref = 1 << 30

func (r Ref) index() uint32 { return uint32(r &^ refV6) }

// Flow is the part of a record that both families share; the addresses follow it.
//
//	 0  meta     state and last seen: conn.Meta
//	 8  bound    binding, hop to the client, hop to the backend
//	16  owner    counted, charges, service, backend
//	24  delta    28 created   32 sum   36 next
//	40  ports    client tuple, reply tuple (source<<16 | destination)
//	48  addr     IPv4: 2 x 8 bytes; IPv6: 2 x 32 bytes (client tuple, reply tuple)
//
// Writers: any handle writes meta and owner (see counted) by compare-and-swap, and bound in one
// store (BindHops). The owner of a dead record writes next. The creator writes ports, addr, delta,
// sum and next (conn.MetaOpening) before the flow is live; no handle writes them after that. The
// creator writes created; later the handle whose swap of meta changes the word's meaning writes it
// (Observe). ports is atomic because the creator changes the reply port while it probes, and a
// reader that loaded an old slot may read it meanwhile.
//
// The lists of pool.go use the fields of records that are not live.
type Flow struct {
	meta  atomic.Uint64
	bound atomic.Uint64
	owner atomic.Uint64
	delta header.Delta
	// created is the time at which the flow was made or its connection was established. In SynRecv
	// of TCP, and of a flow with a PROXY header, it is the backend's initial sequence number
	// instead, if this version of the program saw that number.
	created Ticks
	sum     uint32 // fold of both keyed hashes, by which recovery detects a torn record
	next    atomic.Uint32
	ports   [2]atomic.Uint32
}

// record4 and record6 are one and two cache lines.
type (
	record4 struct {
		Flow
		addr [2]uint64 // source<<32 | destination
	}
	record6 struct {
		Flow
		addr [2][4]uint64 // source, destination, big endian
		_    [16]byte
	}
)

const (
	_ = -(unsafe.Sizeof(record4{}) ^ 64)
	_ = -(unsafe.Sizeof(record6{}) ^ 128)
	_ = -(unsafe.Offsetof(record4{}.addr) ^ 48)
	_ = -(unsafe.Offsetof(record6{}.addr) ^ 48)
)

// word loads created, and swapWord changes it. They publish only the word itself.
func (f *Flow) word() uint32 { return atomic.LoadUint32((*uint32)(&f.created)) }
func (f *Flow) swapWord(old, new uint32) {
	atomic.CompareAndSwapUint32((*uint32)(&f.created), old, new)
}

func (f *Flow) load() conn.Meta              { return conn.Meta(f.meta.Load()) }
func (f *Flow) swap(old, new conn.Meta) bool { return f.meta.CompareAndSwap(uint64(old), uint64(new)) }

// Delta returns the checksum delta of a packet that arrived on the given side. For the reply side
// it is the complement, computed without an unpredictable branch.
func (f *Flow) Delta(from Side) header.Delta {
	mask := -uint16(from & 1)
	return header.Delta{IP: f.delta.IP ^ mask, L4: f.delta.L4 ^ mask}
}

// State returns the flow's state. It may change at any time.
func (f *Flow) State() State { return f.load().State() }

// Proto returns the IANA protocol number.
func (f *Flow) Proto() uint8 { return f.load().Proto() }

// Owner returns the service and the backend given to Create or to the last Bind.
func (f *Flow) Owner() (service, backendRef uint32) {
	o := f.owner.Load() &^ ownerFlags
	return uint32(o >> 32), uint32(o)
}

// Service and BackendRef return the halves of Owner.
func (f *Flow) Service() uint32    { return serviceOf(f.owner.Load()) }
func (f *Flow) BackendRef() uint32 { return uint32(f.owner.Load()) }

// Bound returns the binding and the hops towards the backend and towards the client that the last
// Bind stored. The binding is zero for a flow that this process has not bound: a new flow, or one
// recovered from a dead process.
func (f *Flow) Bound() (binding uint32, backend, client uint16) {
	b := f.bound.Load()
	return uint32(b >> 32), uint16(b), uint16(b >> 16)
}

// BoundTo returns the binding, and the hop of packets that arrive on the given side.
func (f *Flow) BoundTo(from Side) (binding uint32, hop uint16) {
	b := f.bound.Load()
	return uint32(b >> 32), uint16(b >> (16 * (from & 1)))
}

// Binding returns a part of the result of Bound.
func (f *Flow) Binding() uint32 { return uint32(f.bound.Load() >> 32) }

// BindHops stores the hops of a flow and keeps its owner. If workers have different snapshots, the
// last store wins, as in Handle.Bind.
func (f *Flow) BindHops(binding uint32, nhBackend, nhClient uint16) {
	// Publishes the owner; pairs with the load in Bound: a reader that sees this process's binding
	// sees its owner.
	f.bound.Store(uint64(binding)<<32 | uint64(nhClient)<<16 | uint64(nhBackend))
}

// The flags of the owner word. loads.go has the protocol of counted, charge.go has the others.
const (
	counted    = 1 << 63
	enrolled   = 1 << 62
	charged    = 1 << 61
	sourced    = 1 << 60
	charges    = enrolled | charged | sourced
	ownerFlags = counted | charges
)

func serviceOf(owner uint64) uint32 { return uint32(owner &^ ownerFlags >> 32) }

// packOwner returns an owner word without flags. Service IDs are below 1<<28.
func packOwner(service, backendRef uint32) uint64 {
	return (uint64(service)<<32 | uint64(backendRef)) &^ ownerFlags
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}
