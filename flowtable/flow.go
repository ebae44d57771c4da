package flowtable

import (
	"sync/atomic"
	"time"
	"unsafe"

	"sluice.dev/sluice/nat/header"
)

// Ref names a flow: its record's number, with bit 30 set in the IPv6 arena.
// Zero is no flow. A Ref is valid until its holder's next Enter or Leave.
type Ref uint32

const refV6 Ref = 1 << 30

func (r Ref) index() uint32 { return uint32(r &^ refV6) }

// Side is which of a flow's two tuples a packet carries.
type Side uint8

const (
	ClientSide Side = iota // client to frontend
	ReplySide              // backend to our source
)

// Time is CLOCK_BOOTTIME in nanoseconds. It is always an argument: nothing here reads a clock.
type Time uint64

// ticks are deciseconds of boot time: 32 bits last 13 years.
type ticks uint32

const tick = 100 * time.Millisecond

func (t Time) ticks() ticks             { return ticks(uint64(t) / uint64(tick)) }
func (t ticks) since(u ticks) int32     { return int32(t - u) }
func ticksOf(d time.Duration) int32     { return int32(d / tick) }
func span(from, to ticks) time.Duration { return time.Duration(to.since(from)) * tick }

// Flow is the part of a record that both families share; the addresses follow it.
//
//	 0  meta     state and last seen, see below
//	 8  bound    binding, hop to the client, hop to the backend
//	16  owner    counted, charges, service, backend
//	24  delta    28 created   32 sum   36 next
//	40  ports    client tuple, reply tuple (source<<16 | destination)
//	48  addr     IPv4: 2 x 8 bytes; IPv6: 2 x 32 bytes (client tuple, reply tuple)
//
// Writers: any handle writes meta and owner (see counted) by compare-and-swap, and bound in one
// store (BindHops). The owner of a dead record writes next. The creator writes ports, addr, delta,
// sum and next (metaOpening) before the flow is live; no handle writes them after that. The creator
// writes created; later the handle whose swap of meta changes the word's meaning writes it
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
	// of TCP it is the backend's initial sequence number instead, if this version of the program
	// saw that number.
	created ticks
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

// meta is one word with all the fields of a flow that several workers change, so that a refresh and
// an expiry can never both succeed:
//
//	63    56 55    48 47    40 39 38 37 36 35  32 31               0
//	[repeat][ proto  ][ notes ][fn][ag][pd][rs][state][ last seen, ticks ]
//
// State zero is no flow: free, dead, or in limbo. pd is set while the flow is pending (its keys are
// being inserted). rs: one end sent an RST, and no later packet has shown that the connection lives
// on; last seen is then the time of the RST. ag: the client sent a SYN on the open connection, and
// the SYN has no answer yet. fn: the client of an Unconfirmed flow sent FIN. TCP and SCTP have
// further notes, which do not affect a packet that Match forwards:
//
//	40  the sender of the RST of rs: the client (0) or the backend (1)
//	41  the client sent a FIN, and then data, which revokes the FIN
//	42  the same of the backend
//	43  the handshake was reset and restarted (SynRecv): later packets do not renew its age
//	44  and 45: see metaOpening
//
// In SynSeen ag means instead that the client repeated its SYN, and repeat is the age of the flow
// at the last repetition. In the states of an open connection repeat records SYNs towards a backend
// that is gone (repeatOpen).
//
// In the states of UDP fn and ag together count the questions without an answer (datagram.go).
// Meanwhile the low half of notes counts datagrams, and the high half counts the seconds after the
// first in which an assured flow had datagrams. When questions are no longer counted, fn and ag are
// 0, and all of notes counts these seconds (usedSeconds). repeat cannot count them, because Match
// finds only flows whose repeat is 0.
type meta uint64

