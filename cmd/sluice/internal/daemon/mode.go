package daemon

import (
	"fmt"
	"time"

	"sluice.dev/sluice/cmd/sluice/internal/frames"
	"sluice.dev/sluice/control/config"
	"sluice.dev/sluice/control/status"
	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/xsk"
	"sluice.dev/sluice/xdpprog"
)

// socketMode is the mode to ask for, and the reason if it is copy mode without having been configured.
func (p *port) socketMode(frameSize int) (mode xsk.Mode, why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.modeOf(p.device, frameSize)
}

// modeOf is socketMode for a device as it is now. p.mu must be held.
func (p *port) modeOf(dev device, frameSize int) (mode xsk.Mode, why string) {
	switch {
	case p.host:
		return xsk.Copy, "a veth pair has no zero-copy"
	case p.config.ZeroCopy == config.ZeroCopyNever:
		return xsk.Copy, "zeroCopy is never in the configuration"
	case p.config.ZeroCopy == config.ZeroCopyRequire:
		return xsk.ZeroCopy, ""
	}
	if frames.Long(dev.mtu, frameSize) {
		return xsk.Copy, frames.WhyLongIsCopy(dev.mtu, frameSize)
	}
	if why := frames.WhyNotWhole(dev.driver, dev.mtu, frameSize); why != "" {
		return xsk.Copy, "in zero-copy " + why
	}
	if p.pieces != "" {
		return xsk.Copy, p.pieces
	}
	return xsk.Auto, ""
}

// long reports whether the port needs sockets that take packets in several frames.
func (p *port) long(frameSize int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return frames.Long(p.device.mtu, frameSize)
}

// needsGeneric is why the program cannot be in native mode; empty if it can.
func (p *port) needsGeneric() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.device.generic
}

// attachReason is why the program is in the mode that it is in. p.mu must be held.
func (p *port) attachReason() string {
	if p.config.Mode == config.ModeAuto && p.device.generic != "" && p.attach.Mode() == xdpprog.Generic {
		return p.device.generic
	}
	return p.attach.Reason()
}

// confirmPieces is how long a piece must stand. Any longer packet refutes it, so a sender's forgery lasts only where
// nothing longer arrives.
const confirmPieces = 2 * time.Second

// notePieces looks for packets that a zero-copy driver delivered in pieces: the rules of package frames do
// not know every driver. The first one is enough, if nothing refutes it.
func (d *datapath) notePieces(p *port) {
	for _, sl := range p.slots {
		socket := sl.socket.Load()
		if socket == nil {
			continue
		}
		piece, ok := d.workers[sl.worker].Piece(sl.position)
		if mode, _ := socket.Mode(); !ok || mode != xsk.ZeroCopy {
			sl.suspected = time.Time{}
			continue
		}
		if sl.suspected.IsZero() {
			sl.suspected = time.Now()
		}
		if time.Since(sl.suspected) < confirmPieces {
			continue
		}
		p.mu.Lock()
		if p.pieces == "" {
			p.pieces = inPieces(p.device, d.frames.Size, piece)
		}
		p.mu.Unlock()
	}
}

// ethernetBytes is what a frame has before its IP packet, at most: a header and two VLAN tags.
const ethernetBytes = 14 + 2*4

// inPieces says what a piece is a sign of: empty if the packet was longer than any that the interface should
// receive, and so was not the driver's to cut.
func inPieces(dev device, frameSize int, piece fastpath.Piece) string {
	if piece.Claimed > dev.mtu+ethernetBytes {
		return ""
	}
	do := "set zeroCopy to never"
	if frameSize < frames.Large {
		do = fmt.Sprintf("set frames.size to %d and restart, or zeroCopy to never", frames.Large)
	}
	return fmt.Sprintf("driver %s delivers packets in pieces in zero-copy (the first %d bytes of %d arrived, in a frame of %d): %s",
		dev.driver, piece.Got, piece.Claimed, frameSize, do)
}

// piecesCondition says what became of it. p.mu must be held.
func (p *port) piecesCondition() status.ConditionView {
	if p.config.ZeroCopy == config.ZeroCopyRequire {
		return failed("zero-copy", fmt.Sprintf("interface %s loses packets, and zeroCopy is require: %s", p.name, p.pieces))
	}
	return warning("zero-copy", fmt.Sprintf("interface %s is in copy mode: %s", p.name, p.pieces))
}
