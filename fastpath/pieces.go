package fastpath

import (
	"sync/atomic"

	"sluice.dev/sluice/nat/header"
)

// A driver whose buffers are too small for a packet, and which does not check the packet's end,
// delivers it in pieces: the first arrives as a packet that is shorter than its headers claim, the
// others as garbage. A sender on the same network can forge such a packet. But if buffers are too
// small, no packet longer than a piece ever arrives, so one longer packet refutes the piece. All
// queues of a device have buffers of one size, so that packet may come by any of them: the caller
// gives a piece of one link to the others of the device (Suspect).

// pieceUnit is the granularity of devices' buffers, in bytes, unless a buffer is all of a frame.
const pieceUnit = 1024

// Piece is a packet that ended where a device's buffer would.
type Piece struct {
	Got     int // bytes that arrived
	Claimed int // its length by its headers, in bytes
}

// piece is a Piece that a link's worker reports to the goroutine that opened the link. Only the
// worker stores, any goroutine loads.
type piece struct {
	seen    atomic.Uint64 // Got<<32 | Claimed; 0 is none
	refuted atomic.Uint64 // number of refuted pieces
}

// notePiece remembers the piece of a link that claims least: a packet that claims more than the MTU
// is no evidence of small buffers, and must not hide one that is. It is called for packets that are
// dropped because they are shorter than they claim.
func (w *Worker) notePiece(d Desc) {
	room := w.pool.frameSize - d.Addr&(w.pool.frameSize-1)
	// A driver that makes chains (Len 0) does check the end.
	if got := uint64(d.Len); got == 0 || got != room && got != room/pieceUnit*pieceUnit {
		return
	}
	claimed := header.Claimed(w.frame(d))
	if claimed <= int(d.Len) {
		return
	}
	if before, ok := w.Piece(w.b.link); !ok || claimed < before.Claimed {
		w.Suspect(w.b.link, Piece{Got: int(d.Len), Claimed: claimed})
	}
}

// Suspect gives the link in a position a piece that arrived on another one of the same device; a
// Piece does not remove it. It must run on the worker's goroutine (Do).
func (w *Worker) Suspect(position int, p Piece) {
	seen := uint64(p.Got)<<32 | uint64(p.Claimed)
	if w.pieces[position].seen.Swap(seen) != 0 {
		w.suspects--
	}
	if seen != 0 {
		w.suspects++
	}
}

// refute forgets the piece of a link on which a longer packet has arrived. It is called only if
// there are suspects, so that otherwise a batch costs one comparison more.
func (w *Worker) refute(link int, batch []Desc) {
	got := uint32(w.pieces[link].seen.Load() >> 32)
	if got == 0 {
		return
	}
	for i := range batch {
		if batch[i].Len > got {
			w.pieces[link].refuted.Add(1)
			w.Suspect(link, Piece{})
			return
		}
	}
}

// Piece returns the piece that claims least of those that arrived on the link in a position, unless
// a longer packet has refuted it. Safe for any goroutine.
func (w *Worker) Piece(position int) (p Piece, ok bool) {
	v := w.pieces[position].seen.Load()
	return Piece{Got: int(v >> 32), Claimed: int(uint32(v))}, v != 0
}

// Refuted counts the pieces of the link in a position that a longer packet has refuted. Safe for
// any goroutine.
func (w *Worker) Refuted(position int) uint64 { return w.pieces[position].refuted.Load() }
