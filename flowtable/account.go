package flowtable

import (
	"math"
	"sync/atomic"
	"unsafe"

	"sluice.dev/sluice/nat/prefetch"
)

// account has the start of a flow and its packets and bytes. The record of the flow has no room for
// them, and a table without a Log has no accounts. Accounts lie in memory of their own, at the
// numbers of the records, and outlive the process with the records.
//
//	 0  start     Time of Create without its low 16 bits (65 us); complete; 15 bits of the flow's sum
//	 8  traffic   for each side: packets, 24 bits; bytes, 40 bits
//	24  more      for each side, 32 bits: the overflow of traffic, in units of morePackets
//	              (the upper 16 bits) and moreBytes
//
// The sum identifies the flow of the account: a process without a Log makes records and leaves old
// accounts as they are. complete: the packets were counted from the start on, unless the flow is
// older than the time in the account of record 0, which is no flow. From that time on each process
// that owned the table has counted (Log.Own).
//
// Any worker adds to traffic, by one atomic add for a packet. The worker whose add sets the top bit
// moves morePackets packets to more, before the others can add as many again.
type account struct {
	start   atomic.Uint64
	traffic [2]atomic.Uint64
	more    atomic.Uint64
}

const (
	accountBytes = 32
	_            = -(unsafe.Sizeof(account{}) ^ accountBytes)

	accountSum      = 1<<15 - 1
	accountComplete = 1 << 15
	accountLow      = accountSum | accountComplete

	packetsShift = 40
	onePacket    = 1 << packetsShift
	trafficFull  = 1 << 63
	morePackets  = trafficFull / onePacket
	moreShift    = 32 // of moreBytes
	moreBytes    = 1 << moreShift
	moreUnits    = 1<<(packetsShift-moreShift) - 1
)

// Traffic counts the packets of one side of a flow as they were received: bytes of frames.
type Traffic struct{ Packets, Bytes uint64 }

// accounts returns the number of accounts of an arena: record 0 has one, too.
func (a *arena) accounts() int { return int(a.records) + 1 }

// AccountBytes returns the size of the accounts of all records, in bytes.
func (t *Table) AccountBytes() int64 {
	return accountBytes * int64(t.arenas[0].accounts()+t.arenas[1].accounts())
}

// open begins the account of a pending flow. The flow's creator calls it.
func (a *account) open(f *Flow, now Time, complete bool) {
	a.traffic[ClientSide].Store(0)
	a.traffic[ReplySide].Store(0)
	a.more.Store(0)
	a.start.Store(uint64(now)&^accountLow | uint64(b2i(complete))*accountComplete | uint64(f.sum)&accountSum)
}

// startOf returns when a flow began, or 0 if the account is not the flow's, and whether its packets
// are counted from the start on.
func (l *Log) startOf(a *account, f *Flow) (start Time, complete bool) {
	s := a.start.Load()
	if s&accountSum != uint64(f.sum)&accountSum {
		return 0, false
	}
	start = Time(s &^ accountLow)
	return start, s&accountComplete != 0 && start >= Time(l.countedSince().Load())
}

// Incomplete marks the account of a flow as incomplete: another gateway has forwarded packets of
// the flow, which are not counted here.
func (h *Handle) Incomplete(r Ref) {
	if h.log != nil {
		h.log.log.accounts[family(r.V6())][r.index()].start.And(^uint64(accountComplete))
	}
}

// countedSince has the time from which on all processes have counted packets.
func (l *Log) countedSince() *atomic.Uint64 { return &l.accounts[0][0].start }

// Own records whether this process counts the packets of flows. A process calls it when it begins
// to own the table, before it forwards a packet: its predecessor may have forwarded packets until
// now.
func (l *Log) Own(now Time) {
	since := l.countedSince()
	switch {
	case !l.traffic:
		since.Store(math.MaxUint64)
	case since.Load() > uint64(now): // the last process did not count, or the time is of an earlier boot
		since.Store(uint64(now))
	}
}

// add counts a packet.
func (a *account) add(side Side, bytes uint32) {
	packet := onePacket | uint64(bytes)
	if sum := a.traffic[side].Add(packet); sum >= trafficFull && sum-packet < trafficFull {
		a.spill(side, sum)
	}
}

// spill moves packets and bytes to more.
func (a *account) spill(side Side, sum uint64) {
	units := sum >> moreShift & moreUnits
	a.traffic[side].Add(-(trafficFull | units<<moreShift))
	a.more.Add((1<<16 | units) << (32 * side))
}

// of returns the traffic of one side. While another handle moves packets to more, they may be
// missing.
func (a *account) of(side Side) Traffic {
	for {
		more, t := a.more.Load(), a.traffic[side].Load()
		if a.more.Load() != more {
			continue
		}
		m := uint32(more >> (32 * side))
		return Traffic{
			Packets: t>>packetsShift + uint64(m>>16)*morePackets,
			Bytes:   t&(onePacket-1) + uint64(m&(1<<16-1))*moreBytes,
		}
	}
}

// accounts are the accounts of both families that a handle adds packets to.
type accounts [2][]account

// Counts reports whether the handle counts the packets of flows.
func (h *Handle) Counts() bool { return h.accounts != nil }

// Count counts a packet of a flow, if the table's Log counts packets.
func (h *Handle) Count(r Ref, side Side, bytes uint32) {
	if h.accounts != nil {
		h.accounts[family(r.V6())][r.index()].add(side, bytes)
	}
}

// FetchAccounts prefetches the accounts of packets that have matched flows.
func (h *Handle) FetchAccounts(group []Search) {
	for i := range group {
		s := &group[i]
		prefetch.Read((*byte)(unsafe.Pointer(&h.accounts[s.Family&1][slotIndex(s.slot)])))
	}
}

// CountMatched counts a packet that has matched a flow.
func (h *Handle) CountMatched(s *Search, bytes uint32) {
	h.accounts[s.Family&1][slotIndex(s.slot)].add(s.Side(), bytes)
}
