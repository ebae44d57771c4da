package ports

import (
	"fmt"
	"time"

	"sluice.dev/sluice/cmd/sluice/internal/devices"
	"sluice.dev/sluice/cmd/sluice/internal/frames"
	"sluice.dev/sluice/cmd/sluice/internal/netdev"
	"sluice.dev/sluice/control/config"
	"sluice.dev/sluice/control/status"
	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/xsk"
	"sluice.dev/sluice/xdpprog"
)

// socketMode returns the mode to request, and the reason if it is copy mode.
func (p *port) socketMode(frameSize int) (mode xsk.Mode, why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.modeOf(p.device, frameSize)
}

// modeOf is socketMode for a device as it is now. p.mu must be held.
func (p *port) modeOf(dev devices.Device, frameSize int) (mode xsk.Mode, why string) {
	switch {
	case p.host:
		return xsk.Copy, "a veth pair has no zero-copy"
	case p.config.ZeroCopy == config.ZeroCopyNever:
		return xsk.Copy, "zeroCopy is never in the configuration"
	case p.config.ZeroCopy == config.ZeroCopyRequire:
		return xsk.ZeroCopy, ""
	case p.config.Mode == config.ModeGeneric:
		return xsk.Copy, noGenericZeroCopy
	case p.attach != nil && p.attach.Mode() == xdpprog.Generic && !p.without:
		return xsk.Copy, noGenericZeroCopy
	}
	if frames.Long(dev.MTU, frameSize) {
		return xsk.Copy, frames.WhyLongIsCopy(dev.MTU, frameSize)
	}
	if why := frames.WhyNotWhole(dev.Driver, dev.MTU, frameSize); why != "" && !p.without {
		return xsk.Copy, "in zero-copy " + why
	}
	if p.pieces != "" {
		return xsk.Copy, p.pieces
	}
	return xsk.Auto, ""
}

// noGenericZeroCopy is why sockets are in copy mode where the program is in generic mode. A driver
// may bind a socket in zero-copy without a native program and then send nothing from it:
// igb_xsk_wakeup (drivers/net/ethernet/intel/igb/igb_xsk.c) and ixgbe_xsk_wakeup refuse to.
const noGenericZeroCopy = "generic mode has no zero-copy"

// sendsNothing reports whether a socket is in zero-copy while the program is in generic mode.
func (p *port) sendsNothing() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.attach == nil || p.attach.Mode() != xdpprog.Generic {
		return false
	}
	for _, sl := range p.slots {
		if socket := sl.socket.Load(); socket != nil {
			if mode, _ := socket.Mode(); mode == xsk.ZeroCopy {
				return true
			}
		}
	}
	return false
}

// long reports whether the port needs sockets that take packets in several frames.
func (p *port) long(frameSize int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return frames.Long(p.device.MTU, frameSize)
}

// attachMode returns the mode to request on the device as it is now.
func (p *port) attachMode(r *refusals) xdpprog.AttachMode {
	mode := map[config.Mode]xdpprog.AttachMode{
		config.ModeAuto: xdpprog.Auto, config.ModeNative: xdpprog.Native, config.ModeGeneric: xdpprog.Generic,
	}[p.config.Mode]
	switch {
	case mode != xdpprog.Auto:
	case p.needsGeneric() != "":
		return xdpprog.Generic
	case p.prefersNative(r):
		return xdpprog.PreferNative
	}
	return mode
}

// needsGeneric is why the program cannot be in native mode; empty if it can.
func (p *port) needsGeneric() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.device.WhyGeneric()
}

// prefersNative reports whether native mode is worth giving up the generic program of a predecessor:
// it took generic mode at a larger MTU than the device has now. Without a record of that the program
// stays as it is, because a driver that refuses native mode for another reason would lose it for a
// moment at each restart.
func (p *port) prefersNative(r *refusals) bool {
	p.mu.Lock()
	dev := p.device
	p.mu.Unlock()
	if dev.MTU >= r.at(p.name, dev.Index) {
		return false
	}
	features, known := netdev.XDPFeatures(dev.Index)
	return known && netdev.Native(features)
}

