package conformance

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/bed/machine"
	"sluice.dev/sluice/test/bed/topo"
)

// patience is how long a client waits until it calls silence a drop: longer than the
// first repetition of a SYN, which comes after a second.
var patience = machine.Slower(3 * time.Second)

// repeatAfter is when a datagram is sent again: one may get lost while an address is
// resolved.
const repeatAfter = time.Second

func isClosed(err error) bool { return errors.Is(err, net.ErrClosed) }

// socket is a client's end of a flow. Unlike package net's it tells an ICMP error from
// a reset. It is made inside the client's namespace and used anywhere.
type socket struct {
	fd     int
	stream bool
	six    bool
	local  string // address
	port   uint16
}

// connect opens a flow. A verdict is returned instead of a socket where none connects.
func connect(stream bool, from netip.Addr, to netip.AddrPort, limit time.Duration) (*socket, string, error) {
	s := &socket{stream: stream, six: to.Addr().Is6()}
	kind := unix.SOCK_DGRAM
	if stream {
		kind = unix.SOCK_STREAM
	}
	domain, level, option := unix.AF_INET, unix.SOL_IP, unix.IP_RECVERR
	if s.six {
		domain, level, option = unix.AF_INET6, unix.SOL_IPV6, unix.IPV6_RECVERR
	}
	var err error
	if s.fd, err = unix.Socket(domain, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
		return nil, "", fmt.Errorf("socket: %w", err)
	}
	verdict, err := s.open(from, to, level, option, limit)
	if err != nil || verdict != "" {
		s.close()
		return nil, verdict, err
	}
	return s, "", nil
}

func (s *socket) open(from netip.Addr, to netip.AddrPort, level, option int, limit time.Duration) (string, error) {
	if err := unix.SetsockoptInt(s.fd, level, option, 1); err != nil {
		return "", fmt.Errorf("request ICMP errors: %w", err)
	}
	if from.IsValid() {
		if err := unix.Bind(s.fd, topo.Sockaddr(netip.AddrPortFrom(from, 0))); err != nil {
			return "", fmt.Errorf("bind to %s: %w", from, err)
		}
	}
	err := unix.Connect(s.fd, topo.Sockaddr(to))
	if err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return s.failure(err), nil
	}
	if verdict := s.wait(unix.POLLOUT, limit); verdict != "" {
		return verdict, nil
	}
	name, err := unix.Getsockname(s.fd)
	if err != nil {
		return "", fmt.Errorf("own address: %w", err)
	}
	switch n := name.(type) {
	case *unix.SockaddrInet4:
		s.local, s.port = netip.AddrFrom4(n.Addr).String(), uint16(n.Port)
	case *unix.SockaddrInet6:
		s.local, s.port = netip.AddrFrom16(n.Addr).String(), uint16(n.Port)
	}
	return "", nil
}

func (s *socket) close() { unix.Close(s.fd) }

// wait waits for an event; it returns a verdict if the event did not come.
func (s *socket) wait(event int16, limit time.Duration) string {
	for end := time.Now().Add(limit); ; {
		left := time.Until(end)
		if left <= 0 {
			return drop
		}
		set := []unix.PollFd{{Fd: int32(s.fd), Events: event}}
		n, err := unix.Poll(set, int(left.Milliseconds())+1)
		if n == 0 || errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err.Error()
		}
		if errno, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_ERROR); err != nil {
			return err.Error()
		} else if errno != 0 {
			return s.failure(unix.Errno(errno))
		}
		if set[0].Revents&event != 0 {
			return ""
		}
		if set[0].Revents&unix.POLLERR != 0 {
			return s.failure(unix.ECONNREFUSED)
		}
	}
}

// failure names what an error means: what ICMP said, if it was ICMP.
func (s *socket) failure(err error) string {
	var errno unix.Errno
	if !errors.As(err, &errno) {
		return err.Error()
	}
	if verdict := s.icmp(); verdict != "" {
		return verdict
	}
	switch errno {
	case unix.ECONNREFUSED:
		return passListen // a reset: nothing else refuses without ICMP
	case unix.ETIMEDOUT:
		return drop
	}
	return errno.Error()
}

// icmp reads the error queue: struct sock_extended_err, include/uapi/linux/errqueue.h.
func (s *socket) icmp() string {
	const fromICMP4, fromICMP6 = 2, 3
	control := make([]byte, 512)
	_, n, _, _, err := unix.Recvmsg(s.fd, make([]byte, 512), control, unix.MSG_ERRQUEUE)
	if err != nil {
		return ""
	}
	messages, err := unix.ParseSocketControlMessage(control[:n])
	if err != nil {
		return ""
	}
	for _, m := range messages {
		if len(m.Data) < 8 || m.Header.Type != unix.IP_RECVERR && m.Header.Type != unix.IPV6_RECVERR {
			continue
		}
		origin, kind, code := m.Data[4], m.Data[5], m.Data[6]
		if origin == fromICMP4 || origin == fromICMP6 {
			return icmpVerdict(origin == fromICMP6, kind, code)
		}
		return unix.Errno(binary.NativeEndian.Uint32(m.Data)).Error()
	}
	return ""
}

// icmpVerdict names what an ICMP error says (RFC 792, RFC 4443 section 3.1).
func icmpVerdict(six bool, kind, code uint8) string {
	switch {
	case !six && kind == 3 && code == 3, six && kind == 1 && code == 4:
		return reject
	}
	return fmt.Sprintf("ICMP %d/%d", kind, code)
}

// ask sends one line and returns the answer.
func (s *socket) ask() answer {
	a := answer{client: s.local}
	if !s.stream { // late answers to a repeated question
		for in := make([]byte, 2048); ; {
			if n, err := unix.Read(s.fd, in); n <= 0 || err != nil {
				break
			}
		}
	}
	for end := time.Now().Add(patience); ; {
		if _, err := unix.Write(s.fd, []byte("?\n")); err != nil {
			if a.verdict = s.failure(err); !s.stream && a.verdict == passListen && time.Now().Before(end) {
				continue
			}
			return a
		}
		limit := time.Until(end)
		if !s.stream {
			limit = min(limit, repeatAfter)
		}
		a.verdict = s.wait(unix.POLLIN, limit)
		// Nothing resets a datagram: that is an error of an ICMP message that was read before
		// the socket had the error.
		again := a.verdict == drop || !s.stream && a.verdict == passListen
		if again && time.Now().Before(end) {
			continue
		}
		if a.verdict == "" {
			s.read(&a)
		}
		return a
	}
}

func (s *socket) read(a *answer) (bytes int) {
	in := make([]byte, largest)
	n, err := unix.Read(s.fd, in)
	switch fields := strings.Fields(string(in[:max(n, 0)])); {
	case err != nil:
		a.verdict = s.failure(err)
	case n == 0:
		a.verdict = "closed"
	case len(fields) < 3:
		a.verdict = fmt.Sprintf("answer %q", in[:n])
	default:
		a.backend, a.source = fields[0], fields[1]
		if fields[2] != "8080" {
			a.backend += ":" + fields[2]
		}
	}
	return n
}
