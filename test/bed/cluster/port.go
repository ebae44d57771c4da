package cluster

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/bed/topo"
)

// port is a TCP port of a host's loopback that is ours whether or not somebody listens:
// a socket is bound to it that never listens. So connections are refused meanwhile, and the kernel
// gives the number to nobody else. A program that listens on it must set SO_REUSEPORT.
type port struct {
	number int
	socket int // -1 once released
}

func reservePort(h *topo.Host) (*port, error) {
	p := &port{socket: -1}
	err := h.Run(func() (err error) {
		if p.socket, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		if err := unix.SetsockoptInt(p.socket, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
			return err
		}
		if err := unix.Bind(p.socket, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
			return err
		}
		name, err := unix.Getsockname(p.socket)
		if err != nil {
			return err
		}
		p.number = name.(*unix.SockaddrInet4).Port
		return nil
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cluster: reserve a port: %w", err), p.release())
	}
	return p, nil
}

func (p *port) release() error {
	if p.socket < 0 {
		return nil
	}
	err := unix.Close(p.socket)
	p.socket = -1
	return err
}
