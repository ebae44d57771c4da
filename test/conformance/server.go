package conformance

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"sluice.dev/sluice/test/bed/topo"
)

// Ports that every backend serves: the target port of most cases, and two more for
// ports that differ from slice to slice.
var backendPorts = [...]uint16{8080, 8081, 8082}

// largest is the largest datagram that servers and clients exchange.
const largest = 8192

// server answers each line on TCP, each datagram on UDP with "NAME CLIENT-ADDRESS PORT\n": its own
// name, the client's address as it saw it, and its port. A datagram longer than that gets an answer
// as long as itself.
type server struct {
	name    string
	closers []func() error
	running sync.WaitGroup
	mu      sync.Mutex
	open    map[net.Conn]bool // nil once closed
}

// serve starts a server on all ports of addresses of a host.
func serve(h *topo.Host, name string, addresses ...netip.Addr) (*server, error) {
	s := &server{name: name, open: map[net.Conn]bool{}}
	for _, a := range addresses {
		for _, port := range backendPorts {
			if err := s.listen(h, netip.AddrPortFrom(a, port)); err != nil {
				s.close()
				return nil, err
			}
		}
	}
	return s, nil
}

func (s *server) listen(h *topo.Host, at netip.AddrPort) error {
	l, err := h.Listen("tcp", at.String())
	if err != nil {
		return err
	}
	s.accept(l, at.Port())
	// One socket for each address: a reply must have the source that was asked.
	c, err := h.ListenPacket("udp", at.String())
	if err != nil {
		return err
	}
	s.closers = append(s.closers, c.Close)
	s.running.Go(func() { s.datagrams(c, at.Port()) })
	return nil
}

// accept serves a listener's connections, on a port.
func (s *server) accept(l net.Listener, port uint16) {
	s.closers = append(s.closers, l.Close)
	s.running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil { // closed
				return
			}
			s.running.Go(func() { s.lines(c, port) })
		}
	})
}

func (s *server) text(from net.Addr, port uint16) []byte {
	host, _, _ := net.SplitHostPort(from.String()) // an address of the net package is one
	return fmt.Appendf(nil, "%s %s %d\n", s.name, host, port)
}

func (s *server) lines(c net.Conn, port uint16) {
	defer c.Close()
	s.mu.Lock()
	if s.open == nil {
		s.mu.Unlock()
		return
	}
	s.open[c] = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.open, c) // also from a nil map
	}()
	for r := bufio.NewReaderSize(c, 64); ; {
		if _, err := r.ReadSlice('\n'); err != nil {
			return
		}
		if _, err := c.Write(s.text(c.RemoteAddr(), port)); err != nil {
			return
		}
	}
}

func (s *server) datagrams(c net.PacketConn, port uint16) {
	in := make([]byte, largest)
	for {
		n, from, err := c.ReadFrom(in)
		if err != nil && from == nil {
			if isClosed(err) {
				return
			}
			continue // ICMP errors about earlier answers
		}
		text := s.text(from, port)
		_, _ = c.WriteTo(append(text, bytes.Repeat([]byte(" "), max(n-len(text), 0))...), from)
	}
}

// close ends everything and waits until nothing runs.
func (s *server) close() {
	for _, f := range s.closers {
		_ = f() // a second time is no matter
	}
	s.mu.Lock()
	for c := range s.open {
		c.Close()
	}
	s.open = nil
	s.mu.Unlock()
	s.running.Wait()
}
