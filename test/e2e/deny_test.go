//go:build root

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/topo"
)

const streamPort = 8181 // of backends that send without being asked

// TestDeny: a client is denied during TCP and UDP streams to it, in both families: nothing of the
// streams arrives any more, its backends' connections end, and it opens no others, by VIP, node
// port or ping. Another client, and connections of the denied one to the node itself, go on. The
// client is served again when the entry is over, and denied again by the configuration.
func TestDeny(t *testing.T) {
	t.Parallel()
	l := newLab(t, labConfig{Config: topo.Config{Clients: 2, Backends: 2, Queues: 2}})
	l.damaged = true // segments of ended connections reach a kernel that has no such connection
	denied, other := l.Clients[0], l.Clients[1]
	streams := l.serveStreams()
	toNode := l.connectToNode(denied)
	traffic, err := other.OpenTCP(l.ctx, topo.FlowLoad{Targets: []netip.AddrPort{at(vip4, webPort), at(vip6, webPort)},
		Flows: 20, Interval: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	received := l.receiveStreams(denied)
	l.eventually(5*time.Second, "all streams arrive", func() bool { return received.all() })

	l.command("deny", denied.Addr4().String(), "--for", "1h")
	l.command("deny", denied.Addr6().String())
	before := received.count()
	time.Sleep(time.Second) // a measured second, not a wait for something
	if n := received.count() - before; n > 0 {
		t.Errorf("%d reads of streams in the second after the client was denied", n)
	}
	l.eventually(l.bound(5*time.Second), "backends' connections to the client end", func() bool {
		return streams.tcp.Load() == 0
	})
	l.wantDenied(denied, true)
	toNode("while the client is denied")
	if list, err := l.gate.Client.Denials(l.ctx); err != nil || len(list) != 2 || list[0].Packets == 0 ||
		list[1].Packets == 0 {
		t.Errorf("denied: %+v, %v: want two entries that have dropped packets", list, err)
	}
	if v := l.ask(netip.AddrPortFrom(denied.Addr4(), 40000), at(vip4, webPort), false); v.Reason != "denied_dropped" ||
		v.Verdict != status.VerdictDrop {
		t.Errorf("explained as %+v", v)
	}

	l.command("deny", "remove", denied.Addr6().String())
	began := time.Now()
	l.command("deny", denied.Addr4().String(), "--for", "2s") // instead of an hour
	l.within("the client is served when its time is over", func() bool {
		return l.reachable(denied, at(vip4, webPort)) == nil
	})
	if took := time.Since(began); took < 2*time.Second {
		t.Errorf("the client was denied for %v", took)
	}
	l.wantDenied(denied, false)
	if broken := traffic.Broken(); broken > 0 {
		t.Errorf("%d connections of another client broke", broken)
	}
	if r := traffic.Stop(); r.Failed() > 0 {
		t.Errorf("another client: %v", r.Errors)
	}

	without := l.gate.Configuration()
	for _, list := range []string{fmt.Sprintf("deny: [%v, %v]\n", denied.Interfaces[0].Addr4.Masked(),
		denied.Interfaces[0].Addr6.Masked()), ""} {
		if err := l.gate.WriteConfiguration(without + list); err != nil {
			t.Fatal(err)
		}
		l.within("the effect of "+list, func() bool {
			is4, is6 := l.reachable(denied, at(vip4, webPort)) != nil, l.reachable(denied, at(vip6, webPort)) != nil
			return is4 == (list != "") && is6 == is4
		})
		l.wantDenied(denied, list != "")
		l.wantDenied(other, list != "")
	}
	toNode("at the end")
	l.checkLaws()
}

// TestDenialsOutliveRestarts: a client that the operator has denied is denied after a crash, a
// hand-over and a clean stop, until it is removed, which lasts as well.
func TestDenialsOutliveRestarts(t *testing.T) {
	t.Parallel()
	l := newLab(t, labConfig{Config: topo.Config{Backends: 2, Queues: 2}, options: handsOver})
	l.damaged = true // the last segments of connections reach a kernel that has no VIP
	client := l.Clients[0]
	l.command("deny", client.Interfaces[0].Addr4.Masked().String(), "--for", "1h")
	l.command("deny", client.Addr6().String())
	cleanStop := func() error {
		l.handOverNoMore()
		return l.gate.Stop()
	}
	restart := func(end func() error) {
		t.Helper()
		if err := end(); err != nil {
			t.Fatal(err)
		}
		if err := l.gate.Start(l.ctx); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range []struct {
		name string
		end  func() error
	}{{"a crash", l.gate.Kill}, {"a hand-over", l.gate.Stop}, {"a clean stop", cleanStop}} {
		restart(r.end)
		t.Log("after", r.name)
		l.wantDenied(client, true)
	}
	l.command("deny", "remove", client.Interfaces[0].Addr4.Masked().String())
	l.command("deny", "remove", client.Addr6().String())
	restart(l.gate.Kill)
	l.wantDenied(client, false)
}

// wantDenied checks that a client gets answers, or none: TCP, UDP and pings, by VIP and node port.
func (l *lab) wantDenied(h *topo.Host, want bool) {
	l.t.Helper()
	targets := []netip.AddrPort{at(vip4, webPort), at(vip6, webPort),
		netip.AddrPortFrom(l.Gateway.Addr4(), webNodePort), netip.AddrPortFrom(l.Gateway.Addr6(), webNodePort)}
	limit := time.Second
	if !want { // a SYN is sent again after a second
		limit = l.bound(5 * time.Second)
	}
	for _, target := range targets {
		if err := l.dial(h, target, limit); (err != nil) != want {
			l.t.Errorf("%s is denied: %v; TCP to %v: %v", h.Name, want, target, err)
		} else if want && !timedOut(err) {
			l.t.Errorf("%s is denied, and got an answer of %v: %v", h.Name, target, err)
		}
	}
	for _, vip := range []string{vip4, vip6} {
		if err := l.asksDatagram(h, at(vip, dnsPort)); (err != nil) != want || want && !timedOut(err) {
			l.t.Errorf("%s is denied: %v; UDP to %s: %v", h.Name, want, vip, err)
		}
		if err := pingVIP(h, vip, 4000); (err != nil) != want { // in fragments
			l.t.Errorf("%s is denied: %v; ping of %s: %v", h.Name, want, vip, err)
		}
	}
}

func timedOut(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout() || errors.Is(err, context.DeadlineExceeded)
}

// reachable opens a connection within a second, and returns why it cannot.
func (l *lab) reachable(h *topo.Host, target netip.AddrPort) error {
	return l.dial(h, target, time.Second)
}

func (l *lab) dial(h *topo.Host, target netip.AddrPort, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(l.ctx, limit)
	defer cancel()
	c, err := h.Dial(ctx, "tcp", target.String())
	if err != nil {
		return err
	}
	return c.Close()
}

// asksDatagram sends a datagram and waits for its answer.
func (l *lab) asksDatagram(h *topo.Host, target netip.AddrPort) error {
	c, err := h.Dial(l.ctx, "udp", target.String())
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	if _, err := c.Write([]byte("is anybody there")); err != nil {
		return err
	}
	_, err = c.Read(make([]byte, 1500))
	return err
}

// connectToNode opens connections of a client to a listener of the gateway's node, and returns a
// function that checks them, and that others can be opened.
func (l *lab) connectToNode(h *topo.Host) (check func(when string)) {
	l.t.Helper()
	type pair struct {
		to   string
		conn net.Conn
	}
	var pairs []pair
	for _, a := range []netip.Addr{l.Gateway.Addr4(), l.Gateway.Addr6()} {
		listener, err := l.Gateway.Listen("tcp", netip.AddrPortFrom(a, 2222).String())
		if err != nil {
			l.t.Fatal(err)
		}
		l.t.Cleanup(func() { listener.Close() })
		go func() {
			for {
				c, err := listener.Accept()
				if err != nil {
					return
				}
				go func() { _, _ = io.Copy(c, c); c.Close() }()
			}
		}()
		c, err := h.Dial(l.ctx, "tcp", listener.Addr().String())
		if err != nil {
			l.t.Fatal(err)
		}
		l.t.Cleanup(func() { c.Close() })
		pairs = append(pairs, pair{listener.Addr().String(), c})
	}
	echo := func(c net.Conn) error {
		if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
			return err
		}
		if _, err := c.Write([]byte("x")); err != nil {
			return err
		}
		_, err := c.Read(make([]byte, 1))
		return err
	}
	return func(when string) {
		l.t.Helper()
		for _, p := range pairs {
			if err := echo(p.conn); err != nil {
				l.t.Errorf("%s: the connection to the node itself: %v", when, err)
			}
			c, err := h.Dial(l.ctx, "tcp", p.to)
			if err == nil {
				err = echo(c)
				c.Close()
			}
			if err != nil {
				l.t.Errorf("%s: a new connection to the node itself: %v", when, err)
			}
		}
	}
}

// streamServers send to each client, over TCP and UDP, every 5 ms, without being asked again.
type streamServers struct{ tcp atomic.Int32 } // open connections

func (l *lab) serveStreams() *streamServers {
	l.t.Helper()
	s := new(streamServers)
	services := []launch.Service{{Name: "stream", Port: 81}, {Name: "datagrams", Port: 81, UDP: true}}
	for i := range services {
		services[i].VIPs = []string{vip4, vip6}
		for _, e := range endpoints(l.Backends...) {
			e.Port = streamPort
			services[i].Endpoints = append(services[i].Endpoints, e)
		}
	}
	for _, h := range l.Backends {
		for _, a := range []netip.Addr{h.Addr4(), h.Addr6()} {
			address := netip.AddrPortFrom(a, streamPort).String()
			listener, err := h.Listen("tcp", address)
			if err != nil {
				l.t.Fatal(err)
			}
			packets, err := h.ListenPacket("udp", address)
			if err != nil {
				l.t.Fatal(err)
			}
			l.t.Cleanup(func() { listener.Close(); packets.Close() })
			go s.streams(l.ctx, listener)
			go datagrams(l.ctx, packets)
		}
	}
	l.apply(services...)
	l.applied()
	return s
}

func (s *streamServers) streams(ctx context.Context, listener net.Listener) {
	for {
		c, err := listener.Accept()
		if err != nil {
			return
		}
		s.tcp.Add(1)
		go func() {
			defer s.tcp.Add(-1)
			defer c.Close()
			for err := error(nil); err == nil && ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
				_, err = c.Write(make([]byte, 1000))
			}
		}()
	}
}

func datagrams(ctx context.Context, c net.PacketConn) {
	for b := make([]byte, 100); ; {
		_, to, err := c.ReadFrom(b)
		if err != nil {
			return
		}
		go func() {
			for range 10_000 {
				if _, err := c.WriteTo(make([]byte, 1000), to); err != nil && errors.Is(err, net.ErrClosed) ||
					ctx.Err() != nil {
					return
				}
				time.Sleep(5 * time.Millisecond)
			}
		}()
	}
}

// streamReads counts the reads of each stream.
type streamReads []*atomic.Int64

func (s streamReads) count() (n int64) {
	for i := range s {
		n += s[i].Load()
	}
	return n
}

func (s streamReads) all() bool {
	for i := range s {
		if s[i].Load() < 10 {
			return false
		}
	}
	return true
}

func (l *lab) receiveStreams(h *topo.Host) (s streamReads) {
	l.t.Helper()
	for _, network := range []string{"tcp", "udp"} {
		for _, vip := range []string{vip4, vip6} {
			c, err := h.Dial(l.ctx, network, at(vip, 81).String())
			if err == nil && network == "udp" {
				_, err = c.Write([]byte("begin"))
			}
			if err != nil {
				l.t.Fatal(err)
			}
			l.t.Cleanup(func() { c.Close() })
			reads := new(atomic.Int64)
			s = append(s, reads)
			go func() {
				for b := make([]byte, 1500); ; reads.Add(1) {
					if _, err := c.Read(b); err != nil {
						return
					}
				}
			}()
		}
	}
	return s
}
