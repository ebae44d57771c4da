//go:build root

package e2e

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/topo"
)

// TestJumbo: an MTU of 9,000, by frames of either size: transfers, datagrams of every interesting
// length, kill -9.
func TestJumbo(t *testing.T) {
	t.Parallel()
	for _, frame := range []int{2048, 4096} {
		t.Run(fmt.Sprint("frames of ", frame), func(t *testing.T) {
			l := newLab(t, labConfig{Config: topo.Config{Backends: 2, MTU: 9000, Queues: 2},
				options: fmt.Sprintf("tuning: {frameSize: %d}\n", frame)})
			l.transfers(8 << 20)
			for _, vip := range []string{vip4, vip6} {
				l.datagrams(at(vip, dnsPort), frame-256, 8972)
			}
			before := l.checkLaws()
			flows, err := l.Clients[0].OpenTCP(l.ctx, topo.FlowLoad{Targets: []netip.AddrPort{at(vip4, webPort),
				at(vip6, webPort)}, Flows: 100, Interval: 50 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if err := l.gate.Kill(); err != nil {
					t.Fatal(err)
				}
				if err := l.gate.Start(l.ctx); err != nil {
					t.Fatal(err)
				}
				l.transfers(8 << 20)
				l.answered(flows, 2)
			}
			broken := flows.Broken()
			if r := flows.Stop(); broken > 0 || r.Failed() > 0 {
				t.Errorf("%d flows broken: %v", broken, r.Errors)
			}
			l.onlyDrops(&before, "host_link_other")
			s := l.checkLaws()
			l.onlyDrops(&s, "host_link_other")
			packets := sum(&before, func(w *status.WorkerView) uint64 { return w.Rx })
			bytes := sum(&before, func(w *status.WorkerView) uint64 { return w.RxBytes })
			t.Logf("%d packets of %d bytes on average before the first kill", packets, bytes/packets)
			if bytes/packets < 3000 {
				t.Errorf("packets have %d bytes on average: they are not what this test is about", bytes/packets)
			}
		})
	}
}

// transfers moves so many bytes each way over both families, and compares their sums.
func (l *lab) transfers(bytes int64) {
	l.t.Helper()
	for _, target := range []netip.AddrPort{at(vip4, webPort), at(vip6, webPort)} {
		down, err := l.Clients[0].Download(l.ctx, target, bytes)
		if err != nil {
			l.t.Errorf("download %v: %v", target, err)
			continue
		}
		up, err := l.Clients[0].Upload(l.ctx, target, bytes)
		if err != nil {
			l.t.Errorf("upload %v: %v", target, err)
			continue
		}
		l.t.Logf("%v: %d MiB down in %v, up in %v, SHA-256 equal", target, bytes>>20,
			down.Elapsed.Round(time.Millisecond), up.Elapsed.Round(time.Millisecond))
	}
}

// datagrams sends datagrams whose frames end around every buffer of so many bytes, and the longest
// that the MTU lets pass, and wants each back.
func (l *lab) datagrams(target netip.AddrPort, room, longest int) {
	l.t.Helper()
	headers := 14 + 20 + 8
	if !target.Addr().Is4() {
		headers, longest = 14+40+8, longest-20
	}
	sizes := []int{longest - 1, longest}
	for n := 1; n*room-headers < longest-3; n++ {
		for d := -3; d <= 3; d++ {
			sizes = append(sizes, n*room-headers+d)
		}
	}
	conn, err := l.Clients[0].Dial(l.ctx, "udp", target.String())
	if err != nil {
		l.t.Fatal(err)
	}
	defer conn.Close()
	for i, size := range sizes {
		out := words(i, size)
		if back, err := ask(conn, out); err != nil || !bytes.HasSuffix(back, out) {
			l.t.Errorf("%v: a datagram of %d bytes: %d came back, %v", target, size, len(back), err)
		}
	}
	l.t.Logf("%v: %d datagrams of up to %d bytes answered", target, len(sizes), longest)
}

// words is a datagram of so many bytes that are different everywhere, and from one datagram to the
// next.
func words(from, size int) (b []byte) {
	for n := 1000 * from; len(b) < size; n++ {
		b = fmt.Appendf(b, "%d ", n)
	}
	return b[:size]
}

// ask sends a datagram until it is answered, three times at most: the first one may be lost on the
// way to a neighbour.
func ask(conn net.Conn, out []byte) (back []byte, err error) {
	in := make([]byte, 1<<16)
	for range 3 {
		_ = conn.SetDeadline(time.Now().Add(2 * time.Second))
		if _, err = conn.Write(out); err != nil {
			return nil, err
		}
		var n int
		if n, err = conn.Read(in); err == nil {
			return in[:n], nil
		}
	}
	return nil, err
}

func (l *lab) onlyDrops(s *status.StatsView, allowed string) {
	l.t.Helper()
	for _, w := range s.Workers {
		for reason, n := range w.Drops {
			if n > 0 && reason != allowed {
				l.t.Errorf("worker %d: %d dropped as %s", w.Worker, n, reason)
			}
		}
	}
}

// TestJumboPathMTU: one side has an MTU of 9,000, the other one of 1,500, and neither end knows.
func TestJumboPathMTU(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name             string
		clients, backend int
	}{{"jumbo clients", 9000, 1500}, {"jumbo backends", 1500, 9000}} {
		t.Run(c.name, func(t *testing.T) {
			l := newLab(t, labConfig{
				Config:  topo.Config{MTU: c.clients, BackendMTU: c.backend, Queues: 2},
				options: "snat: {addresses: [10.71.0.1, 'fd71::1']}\n", // as in TestPathMTU
			})
			for _, h := range []*topo.Host{l.Clients[0], l.Backends[0]} {
				if err := h.AdvertiseMTU(9000); err != nil {
					t.Fatal(err)
				}
			}
			began := time.Now()
			l.transfers(4 << 20)
			t.Logf("4 MiB each way, both families, in %v", time.Since(began).Round(time.Millisecond))
			if c.clients == 9000 {
				l.fragmented()
			}
			s := l.checkLaws()
			tooBig := sum(&s, func(w *status.WorkerView) uint64 { return w.Drops["packet_too_big"] })
			if t.Logf("%d packets were too big, and their senders told", tooBig); tooBig == 0 || tooBig > 1000 {
				t.Errorf("%d packets were too big", tooBig)
			}
		})
	}
}

// fragmented sends long datagrams that may be fragmented on the way.
func (l *lab) fragmented() {
	l.t.Helper()
	conn, err := l.Clients[0].Dial(l.ctx, "udp", at(vip4, dnsPort).String())
	if err != nil {
		l.t.Fatal(err)
	}
	defer conn.Close()
	raw, err := conn.(*net.UDPConn).SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DONT)
		})
	}
	if err != nil {
		l.t.Fatal(err)
	}
	for _, size := range []int{1473, 3000, 8000, 8972} {
		out := words(0, size)
		if back, err := ask(conn, out); err != nil || !bytes.HasSuffix(back, out) {
			l.t.Errorf("a datagram of %d bytes in fragments: %d came back, %v", size, len(back), err)
		}
	}
}
