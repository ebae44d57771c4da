package hostlink

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
)

var (
	// ErrGone is returned by Check if the pair was deleted, and perhaps created again.
	ErrGone = errors.New("the host link was deleted or replaced")
	// ErrUnread is returned by Check if the pair could not be read.
	ErrUnread = errors.New("the host link could not be read")
)

// Check returns an error if the pair differs from the HostLink h. There are three kinds:
//
//	ErrUnread  the state is not known; do not change the pair
//	ErrGone    sockets, programs, next hops and routes belong to a pair that no longer exists:
//	           call Ensure, open the port again as after a deletion of its device, call RouteSNAT
//	any other  a setting was changed: call Ensure
//
// It makes two netlink requests. The caller should call it about once a second.
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
