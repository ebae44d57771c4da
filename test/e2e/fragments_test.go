//go:build root

package e2e

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/test/bed/topo"
)

// wire sends ready-made frames from a host's interface.
type wire struct {
	fd  int
	src [6]byte // the host
	dst [6]byte // its gateway
}

func openWire(t *testing.T, from *topo.Host, to [6]byte) *wire {
	t.Helper()
	w := &wire{src: from.Interfaces[0].MAC, dst: to}
	err := from.Run(func() (err error) {
		ifi, err := net.InterfaceByName(from.Interfaces[0].Name)
		if err != nil {
			return err
		}
		if w.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return unix.Bind(w.fd, &unix.SockaddrLinklayer{Ifindex: ifi.Index})
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(w.fd) })
	return w
}

func (w *wire) send(frame []byte) error {
	copy(frame[0:6], w.dst[:])
	copy(frame[6:12], w.src[:])
	_, err := unix.Write(w.fd, frame)
	return err
}

// TestFragments: 4 KiB datagrams in three fragments, in all six orders, both
// families, to a real UDP server whose answer comes back in fragments too.
func TestFragments(t *testing.T) {
	t.Parallel()
	l := newLab(t, labConfig{Config: topo.Config{Backends: 4, Queues: 2}})
	client := l.Clients[0]
	w := openWire(t, client, l.Gateway.Interfaces[0].MAC)
	const each = 200
	for _, c := range []struct {
		name     string
		src, vip netip.Addr
	}{{"IPv4", client.Addr4(), netip.MustParseAddr(vip4)}, {"IPv6", client.Addr6(), netip.MustParseAddr(vip6)}} {
		t.Run(c.name, func(t *testing.T) {
			sent, answered := 0, 0
			for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
				conn, err := client.ListenPacket("udp", netip.AddrPortFrom(c.src, 0).String())
				if err != nil {
					t.Fatal(err)
				}
				from := conn.LocalAddr().(*net.UDPAddr).AddrPort()
				for i := range each {
					sent++
					payload := fmt.Sprintf("%06d", sent) + strings.Repeat("x", 4090)
					parts := headertest.Split(headertest.UDP(from.String(), netip.AddrPortFrom(c.vip, dnsPort).String(),
						payload).Bytes(), 1400, uint32(7000+sent))
					for _, at := range order {
						if err := w.send(parts[at]); err != nil {
							t.Fatal(err)
						}
					}
					if answer(conn, payload) {
						answered++
					} else {
						t.Logf("order %v, datagram %d: no answer", order, i)
					}
				}
				conn.Close()
			}
			t.Logf("%d of %d datagrams of 4 KiB answered whole, in six orders", answered, sent)
			if answered*1000 < sent*999 {
				t.Errorf("less than 99.9 %%")
			}
		})
	}
}

// TestSharedIdentifications: two clients send datagrams of one identification to one VIP at once.
// Behind SNAT they have one source, and the backend's kernel puts each together from its own parts.
func TestSharedIdentifications(t *testing.T) {
	t.Parallel()
	const datagrams, clients = 50, 2
	l := newLab(t, labConfig{Config: topo.Config{Backends: 1, Clients: clients, Queues: 2}})
	for _, vip := range []string{vip4, vip6} {
		t.Run(vip, func(t *testing.T) {
			var wires [clients]*wire
			var conns [clients]net.PacketConn
			for i, c := range l.Clients {
				from := c.Addr4()
				if vip == vip6 {
					from = c.Addr6()
				}
				wires[i] = openWire(t, c, l.Gateway.Interfaces[0].MAC)
				conn, err := c.ListenPacket("udp", netip.AddrPortFrom(from, 0).String())
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				conns[i] = conn
			}
			answered := 0
			for n := range datagrams {
				var payloads [clients]string
				var parts [clients][][]byte
				for i := range clients {
					payloads[i] = fmt.Sprintf("client %d, %04d", i, n) + strings.Repeat(string('a'+rune(i)), 3000)
					whole := headertest.UDP(conns[i].LocalAddr().String(), at(vip, dnsPort).String(), payloads[i])
					parts[i] = headertest.Split(whole.Bytes(), 1400, uint32(9000+n))
				}
				for part := range parts[0] {
					for i := range clients {
						if err := wires[i].send(parts[i][part]); err != nil {
							t.Fatal(err)
						}
					}
				}
				for i := range clients {
					if answer(conns[i], payloads[i]) {
						answered++
					}
				}
			}
			if answered != datagrams*clients {
				t.Errorf("%d of %d datagrams answered", answered, datagrams*clients)
			}
		})
	}
}

// answer waits for the echo of one datagram.
func answer(conn net.PacketConn, payload string) bool {
	var b [8192]byte
	_ = conn.SetReadDeadline(time.Now().Add(2 * time.Second))
	n, _, err := conn.ReadFrom(b[:])
	return err == nil && strings.HasSuffix(string(b[:n]), " "+payload)
}

// TestLargeDatagramsOfRealStacks: the kernel's own fragments, through a link that
// is narrower than the sender's.
func TestLargeDatagramsOfRealStacks(t *testing.T) {
	t.Parallel()
	l := newLab(t, labConfig{Config: topo.Config{Backends: 2, Queues: 2, BackendMTU: 1400}})
	for _, vip := range []string{vip4, vip6} {
		flows, err := l.Clients[0].OpenUDP(l.ctx, topo.FlowLoad{Targets: []netip.AddrPort{at(vip, dnsPort)}, Flows: 10,
			Interval: 20 * time.Millisecond, Payload: 4096})
		if err != nil {
			t.Fatal(err)
		}
		// The first datagrams are too big for the link; the errors tell the client the path's MTU.
		l.eventually(10*time.Second, "an answer over "+vip, func() bool { return len(flows.ByBackend()) > 0 })
		time.Sleep(500 * time.Millisecond) // the length of the load
		r := flows.Stop()
		t.Logf("%s: %d answers, errors %v", vip, r.Requests-r.Failed(), r.Errors)
		if r.Requests-r.Failed() == 0 {
			t.Errorf("%s: nothing came back: %v", vip, r.Errors)
		}
	}
}
