//go:build root

package observer

import (
	"context"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"sluice.dev/sluice/test/bed/topo"
)

// seen collects packets from a tap's goroutine.
type seen struct {
	mu   sync.Mutex
	list []Packet
}

func (s *seen) add(p Packet) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, p)
}

func (s *seen) packets() []Packet {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Packet(nil), s.list...)
}

func (s *seen) await(t *testing.T, n int) []Packet {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if got := s.packets(); len(got) >= n {
			return got
		}
	}
	t.Fatalf("saw %v, want %d packets", s.packets(), n)
	return nil
}

// The taps see what begins a connection, and datagrams to their port, and nothing else.
func TestTaps(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root: network namespaces and packet sockets")
	}
	n, err := topo.New(topo.Config{OneArmed: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	client, server := n.Clients[0], n.Backends[0]
	if _, err := server.Serve(8080); err != nil {
		t.Fatal(err)
	}
	var syns, datagrams seen
	tcp, err := SYNs(server, "eth0", syns.add)
	if err != nil {
		t.Fatal(err)
	}
	udp, err := Datagrams(server, "eth0", 8080, datagrams.add)
	if err != nil {
		t.Fatal(err)
	}
	to := netip.AddrPortFrom(server.Addr4(), 8080)
	begin := time.Now()
	conn, err := client.Dial(context.Background(), "tcp4", to.String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	asked, err := client.Dial(context.Background(), "udp4", to.String())
	if err != nil {
		t.Fatal(err)
	}
	defer asked.Close()
	other, err := client.Dial(context.Background(), "udp4", netip.AddrPortFrom(server.Addr4(), 8081).String())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	for _, c := range []net.Conn{other, asked} {
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		got  []Packet
		from net.Conn
	}{"SYN": {syns.await(t, 1), conn}, "datagram": {datagrams.await(t, 1), asked}} {
		p := c.got[0]
		if p.Src.String() != c.from.LocalAddr().String() || p.Dst != to {
			t.Errorf("%s: %v, want from %v to %v", name, p, c.from.LocalAddr(), to)
		}
		if late := p.At.Sub(begin); late < 0 || late > time.Since(begin) {
			t.Errorf("%s: received %v after the dial", name, late)
		}
	}
	if syns.packets()[0].Sequence == 0 {
		t.Error("a SYN without its sequence number")
	}
	for name, tap := range map[string]*Tap{"tcp": tcp, "udp": udp} {
		if missed, err := tap.Close(); missed != 0 || err != nil {
			t.Errorf("%s: %d missed, %v", name, missed, err)
		}
	}
	if len(syns.packets()) != 1 || len(datagrams.packets()) != 1 {
		t.Errorf("SYNs %v, datagrams %v: one each was sent", syns.packets(), datagrams.packets())
	}
}
