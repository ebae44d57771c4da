package topo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Associations of SCTP look like connections here: one-to-one sockets (RFC 6458, section 4), of
// which each reads and writes one ordered stream. Package net knows no SCTP, but takes a descriptor
// for what its type and its addresses say (net.FileConn): a stream between addresses of IP. So
// clients and servers are TCP clients and servers, and the addresses of an association are of type
// *net.TCPAddr.
//
// Each end is bound to one address. Left alone an end tells the other all that its host has (RFC
// 9260, section 5.1.2), and a translator that does not rewrite them, as the gateway, would be
// passed by.

// ServeSCTP starts a server on the host that answers as that of Serve, over SCTP and nothing else.
func (h *Host) ServeSCTP(port uint16) (*Server, error) {
	return h.serve(h.Name, port, func(s *Server) (listeners []net.Listener, err error) {
		for _, a := range [...]netip.Addr{h.Addr4(), h.Addr6()} {
			l, err := listenSCTP(netip.AddrPortFrom(a, port))
			if err != nil {
				return listeners, err
			}
			listeners = append(listeners, l)
		}
		return listeners, nil
	})
}

// OpenSCTP is OpenTCP with associations.
func (h *Host) OpenSCTP(ctx context.Context, l FlowLoad) (*Flows, error) {
	l.setDefaults(connectionTimeout)
	return h.open(ctx, l, h.dialSCTP, (*Flows).tcp)
}

// DownloadSCTP is Download over an association.
func (h *Host) DownloadSCTP(ctx context.Context, target netip.AddrPort, n int64) (*Transfer, error) {
	return h.download(ctx, h.associate, target, n)
}

// UploadSCTP is Upload over an association.
func (h *Host) UploadSCTP(ctx context.Context, target netip.AddrPort, n int64) (*Transfer, error) {
	return h.upload(ctx, h.associate, target, n)
}

// associate is dialSCTP as package http wants it.
func (h *Host) associate(ctx context.Context, _, address string) (conn net.Conn, err error) {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, err
	}
	err = h.Run(func() error {
		conn, err = h.dialSCTP(ctx, to, dialTimeout)
		return err
	})
	return conn, err
}

// dialSCTP makes an association from the host's address. It runs in the host's namespace.
func (h *Host) dialSCTP(ctx context.Context, to netip.AddrPort, timeout time.Duration) (net.Conn, error) {
	from := h.Addr4()
	if to.Addr().Is6() {
		from = h.Addr6()
	}
	if end, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(end))
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var conn net.Conn
	err := socketSCTP(netip.AddrPortFrom(from, 0), func(fd int) error {
		err := unix.Connect(fd, Sockaddr(to))
		for end := time.Now().Add(timeout); errors.Is(err, unix.EINPROGRESS) || errors.Is(err, unix.EINTR); {
			err = connected(fd, time.Until(end))
		}
		return os.NewSyscallError("connect", err)
	}, func(f *os.File) (err error) {
		conn, err = net.FileConn(f)
		return err
	})
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: "sctp", Addr: net.TCPAddrFromAddrPort(to), Err: err}
	}
	return conn, nil
}

// connected waits until the socket can be written to, and returns its error, if any.
func connected(fd int, timeout time.Duration) error {
	set := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	n, err := unix.Poll(set, int(max(timeout, 0).Milliseconds()))
	if err != nil {
		return err
	}
	if n == 0 {
		return unix.ETIMEDOUT
	}
	code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err == nil && code != 0 {
		err = unix.Errno(code)
	}
	return err
}

// listenSCTP runs in a host's namespace.
func listenSCTP(at netip.AddrPort) (l net.Listener, err error) {
	err = socketSCTP(at, func(fd int) error {
		return os.NewSyscallError("listen", unix.Listen(fd, unix.SOMAXCONN))
	}, func(f *os.File) error {
		l, err = net.FileListener(f)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen on SCTP %s: %w", at, err)
	}
	return l, nil
}

// socketSCTP makes a one-to-one socket with an address, has it prepared, and hands it over to
// package net, which takes a copy of the descriptor.
func socketSCTP(at netip.AddrPort, prepare func(fd int) error, take func(*os.File) error) error {
	family := unix.AF_INET
	if at.Addr().Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_SCTP)
	if err != nil {
		return fmt.Errorf("SCTP socket (module sctp): %w", err)
	}
	f := os.NewFile(uintptr(fd), "sctp")
	defer f.Close()
	if err := unix.Bind(fd, Sockaddr(at)); err != nil {
		return os.NewSyscallError("bind", err)
	}
	if err := prepare(fd); err != nil {
		return err
	}
	return take(f)
}

// Sockaddr is an address and a port as system calls take it.
func Sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}
