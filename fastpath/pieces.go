package fastpath

import (
	"sync/atomic"

	"sluice.dev/sluice/nat/header"
)

// If a driver's receive buffers are too small for a packet, and it does not check the packet's end,
// it delivers the packet in pieces: the first arrives as a packet that is shorter than its headers
// claim, the others as garbage. A sender on the same network can forge such a packet. But if
// buffers are too small, no packet longer than a piece ever arrives, so one longer packet refutes
// the suspicion. All queues of a device have buffers of the same size, so the longer packet may
// come by any queue: the caller gives the piece of one link to the device's other links (SetPiece).

// pieceUnit is the granularity of devices' buffer sizes, in bytes, unless a buffer is a whole
// frame.
const pieceUnit = 1024

// Piece is a truncated packet that ended at a possible end of a device's buffer.
type Piece struct {
	Got     int // bytes that arrived
	Claimed int // its length according to its headers, in bytes
}

// piece is a Piece that a link's worker reports to the goroutine that opened the link. Only the
// worker stores it; any goroutine may load it.
type piece struct {
	seen    atomic.Uint64 // Got<<32 | Claimed; 0 is none
	refuted atomic.Uint64 // number of refuted pieces
}

// pieces has the pieces of a worker's links.
type pieces struct {
	of []piece // by position in Links
	// suspects counts the links that have a piece.
	suspects int
}

// note stores the piece with the smallest claimed length of a link: a packet that claims more than
// the MTU is no evidence of small buffers, and must not replace one that is. It is called for
// packets that are dropped because they are shorter than their headers claim.
func (q *pieces) note(p *packet, frameSize uint64) {
	d := p.desc
	room := frameSize - d.Addr&(frameSize-1)
	// A driver that makes chains (Len 0) checks the packet's end.
	if got := uint64(d.Len); got == 0 || got != room && got != room/pieceUnit*pieceUnit {
		return
	}
	claimed := header.Claimed(p.frame)
	if claimed <= int(d.Len) {
		return
	}
	if before, ok := q.at(p.link); !ok || claimed < before.Claimed {
		q.set(p.link, Piece{Got: int(d.Len), Claimed: claimed})
	}
}

// set stores the piece of a link; the zero Piece removes it.
func (q *pieces) set(link int, p Piece) {
	seen := uint64(p.Got)<<32 | uint64(p.Claimed)
	if q.of[link].seen.Swap(seen) != 0 {
		q.suspects--
	}
	if seen != 0 {
		q.suspects++
	}
}

// refute removes the piece of a link on which a longer packet has arrived. The caller checks that
// there are suspects, so without any a batch costs only one comparison more.
func (q *pieces) refute(link int, batch []Desc) {
	got := uint32(q.of[link].seen.Load() >> 32)
	if got == 0 {
		return
	}
	for i := range batch {
		if batch[i].Len > got {
			q.of[link].refuted.Add(1)
			q.set(link, Piece{})
			return
		}
	}
}

// at returns the piece of a link, if there is one.
func (q *pieces) at(link int) (p Piece, ok bool) {
	v := q.of[link].seen.Load()
	return Piece{Got: int(v >> 32), Claimed: int(uint32(v))}, v != 0
}
