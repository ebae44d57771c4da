package ports

import (
	"fmt"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/fastpath/xsk"
	"sluice.dev/sluice/host/nic/devices"
	"sluice.dev/sluice/host/nic/frames"
	"sluice.dev/sluice/host/nic/netdev"
	"sluice.dev/sluice/xdpprog"
)

// socketMode returns the mode to request, and the reason if it is copy mode.
func (p *port) socketMode(frameSize int) (mode xsk.Mode, why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.requested(p.device, frameSize)
}

// requested is socketMode for a device as it is now: modeOf, but copy mode where the driver takes
// no other, because a try would lock the frames once more. p.mu must be held.
func (p *port) requested(dev devices.Device, frameSize int) (mode xsk.Mode, why string) {
	if mode, why = p.modeOf(dev, frameSize); mode == xsk.Auto && p.without {
		return xsk.Copy, "the driver has no AF_XDP zero-copy"
	}
	return mode, why
}

// modeOf is the mode that configuration, MTU and program require for a device as it is now. p.mu
// must be held.
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

// prefersNative reports whether native mode is worth giving up the generic program of a
// predecessor: it took generic mode at a larger MTU than the device has now. Without a record of
// that the program stays as it is, because a driver that refuses native mode for another reason
// would lose it for a moment at each restart.
func (p *port) prefersNative(r *refusals) bool {
	p.mu.Lock()
	dev := p.device
	p.mu.Unlock()
	if dev.MTU >= p.refusedAt(r, dev.Index) {
		return false
	}
	features, known := netdev.XDPFeatures(dev.Index)
	return known && netdev.Native(features)
}

// otherMode is why the program must be in another mode than it is in, for the device as it is now;
// empty if it need not. p.mu must be held.
//
// Native mode is worth a try where mode auto took generic mode at a larger MTU: it is the driver
// that may have refused then, as some do for MTUs that fit a frame of ours. Each smaller MTU is
// worth one try.
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

// otherSockets is why the sockets must be others than they are, for the device as it is now; empty
// if they need not. p.mu must be held.
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
