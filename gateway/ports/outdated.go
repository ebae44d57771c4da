package ports

import (
	"cmp"
	"errors"
	"fmt"

	"sluice.dev/sluice/fastpath/xsk"
	"sluice.dev/sluice/host/nic/devices"
	"sluice.dev/sluice/host/nic/frames"
	"sluice.dev/sluice/serve/status"
)

// kept is why a port stays open although its device needs other sockets: registering their memory
// failed. The port tries that before it closes anything, once for each MTU.
type kept struct {
	mtu  int // 0: nothing failed
	want string
	why  error
}

// outdated returns why a working port must be opened again for the state of its device that
// reopenReason has read, and whether the program can stay attached meanwhile. It returns nil if
// registering the memory for that fails: the port stays open, and a condition reports it.
func (s *Set) outdated(p *port) (reason error, programStays bool) {
	p.mu.Lock()
	dev, before := p.device, p.kept
	mode, why := "", ""
	if _, err := devices.Check(dev, p.config, s.frames); err == nil {
		mode = p.otherMode(dev)
		why = cmp.Or(mode, p.otherSockets(dev, s.frames.Size))
	}
	sockets, _ := p.requested(dev, s.frames.Size)
	if why == "" {
		p.kept = kept{}
	}
	p.mu.Unlock()
	if why == "" || before.mtu == dev.MTU {
		return nil, false
	}
	err := xsk.CanReplace(s.umems(p), dev.Index, sockets, frames.Long(dev.MTU, s.frames.Size))
	if err == nil {
		return errors.New(why), mode == ""
	}
	p.mu.Lock()
	p.kept = kept{dev.MTU, why, err}
	p.mu.Unlock()
	s.log.Warn("interface is not opened again", "interface", p.name, "wanted", why, "refused", err)
	return nil, false
}

// umems returns the UMEMs of the workers that have sockets of a port.
func (s *Set) umems(p *port) (list []*xsk.UMEM) {
	for id := range s.workers.Len() {
		for _, sl := range p.slots {
			if sl.worker == id && sl.socket.Load() != nil {
				list = append(list, s.workers.UMEM(id))
				break
			}
		}
	}
	return list
}

// receives returns the largest IP packet that the port can receive, in bytes: less than the MTU if
// sockets for larger packets failed; else the MTU. p.mu must be held.
func (p *port) receives(frameSize int) int {
	if p.kept.mtu == 0 {
		return p.device.MTU
	}
	most := p.device.MTU
	for _, sl := range p.slots {
		socket := sl.socket.Load()
		if socket == nil || socket.Long() {
			continue
		}
		most = min(most, frames.Room(frameSize))
		if mode, _ := socket.Mode(); mode == xsk.ZeroCopy {
			most = min(most, frames.Whole(p.device.Driver, frameSize))
		}
	}
	return most
}

// keptCondition reports packets that are lost because memory could not be registered, and the
// remedy. p.mu must be held.
func (p *port) keptCondition(frameSize int) status.ConditionView {
	most := p.receives(frameSize)
	if most == p.device.MTU {
		level := status.Warning
		if p.pieces != "" { // packets that arrive in pieces are lost
			level = status.Failed
		}
		return level("memlock",
			fmt.Sprintf("interface %s is not opened again, although %s: its sockets would register the frames once "+
				"more, and %v; then restart",
				p.name, p.kept.want, p.kept.why))
	}
	return status.Failed("mtu", fmt.Sprintf("interface %s has MTU %d, and packets longer than %d bytes are lost: "+
		"sockets for them would register the frames once more, and %v; then restart. Or: ip link set %s mtu %d",
		p.name, p.device.MTU, most, p.kept.why, p.name, most))
}