const (
	metaStateShift              = 32
	metaReset            meta   = 1 << 36
	metaPending          meta   = 1 << 37
	metaAgain            meta   = 1 << 38
	metaFin              meta   = 1 << 39
	metaResetBackend     meta   = 1 << metaFlagsShift
	metaFinClient        meta   = 1 << 41
	metaFinBackend       meta   = 1 << 42
	metaRenewed          meta   = 1 << 43
	metaFins                    = metaFinClient | metaFinBackend
	metaFlagsShift              = 40
	metaUsedShift               = metaFlagsShift
	metaUsed             meta   = 255 << metaUsedShift
	metaQuestionsShift          = 38
	metaQuestions        meta   = 3 << metaQuestionsShift
	metaDatagrams        meta   = 15 << metaUsedShift
	metaCountedUsedShift        = metaUsedShift + 4
	metaCountedUsed      meta   = 15 << metaCountedUsedShift
	metaProtoShift              = 48
	metaRepeatShift             = 56
	metaRepeat           meta   = 255 << metaRepeatShift
	metaSeen             meta   = 1<<32 - 1
	metaLife             uint64 = 63 // state, rs and pd: the index of lifetimes

	// A change of other fields changes no counter or list of the table (moved).
	metaAccounted = meta(15)<<metaStateShift | metaReset | metaPending | metaFins

	// A change of state clears metaNotes.
	metaNotes = metaCleared | metaFin | metaResetBackend | metaFins | metaRenewed
	// A packet that refreshes the flow clears metaCleared.
	metaCleared = metaReset | metaAgain | metaRepeat
)

func makeMeta(s State, proto uint8, now ticks) meta {
	return meta(proto)<<metaProtoShift | meta(s)<<metaStateShift | meta(now)
}

func (m meta) state() State    { return State(m>>metaStateShift) & 15 }
func (m meta) proto() uint8    { return uint8(m >> metaProtoShift) }
func (m meta) seen() ticks     { return ticks(m) }
func (m meta) pending() bool   { return m&metaPending != 0 }
func (m meta) reset() bool     { return m&metaReset != 0 }
func (m meta) live() bool      { return m.state() != 0 && !m.pending() }
func (m meta) life() uint64    { return uint64(m>>metaStateShift) & metaLife }
func (m meta) dead() meta      { return m &^ (meta(metaLife) << metaStateShift) }
func (m meta) at(t ticks) meta { return m&^metaSeen | meta(t) }

func (m meta) withState(s State) meta {
	return m&^(15<<metaStateShift) | meta(s)<<metaStateShift
}

// word loads created, and swapWord changes it. They publish only the word itself.
func (f *Flow) word() uint32 { return atomic.LoadUint32((*uint32)(&f.created)) }
func (f *Flow) swapWord(old, new uint32) {
	atomic.CompareAndSwapUint32((*uint32)(&f.created), old, new)
}

func (f *Flow) load() meta              { return meta(f.meta.Load()) }
func (f *Flow) swap(old, new meta) bool { return f.meta.CompareAndSwap(uint64(old), uint64(new)) }

// Delta returns the checksum delta of a packet that arrived on the given side. For the reply side
// it is the complement, computed without an unpredictable branch.
func (f *Flow) Delta(from Side) header.Delta {
	mask := -uint16(from & 1)
	return header.Delta{IP: f.delta.IP ^ mask, L4: f.delta.L4 ^ mask}
}

// State returns the flow's state. It may change at any time.
func (f *Flow) State() State { return f.load().state() }

// Proto returns the IANA protocol number.
func (f *Flow) Proto() uint8 { return f.load().proto() }

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

// Binding and NextHops return parts of the result of Bound. Another worker may Bind between the two
// calls: call Bound for both parts.
func (f *Flow) Binding() uint32 { return uint32(f.bound.Load() >> 32) }

func (f *Flow) NextHops() (backend, client uint16) {
	_, backend, client = f.Bound()
	return backend, client
}

// BindHops stores the hops of a flow and keeps its owner. If workers have different snapshots, the
// last store wins, as in Handle.Bind.
func (f *Flow) BindHops(binding uint32, nhBackend, nhClient uint16) {
	// Publishes the owner; pairs with the load in Bound: a reader that sees this process's binding
	// sees its owner.
	f.bound.Store(uint64(binding)<<32 | uint64(nhClient)<<16 | uint64(nhBackend))
}

// packOwner returns an owner word without flags. Service IDs are below 1<<28.
func packOwner(service, backendRef uint32) uint64 {
	return (uint64(service)<<32 | uint64(backendRef)) &^ ownerFlags
}
