package hostlink

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
)

var (
	// ErrGone is returned by Check if the pair was deleted, and perhaps made anew.
	ErrGone = errors.New("the host link is not the one that was made")
	// ErrUnread is returned by Check if the pair could not be read.
	ErrUnread = errors.New("the host link could not be read")
)

// Check returns an error if the pair differs from what Ensure returned. There are three kinds:
//
//	ErrUnread  nothing is known, and the pair is to be left alone
//	ErrGone    sockets, programs, next hops and routes were of a pair that is no more:
//	           Ensure, open the port as one of a device that came back, RouteSNAT
//	any other  a setting was changed: Ensure is enough
//
// It costs two netlink requests, and is meant to be called about once a second.
func (h *HostLink) Check() error {
	for _, end := range [...]struct {
		name  string
		index int
		mac   [6]byte
	}{{h.Name, h.Index, h.MAC}, {h.KernelName, h.KernelIndex, h.KernelMAC}} {
		l, err := find(end.name)
		if err != nil {
			return fmt.Errorf("%w: %s: %w", ErrUnread, end.name, err)
		}
		if err := h.checkEnd(l, end.index, end.mac); err != nil {
			return fmt.Errorf("host link %s: %s %w", h.Name, end.name, err)
		}
	}
	return nil
}

func (h *HostLink) checkEnd(l netlink.Link, index int, mac [6]byte) error {
	if l == nil {
		return fmt.Errorf("does not exist: %w", ErrGone)
	}
	a := l.Attrs()
	if a.Index != index {
		return fmt.Errorf("has index %d, not %d: %w", a.Index, index, ErrGone)
	}
	if string(a.HardwareAddr) != string(mac[:]) {
		return fmt.Errorf("has address %s, not %s: %w", a.HardwareAddr, net.HardwareAddr(mac[:]), ErrGone)
	}
	if a.MTU < h.MTU {
		return fmt.Errorf("has MTU %d, at least %d is needed", a.MTU, h.MTU)
	}
	if a.Flags&net.FlagUp == 0 {
		return errors.New("is down")
	}
	return nil
}
