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

// socketMode returns the socket mode to request, and the reason if it is copy mode.
func (p *port) socketMode(frameSize int) (mode xsk.Mode, why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.requested(p.device, frameSize)
}

// requested is socketMode for a device in its present state: modeOf, but copy mode if the driver
// has no other, because an attempt would lock the frames once more. p.mu must be held.
func (p *port) requested(dev devices.Device, frameSize int) (mode xsk.Mode, why string) {
	if mode, why = p.modeOf(dev, frameSize); mode == xsk.Auto && p.without {
		return xsk.Copy, "the driver has no AF_XDP zero-copy"
	}
	return mode, why
}

// modeOf returns the mode that configuration, MTU and program require for a device in its present
// state. p.mu must be held.
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

// noGenericZeroCopy is why sockets are in copy mode if the program is in generic mode. A driver may
// bind a zero-copy socket without a native program and then send nothing from it: igb_xsk_wakeup
// (drivers/net/ethernet/intel/igb/igb_xsk.c) and ixgbe_xsk_wakeup return an error.
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

// long reports whether the port needs sockets that receive packets in several frames.
func (p *port) long(frameSize int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return frames.Long(p.device.MTU, frameSize)
}

// attachMode returns the mode to request for the program on the device in its present state.
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

// needsGeneric returns why the program cannot be in native mode; empty if it can.
func (p *port) needsGeneric() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.device.WhyGeneric()
}

// prefersNative reports whether to give up a predecessor's generic program and try native mode: the
// predecessor had chosen generic mode at a larger MTU than the device has now. Without a record of
// that the program stays: a driver that rejects native mode for another reason would be without a
// program for a moment at each restart.
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

// otherMode returns why the program must change its mode for the device in its present state; empty
// if it must not. p.mu must be held.
//
// Mode auto tries native mode again if it chose generic mode at a larger MTU: the driver may have
// rejected native mode because of the MTU, as some do for MTUs that would fit in a frame. It tries
// once for each smaller MTU.
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
	return fmt.Sprintf("the MTU is now %d, and native mode may be possible again", dev.MTU)
}

// otherSockets returns why the port needs other sockets for the device in its present state; empty
// if it does not. p.mu must be held.
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
			return fmt.Sprintf("the MTU is now %d: packets arrive in several frames", dev.MTU)
		case !long && socket.Long():
			return fmt.Sprintf("the MTU is now %d: every packet fits in one frame", dev.MTU)
		case mode == xsk.ZeroCopy && wanted == xsk.Copy:
			return "copy mode is needed: " + why
		case p.whyCopy != "" && wanted != xsk.Copy:
			return fmt.Sprintf("the reason for copy mode no longer holds: %s", p.whyCopy)
		}
	}
	p.whyCopy = why // it may contain another MTU
	return ""
}

// attachReason returns why the program is in its present mode. p.mu must be held.
func (p *port) attachReason() string {
	generic := p.device.WhyGeneric()
	if p.config.Mode == config.ModeAuto && generic != "" && p.attach.Mode() == xdpprog.Generic {
		return generic
	}
	return p.attach.Reason()
}
