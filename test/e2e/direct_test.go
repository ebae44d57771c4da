//go:build root

package e2e

import (
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/machine"
	"sluice.dev/sluice/test/bed/topo"
)

// TestDirectConnectionBesideOneThroughTheVIP: policy Local, and pods that clients reach through the
// gateway's kernel. A client has a connection to a pod's own address, and opens one to the VIP from
// the same port: the pod takes its SYN for one of the first connection. Both work in the end, and
// the first one is not disturbed.
func TestDirectConnectionBesideOneThroughTheVIP(t *testing.T) {
	t.Parallel()
	const port, podPort, clientPort = 61, 9061, 28061
	l := newLab(t, labConfig{Config: topo.Config{Backends: 1, Queues: 2}, small: true, prepare: func(l *lab) {
		if err := l.Gateway.Forward(true); err != nil {
			t.Fatal(err)
		}
	}})
	pod, client := l.Backends[0], l.Clients[0]
	l.apply(launch.Service{Name: "kept", Port: port, Local: true, VIPs: []string{keepVIP4, keepVIP6},
		Endpoints: []launch.Endpoint{{Addr: pod.Addr4(), Port: podPort, Node: gatewayNode},
			{Addr: pod.Addr6(), Port: podPort, Node: gatewayNode}}})
	l.applied()
	for _, tt := range []struct {
		name     string
		from, to netip.Addr
		vip      string
	}{{"IPv4", client.Addr4(), pod.Addr4(), keepVIP4}, {"IPv6", client.Addr6(), pod.Addr6(), keepVIP6}} {
		t.Run(tt.name, func(t *testing.T) {
			echo, err := pod.Listen("tcp", netip.AddrPortFrom(tt.to, podPort).String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { echo.Close() })
			go func() {
				for c, err := echo.Accept(); err == nil; c, err = echo.Accept() {
					go func() {
						_, _ = io.Copy(c, c)
						c.Close()
					}()
				}
			}()
			from := netip.AddrPortFrom(tt.from, clientPort)
			direct := dialAgainFrom(t, client, from, netip.AddrPortFrom(tt.to, podPort))
			stillEchoes(t, "the direct connection, alone", direct)
			through := dialAgainFrom(t, client, from, at(tt.vip, port))
			for range 5 {
				stillEchoes(t, "the connection through the VIP", through)
				stillEchoes(t, "the direct connection", direct)
			}
		})
	}
}

// dialAgainFrom connects from a port that another connection of the host may have.
func dialAgainFrom(t *testing.T, h *topo.Host, from, to netip.AddrPort) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(from), Timeout: machine.Slower(15 * time.Second), KeepAlive: -1,
		Control: func(_, _ string, c syscall.RawConn) (err error) {
			control := c.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
			})
			if control != nil {
				return control
			}
			return err
		}}
	var c net.Conn
	err := h.Run(func() (err error) {
		c, err = d.Dial("tcp", to.String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func stillEchoes(t *testing.T, which string, c net.Conn) {
	t.Helper()
	_ = c.SetDeadline(time.Now().Add(machine.Slower(10 * time.Second)))
	b := []byte("question")
	if _, err := c.Write(b); err != nil {
		t.Fatalf("%s: %v", which, err)
	}
	if _, err := io.ReadFull(c, b); err != nil || string(b) != "question" {
		t.Fatalf("%s: %q, %v", which, b, err)
	}
}
