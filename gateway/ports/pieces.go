package ports

import (
	"context"
	"fmt"
	"time"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/xsk"
	"sluice.dev/sluice/host/nic/devices"
	"sluice.dev/sluice/host/nic/frames"
	"sluice.dev/sluice/serve/status"
)

const (
	// confirmPieces is the time after which a piece is confirmed if no longer packet, which would
	// refute it, arrives on any queue of the port. A forged piece is confirmed only if nothing
	// longer arrives.
	confirmPieces = 2 * time.Second
	// retryZeroCopy is the time after which zero-copy is tried again: the piece may have been
	// forged after all. If the driver does cut packets, cut packets are lost until that is
	// confirmed again.
	retryZeroCopy = 10 * time.Minute
)

// suspicion is a piece that nothing has refuted yet. The zero value is none. Only the watcher uses
// it.
type suspicion struct {
	since   time.Time
	refuted uint64 // number of refuted pieces of the port at that time
}

// notePieces looks for packets that a zero-copy driver delivered in pieces, because package frames
// does not know every driver. One piece that nothing refutes is enough.
func (s *Set) notePieces(ctx context.Context, p *port, now time.Time) {
	p.retryZeroCopy(now)
	var zeroCopied []*slot
	for _, sl := range p.slots {
		if socket := sl.socket.Load(); socket != nil {
			if mode, _ := socket.Mode(); mode == xsk.ZeroCopy {
				zeroCopied = append(zeroCopied, sl)
			}
		}
	}
	s.trackPieces(ctx, p, zeroCopied, now)
}

// retryZeroCopy forgets pieces that were confirmed long ago.
func (p *port) retryZeroCopy(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pieces != "" && now.Sub(p.piecesSince) >= retryZeroCopy {
		p.pieces = ""
	}
}

// trackPieces is notePieces for the slots whose sockets are in zero-copy. While there is a piece,
// the workers of all these slots look for packets that refute it, because all queues of a device
// have buffers of one size.
func (s *Set) trackPieces(ctx context.Context, p *port, zeroCopied []*slot, now time.Time) {
	refuted := uint64(0) // read before the pieces, so that a piece refuted meanwhile counts
	for _, sl := range zeroCopied {
		refuted += s.workers.RefutedPieces(sl.worker, sl.position)
	}
	piece, why := s.suspect(p, zeroCopied)
	known := !p.suspected.since.IsZero()
	switch {
	case known && refuted != p.suspected.refuted:
		p.suspected = suspicion{}
		_ = s.suspectAll(ctx, zeroCopied, fastpath.Piece{}) // fails only if the workers end
		p.setPieces("", now)
	case why == "":
		p.suspected = suspicion{}
	case !known:
		if s.suspectAll(ctx, zeroCopied, piece) == nil { // otherwise at the next look
			p.suspected = suspicion{now, refuted}
		}
	case now.Sub(p.suspected.since) >= confirmPieces:
		p.setPieces(why, now)
	}
}

// suspect returns a piece that one of the slots received, and the conclusion about the driver; the
// conclusion is empty if there is no piece.
func (s *Set) suspect(p *port, slots []*slot) (piece fastpath.Piece, why string) {
	p.mu.Lock()
	dev := p.device
	p.mu.Unlock()
	for _, sl := range slots {
		piece, ok := s.workers.Piece(sl.worker, sl.position)
		if !ok {
			continue
		}
		if why := inPieces(dev, s.frames.Size, piece); why != "" {
			return piece, why
		}
	}
	return piece, ""
}

// suspectAll makes the workers look for packets that are longer than the piece; an empty Piece ends
// that.
func (s *Set) suspectAll(ctx context.Context, slots []*slot, piece fastpath.Piece) error {
	for _, sl := range slots {
		if err := s.workers.SetPiece(ctx, sl.worker, sl.position, piece); err != nil {
			return err
		}
	}
	return nil
}

// setPieces sets why packets do not arrive whole, and since when that is known.
func (p *port) setPieces(why string, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pieces == "" || why == "" {
		p.pieces, p.piecesSince = why, now
	}
}

// ethernetBytes is the greatest number of bytes before the IP packet in a frame: a header and two
// VLAN tags.
const ethernetBytes = 14 + 2*4

// inPieces returns why packets do not arrive whole, for a piece of one. It returns "" if the packet
// was longer than any that the interface should receive: then the driver is not the cause.
func inPieces(dev devices.Device, frameSize int, piece fastpath.Piece) string {
	if piece.Claimed > dev.MTU+ethernetBytes {
		return ""
	}
	do := "set zeroCopy to never"
	if frameSize < frames.Large {
		do = fmt.Sprintf("set tuning.frameSize to %d and restart, or zeroCopy to never", frames.Large)
	}
	return fmt.Sprintf("driver %s delivers packets in pieces in zero-copy (the first %d bytes of %d arrived, in a "+
		"frame of %d): %s",
		dev.Driver, piece.Got, piece.Claimed, frameSize, do)
}

// piecesCondition reports packets in pieces and the remedy. p.mu must be held.
func (p *port) piecesCondition() status.ConditionView {
	if p.config.ZeroCopy == config.ZeroCopyRequire {
		return status.Failed("zero-copy", fmt.Sprintf("interface %s loses packets, and zeroCopy is require: %s", p.name,
			p.pieces))
	}
	return status.Warning("zero-copy", fmt.Sprintf("interface %s is in copy mode: %s", p.name, p.pieces))
}
