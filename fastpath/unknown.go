package fastpath

import (
	"time"

	"sluice.dev/sluice/fastpath/copies"
	"sluice.dev/sluice/flowtable"
)

// unknownConnections records connections of which a segment found no flow, by the hash of the
// tuple. In a group such a connection may belong to another gateway, and its copy may be on the
// way, because a SYN-ACK waits for copies no longer than copyWait. The copy arrives within
// copies.Delay, or this gateway is no longer in step. So a connection gets an RST only if it is
// still unknown after that, when the client sends a segment again. Connections that share a slot
// replace each other.
type unknownConnections []unknownConnection

type unknownConnection struct {
	hash  uint64
	first flowtable.Time // of the first segment
}

const (
	unknownSlots = 4096
	// entryMaxAge is the age from which an entry no longer counts: its tuple may have had another
	// connection meanwhile. A client's pauses between repetitions grow up to two minutes
	// (TCP_RTO_MAX, include/net/tcp.h).
	entryMaxAge = flowtable.Time(5 * time.Minute)
)

// mayReset reports whether a connection has been unknown for so long that no copy can be on the
// way.
func (u unknownConnections) mayReset(hash uint64, now flowtable.Time) bool {
	e := &u[hash%unknownSlots]
	if e.hash != hash || now-e.first > entryMaxAge {
		*e = unknownConnection{hash, now}
		return false
	}
	return now-e.first >= flowtable.Time(copies.Delay)
}
