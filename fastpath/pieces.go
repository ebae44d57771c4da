package fastpath

import (
	"sync/atomic"

	"sluice.dev/sluice/nat/header"
)

// Pieces are what a driver makes of a packet whose buffer is too small for it and whose end it does not
// look for: the first piece arrives as a packet that is shorter than its headers claim, the others
// as garbage. A sender can write such a packet too, but one that ends where a device's buffer would is
// hardly chance.

// pieceUnit is what buffers of devices are whole multiples of, in bytes, if they are not all of a frame.
const pieceUnit = 1024

// Piece is a packet that ended early.
type Piece struct {
	Got     int // bytes that arrived
	Claimed int // bytes that there should be, by its headers
}

// piece is a Piece that a link's worker leaves for whoever opened the link. The worker stores,
// anybody takes.
type piece struct{ atomic.Uint64 }

// notePiece remembers the first piece of a link since the last one was taken. It is called for packets that
// are dropped because they are shorter than they claim.
func (w *Worker) notePiece(d Desc) {
	room := w.pool.frameSize - d.Addr&(w.pool.frameSize-1)
	if d.Len == 0 || d.Len%pieceUnit != 0 && uint64(d.Len) != room { // a chain's driver does look for the end
		return
	}
	claimed := header.Claimed(w.frame(d))
	if claimed > int(d.Len) {
		w.pieces[w.b.link].CompareAndSwap(0, uint64(d.Len)<<32|uint64(claimed))
	}
}

// TakePiece returns the first piece that arrived on the link in a position, and forgets it; false if there was
// none. Safe for any goroutine.
func (w *Worker) TakePiece(position int) (p Piece, ok bool) {
	v := w.pieces[position].Swap(0)
	return Piece{Got: int(v >> 32), Claimed: int(uint32(v))}, v != 0
}
