package fastpath

import (
	"sync/atomic"

	"sluice.dev/sluice/nat/header"
)

// Pieces are what a driver makes of a packet whose buffer is too small for it and whose end it
// does not check: the first piece arrives as a packet that is shorter than its headers claim, the
// others as garbage. A sender on the same network can write such a packet, too. But where buffers
// are too small nothing longer than a piece ever arrives, so one longer packet refutes it. All
// queues of a device have buffers of one size, so that packet may come by any of them: the caller
// gives a piece of one link to the others of the device (Suspect).

// pieceUnit is what buffers of devices are whole multiples of, in bytes, if they are not all of a
// frame.
const pieceUnit = 1024

// Piece is a packet that ended where a device's buffer would.
type Piece struct {
	Got     int // bytes that arrived
	Claimed int // bytes that there should be, by its headers
}

// piece is a Piece that a link's worker reports to the goroutine that opened the link. Only the
// worker stores, any goroutine loads.
type piece struct {
	seen    atomic.Uint64 // Got<<32 | Claimed; 0 is none
	refuted atomic.Uint64 // how many were
}

// notePiece remembers the piece of a link that claims least: one that claims more than the MTU
// tells nothing of the driver, and must not hide one that does. It is called for packets that are
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

// Suspect gives the link in a position a piece that arrived on another one of the same device; no
// Piece takes it away. It must run on the worker's goroutine (Do).
func (w *Worker) Suspect(position int, p Piece) {
	seen := uint64(p.Got)<<32 | uint64(p.Claimed)
	if w.pieces[position].seen.Swap(seen) != 0 {
		w.suspects--
	}
	if seen != 0 {
		w.suspects++
	}
}

// refute forgets the piece of a link on which a longer packet has arrived. It is called where
// there are suspects only, so that the others pay for one comparison a batch.
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

// Piece returns the piece that claims least of those that arrived on the link in a position, as
// long as nothing has refuted it. Safe for any goroutine.
func (w *Worker) Piece(position int) (p Piece, ok bool) {
	v := w.pieces[position].seen.Load()
	return Piece{Got: int(v >> 32), Claimed: int(uint32(v))}, v != 0
}

// Refuted counts the pieces of the link in a position that a longer packet has refuted. Safe for
// any goroutine.
func (w *Worker) Refuted(position int) uint64 { return w.pieces[position].refuted.Load() }
