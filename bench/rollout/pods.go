package rollout

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"sluice.dev/sluice/test/bed/topo"
)

const (
	podHosts = 4 // namespaces that have pods
	podPort  = 8080
)

// podNet is the prefix routed to a host.
func podNet(host int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(host), 0}), 24)
}

// podAddresses allocates addresses of pods, on the hosts in turn.
type podAddresses struct{ given int }

// maxPods is the number of addresses of podAddresses: .1 to .254 on each host.
const maxPods = podHosts * 254

func (a *podAddresses) next() *pod {
	host := a.given % podHosts
	p := &pod{host: host, addr: netip.AddrFrom4([4]byte{10, 244, byte(host), byte(1 + a.given/podHosts)})}
	a.given++
	return p
}

// podServers are the pods that run in a network. One goroutine calls start and stop.
type podServers struct {
	hosts     []*topo.Host
	listeners map[netip.Addr]net.Listener
	running   sync.WaitGroup
}

func newPodServers(n *topo.Net) (*podServers, error) {
	s := &podServers{hosts: n.Backends, listeners: map[netip.Addr]net.Listener{}}
	for i, h := range n.Backends {
		if err := n.Gateway.Route(podNet(i), h.Addr4()); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// start adds a pod's address and serves on it.
func (s *podServers) start(p *pod) error {
	h := s.hosts[p.host]
	if err := h.AddAddresses("lo", p.prefix()); err != nil {
		return err
	}
	l, err := h.Listen("tcp4", netip.AddrPortFrom(p.addr, podPort).String())
	if err != nil {
		return fmt.Errorf("pod %s: %w", p.addr, err)
	}
	s.listeners[p.addr] = l
	s.running.Go(func() { s.serve(l, p.addr) })
	return nil
}

// stop removes a pod's address, and then its server, so that no RST is sent in between.
func (s *podServers) stop(p *pod) error {
	err := s.hosts[p.host].RemoveAddresses("lo", p.prefix())
	p.died = time.Now()
	l := s.listeners[p.addr]
	delete(s.listeners, p.addr)
	if err = errors.Join(err, l.Close()); err != nil {
		return fmt.Errorf("pod %s: %w", p.addr, err)
	}
	return nil
}

func (p *pod) prefix() netip.Prefix { return netip.PrefixFrom(p.addr, p.addr.BitLen()) }

// serve sends the pod's address to every client.
func (s *podServers) serve(l net.Listener, addr netip.Addr) {
	greeting := []byte(addr.String() + "\n")
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // of one connection
		}
		s.running.Go(func() {
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(10 * time.Second)) // cannot fail on an open connection
			if _, err := c.Write(greeting); err == nil {
				_, _ = bufio.NewReader(c).ReadByte() // the client closes first, and keeps TIME-WAIT
			}
		})
	}
}

// close stops all servers and waits for their connections.
func (s *podServers) close() {
	for _, l := range s.listeners {
		l.Close()
	}
	s.running.Wait()
}
