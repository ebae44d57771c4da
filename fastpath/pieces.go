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
// come by any queue: the caller gives the piece of one link to the device's other links (Suspect).

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

// notePiece stores the piece with the smallest claimed length of a link: a packet that claims more
// than the MTU is no evidence of small buffers, and must not replace one that is. It is called for
// packets that are dropped because they are shorter than their headers claim.
func (w *Worker) notePiece(p *packet) {
	d := p.desc
	room := w.pool.frameSize - d.Addr&(w.pool.frameSize-1)
	// A driver that makes chains (Len 0) checks the packet's end.
	if got := uint64(d.Len); got == 0 || got != room && got != room/pieceUnit*pieceUnit {
		return
	}
	claimed := header.Claimed(p.frame)
	if claimed <= int(d.Len) {
		return
	}
	if before, ok := w.Piece(p.link); !ok || claimed < before.Claimed {
		w.Suspect(p.link, Piece{Got: int(d.Len), Claimed: claimed})
	}
}

// Suspect sets the piece of the link in a position, which arrived on another link of the same
// device; the zero Piece removes it. It must run on the worker's goroutine (Do).
func (w *Worker) Suspect(position int, p Piece) {
	seen := uint64(p.Got)<<32 | uint64(p.Claimed)
	if w.pieces[position].seen.Swap(seen) != 0 {
		w.suspects--
	}
	if seen != 0 {
		w.suspects++
	}
}

// refute removes the piece of a link on which a longer packet has arrived. The caller checks that
// there are suspects, so without any a batch costs only one comparison more.
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

// Piece returns the stored piece of the link in a position; ok is false if there is none or a
// longer packet has refuted it. Safe for any goroutine.
func (w *Worker) Piece(position int) (p Piece, ok bool) {
	v := w.pieces[position].seen.Load()
	return Piece{Got: int(v >> 32), Claimed: int(uint32(v))}, v != 0
}

// Refuted returns how many pieces of the link in a position longer packets have refuted. Safe for
// any goroutine.
func (w *Worker) Refuted(position int) uint64 { return w.pieces[position].refuted.Load() }