// otherMode is why the program must be in another mode than it is in, for the device as it is now; empty if it need
// not. p.mu must be held.
//
// Native mode is worth a try where mode auto took generic mode at a larger MTU: it is the driver that may have
// refused then, as some do for MTUs that fit a frame of ours. Each smaller MTU is worth one try.
func (p *port) otherMode(dev devices.Device) string {
	generic := dev.WhyGeneric()
	switch {
	case p.config.Mode != config.ModeAuto:
		return ""
	case generic != "" && p.attach.Mode() == xdpprog.Native:
		return "generic mode is needed: " + generic
	case generic != "" || dev.MTU >= p.genericMTU:
		return ""
	}
	features, known := netdev.XDPFeatures(dev.Index)
	if !known {
		return ""
	}
	if !netdev.Native(features) {
		p.genericMTU = dev.MTU
		return ""
	}
	return fmt.Sprintf("MTU is %d now, and native mode may be possible again", dev.MTU)
}

// otherSockets is why the sockets must be others than they are, for the device as it is now; empty if they need not.
// p.mu must be held.
func (p *port) otherSockets(dev devices.Device, frameSize int) string {
	wanted, why := p.modeOf(dev, frameSize)
	long := frames.Long(dev.MTU, frameSize)
	for _, sl := range p.slots {
		socket := sl.socket.Load()
		if socket == nil {
			continue
		}
		mode, _ := socket.Mode()
		switch {
		case long && !socket.Long():
			return fmt.Sprintf("MTU is %d now: packets come in several frames", dev.MTU)
		case !long && socket.Long():
			return fmt.Sprintf("MTU is %d now: every packet fits a frame", dev.MTU)
		case mode == xsk.ZeroCopy && wanted == xsk.Copy:
			return "copy mode is needed: " + why
		case p.whyCopy != "" && wanted != xsk.Copy:
			return fmt.Sprintf("what copy mode was for is over: %s", p.whyCopy)
		}
	}
	p.whyCopy = why // the MTU in it may be another
	return ""
}

// attachReason is why the program is in the mode that it is in. p.mu must be held.
func (p *port) attachReason() string {
	generic := p.device.WhyGeneric()
	if p.config.Mode == config.ModeAuto && generic != "" && p.attach.Mode() == xdpprog.Generic {
		return generic
	}
	return p.attach.Reason()
}

// confirmPieces is how long a piece must go without a longer packet, which refutes it: a forged one is confirmed only
// where nothing longer arrives.
const confirmPieces = 2 * time.Second

// notePieces looks for packets that a zero-copy driver delivered in pieces: package frames does not know
// every driver. One piece is enough, if nothing refutes it.
func (s *Set) notePieces(p *port) {
	for _, sl := range p.slots {
		socket := sl.socket.Load()
		if socket == nil {
			continue
		}
		piece, ok := s.workers.Piece(sl.worker, sl.position)
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
			p.pieces = inPieces(p.device, s.frames.Size, piece)
		}
		p.mu.Unlock()
	}
}

// ethernetBytes is what a frame has before its IP packet, at most: a header and two VLAN tags.
const ethernetBytes = 14 + 2*4

// inPieces returns why packets do not arrive whole, given a piece of one; empty if the packet was longer than any that
// the interface should receive: the driver is not the cause then.
func inPieces(dev devices.Device, frameSize int, piece fastpath.Piece) string {
	if piece.Claimed > dev.MTU+ethernetBytes {
		return ""
	}
	do := "set zeroCopy to never"
	if frameSize < frames.Large {
		do = fmt.Sprintf("set tuning.frameSize to %d and restart, or zeroCopy to never", frames.Large)
	}
	return fmt.Sprintf("driver %s delivers packets in pieces in zero-copy (the first %d bytes of %d arrived, in a frame of %d): %s",
		dev.Driver, piece.Got, piece.Claimed, frameSize, do)
}

// piecesCondition reports packets in pieces, and what is done about them. p.mu must be held.
func (p *port) piecesCondition() status.ConditionView {
	if p.config.ZeroCopy == config.ZeroCopyRequire {
		return status.Failed("zero-copy", fmt.Sprintf("interface %s loses packets, and zeroCopy is require: %s", p.name, p.pieces))
	}
	return status.Warning("zero-copy", fmt.Sprintf("interface %s is in copy mode: %s", p.name, p.pieces))
}
