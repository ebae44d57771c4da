package fastpath

import (
	"time"

	"sluice.dev/sluice/fastpath/copies"
	"sluice.dev/sluice/flowtable"
)

// unknownConnections has connections whose segments no flow was found for, by the hash of the
// tuple. In a group such a connection may be one of another gateway whose copy is under way: a
// SYN-ACK waits for copies no longer than copyWait. The copy arrives within copies.Delay, or this
// gateway is not in step any more. So only a connection that is still unknown after that gets an
// RST, by a segment that the client sends again. Connections with one slot replace each other.
type unknownConnections []unknownConnection

type unknownConnection struct {
	hash  uint64
	first flowtable.Time // of the first segment
}

const (
	unknownSlots = 4096
	// entryMaxAge is the age of an entry at which the segment is a first one again: its tuple may
	// have had another connection meanwhile. A client's pauses between repetitions grow up to two
	// minutes (TCP_RTO_MAX, include/net/tcp.h).
	entryMaxAge = flowtable.Time(5 * time.Minute)
)

// mayReset reports whether a connection has been unknown for so long that no copy is under way.
func (u unknownConnections) mayReset(hash uint64, now flowtable.Time) bool {
	e := &u[hash%unknownSlots]
	if e.hash != hash || now-e.first > entryMaxAge {
		*e = unknownConnection{hash, now}
		return false
	}
	return now-e.first >= flowtable.Time(copies.Delay)
}
