package conformance

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// serviceAddresses is where all addresses of Services are.
var serviceAddresses = [...]string{"198.18.0.0/15", "10.96.0.0/12", "2001:db8::/32", "fd00:96::/112"}

// addBeyond makes the last host what lies beyond the gateway: the gateway's kernel has its route to
// all addresses of Services there, and it answers for all of them. So the test sees packets that a
// system leaves to the kernel, and packets that a system forwards are not routed into nothing
// before the kernel's filters have seen them.
func (w *world) addBeyond() error {
	h := w.Backends[backends]
	for name, value := range map[string]string{
		"net.ipv4.icmp_echo_ignore_all": "1", "net.ipv6.icmp.echo_ignore_all": "1", // a ping is for the gateway
		"net.ipv6.ip_nonlocal_bind": "1", // it sends from addresses that no interface has
	} {
		if err := h.SetSysctl(name, value); err != nil {
			return err
		}
	}
	for _, text := range serviceAddresses {
		p, via := netip.MustParsePrefix(text), h.Addr4()
		if p.Addr().Is6() {
			via = h.Addr6()
		}
		if err := errors.Join(h.Route(p, netip.Addr{}), w.Gateway.Route(p, via)); err != nil {
			return err
		}
	}
	s := &server{name: "beyond", open: map[net.Conn]bool{}}
	w.servers = append(w.servers, s)
	return h.Run(func() error {
		for _, port := range [...]uint16{80, 81} {
			if err := s.everywhere(port); err != nil {
				return err
			}
		}
		return nil
	})
}

// everywhere listens on a port of all addresses, in the calling thread's namespace.
func (s *server) everywhere(port uint16) error {
	l, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		return err
	}
	s.accept(l, 8080) // its own port says nothing, so it looks as all others
	for _, network := range [...]string{"udp4", "udp6"} {
		p, err := net.ListenPacket(network, fmt.Sprintf(":%d", port))
		if err != nil {
			return err
		}
		c := p.(*net.UDPConn)
		s.closers = append(s.closers, c.Close)
		if err := tellDestination(c, network == "udp6"); err != nil {
			return err
		}
		s.running.Go(func() { s.echoEverywhere(c) })
	}
	return nil
}

// tellDestination has the kernel say with each datagram where it was sent to.
func tellDestination(c *net.UDPConn, six bool) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	level, option := unix.SOL_IP, unix.IP_PKTINFO
	if six {
		level, option = unix.SOL_IPV6, unix.IPV6_RECVPKTINFO
	}
	var set error
	err = raw.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), level, option, 1) })
	return errors.Join(err, set)
}

// echoEverywhere answers datagrams from the address that they were sent to.
func (s *server) echoEverywhere(c *net.UDPConn) {
	in, control := make([]byte, 2048), make([]byte, 256)
	for {
		_, n, _, from, err := c.ReadMsgUDP(in, control)
		if isClosed(err) {
			return
		}
		if err != nil || from == nil {
			continue
		}
		messages, err := unix.ParseSocketControlMessage(control[:n])
		if err != nil || len(messages) != 1 {
			continue
		}
		var answer []byte
		switch m := messages[0]; {
		case m.Header.Type == unix.IP_PKTINFO && len(m.Data) >= 12: // ifindex, local address, destination
			answer = unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: [4]byte(m.Data[8:12])})
		case m.Header.Type == unix.IPV6_PKTINFO && len(m.Data) >= 16:
			answer = unix.PktInfo6(&unix.Inet6Pktinfo{Addr: [16]byte(m.Data[:16])})
		default:
			continue
		}
		_, _, _ = c.WriteMsgUDP(s.text(from, 8080), answer, from)
	}
}
