//go:build root

package nodetunnel

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/gateway/doctor"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/vxlan"
	"sluice.dev/sluice/test/bed/topo"
)

// wire is a node, and a host on its link that sends frames with any source.
type wire struct {
	t          *testing.T
	node, host *topo.Space
	fd         int
	mac        net.HardwareAddr // of the node
}

func newWire(t *testing.T) *wire {
	t.Helper()
	w := &wire{t: t}
	for _, s := range []**topo.Space{&w.node, &w.host} {
		space, err := topo.NewSpace()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { space.Close() })
		*s = space
	}
	if err := topo.Connect(w.node, "eth0", w.host, "eth0", 1, 1500); err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(w.node.Run(func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		w.mac = link.Attrs().HardwareAddr
		return errors.Join(os.WriteFile("/proc/sys/net/ipv6/conf/eth0/disable_ipv6", []byte("0"), 0),
			os.WriteFile("/proc/sys/net/ipv6/conf/eth0/accept_dad", []byte("0"), 0),
			addAddr(link, "10.0.1.21/24"), addAddr(link, "2001:db8:1::21/64"))
	}))
	must(w.host.Run(func() (err error) {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		if w.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return unix.Bind(w.fd, &unix.SockaddrLinklayer{Ifindex: link.Attrs().Index})
	}))
	t.Cleanup(func() { unix.Close(w.fd) })
	return w
}

func addAddr(link netlink.Link, text string) error {
	a, err := netlink.ParseAddr(text)
	if err != nil {
		return err
	}
	return netlink.AddrReplace(link, a)
}

func (w *wire) send(frame []byte) {
	w.t.Helper()
	copy(frame, w.mac)
	if _, err := unix.Write(w.fd, frame); err != nil {
		w.t.Fatal(err)
	}
}

// arrived waits until a device has received a number of packets, and returns the number.
func (w *wire) arrived(d *device, want uint64) (n uint64) {
	w.t.Helper()
	err := w.node.Run(func() error {
		for end := time.Now().Add(2 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			link, err := d.find()
			if err != nil || link == nil {
				return errors.Join(errors.New("no device"), err)
			}
			if n = link.Attrs().Statistics.RxPackets; n >= want || time.Now().After(end) {
				return nil
			}
		}
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}

// tunneled returns a packet of the tunnel, as a gateway sends it.
func tunneled(t vxlan.Tunnel, src, dst string) []byte {
	return tunnelOf(t, headertest.TCP("198.51.100.7:40000", "203.0.113.10:80", headertest.SYN).Bytes(), src, dst)
}

// tunnelOf is tunneled with a frame.
func tunnelOf(t vxlan.Tunnel, inner []byte, src, dst string) []byte {
	copy(inner, vxlan.NodeMAC[:])
	vx := []byte{8, 0, 0, 0, byte(t.VNI >> 16), byte(t.VNI >> 8), byte(t.VNI), 0}
	return headertest.UDP(src, dst, string(append(vx, inner...))).Bytes()
}

// TestOnlyGateways: the device gets packets of gateways and of nobody else, also in fragments, the
// first of which ends before the VNI. The namespace has no conntrack rules, so nothing else
// reassembles them before the firewall.
func TestOnlyGateways(t *testing.T) {
	w := newWire(t)
	c := &Config{Tunnel: vxlan.Tunnel{VNI: 20942, Port: vxlan.Port},
		Gateways: []netip.Prefix{netip.MustParsePrefix("10.0.1.2/32"), netip.MustParsePrefix("2001:db8:1::2/128")}}
	if err := w.node.Run(func() error { _, err := Apply(c); return err }); err != nil {
		t.Fatal(err)
	}
	for i, f := range []struct{ node, gateway, other string }{
		{"10.0.1.21:4789", "10.0.1.2:50000", "10.0.1.3:50000"},
		{"[2001:db8:1::21]:4789", "[2001:db8:1::2]:50000", "[2001:db8:1::3]:50000"},
	} {
		want := uint64(0)
		for n := 0; n < 5 && want == 0; n++ { // a new IPv6 address gets packets a moment later
			w.send(tunneled(c.Tunnel, f.gateway, f.node))
			want = w.arrived(&devices[i], 1)
		}
		for _, bytes := range []int{2000, 8, 16, 24, 64} { // of a fragment
			for n, src := range []string{f.other, f.gateway} {
				frames := [][]byte{tunneled(c.Tunnel, src, f.node)}
				if bytes < 2000 {
					frames = headertest.Split(frames[0], bytes, uint32(1000+10*bytes+n))
				}
				for _, frame := range frames {
					w.send(frame)
				}
				if src == f.gateway {
					want++
				}
			}
			if got := w.arrived(&devices[i], want); got != want {
				t.Errorf("fragments of %d bytes: %s has received %d packets, want %d of gateways", bytes,
					devices[i].name, got, want)
				want = got
			}
		}
	}
}

// TestNothingIsSentBack: a gateway sends a node packets of a Service that kube-proxy has no rule
// for, and an ICMP error about a connection that the node does not know. The node does not forward
// them to the VIP, whose route leads back to the gateways, and Check says so.
func TestNothingIsSentBack(t *testing.T) {
	w := newWire(t)
	c := &Config{Tunnel: vxlan.Tunnel{VNI: 20942, Port: vxlan.Port},
		Gateways: []netip.Prefix{netip.MustParsePrefix("10.0.1.2/32")}}
	err := w.node.Run(func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		router := net.IPv4(10, 0, 1, 1)
		return errors.Join(os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0),
			netlink.NeighSet(&netlink.Neigh{LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT, IP: router,
				HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1}}),
			netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: router}),
			func() error { _, err := Apply(c); return err }(),
			exec.Command("nft", "add table ip proxy; "+
				"add chain ip proxy pre { type nat hook prerouting priority dstnat; };"+
				"add rule ip proxy pre ip daddr 203.0.113.10 udp dport 53 dnat to 10.244.1.5; "+
				"add chain ip proxy raw { type filter hook prerouting priority raw; }; "+
				"add rule ip proxy raw udp dport 55 notrack").Run())
	})
	if err != nil {
		t.Fatal(err)
	}
	const ipv4 = 0x0008 // in network byte order
	sniffer := -1
	if err := w.host.Run(func() (err error) {
		link, err := netlink.LinkByName("eth0")
		if err == nil {
			sniffer, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, ipv4)
		}
		if err == nil {
			err = unix.Bind(sniffer, &unix.SockaddrLinklayer{Ifindex: link.Attrs().Index, Protocol: ipv4})
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(sniffer) })
	reply := headertest.TCP("203.0.113.10:80", "198.51.100.7:40000", headertest.ACK)
	reply.Payload = make([]byte, 1400)
	tooBig := headertest.ICMPError("198.51.100.1", "203.0.113.10", 3, 4, 1280, reply.Bytes(), 28).Bytes()
	known := headertest.UDP("198.51.100.7:1", "203.0.113.10:53", "x").Bytes()
	unknown := headertest.UDP("198.51.100.7:1", "203.0.113.10:54", "x").Bytes()
	untracked := headertest.UDP("198.51.100.7:1", "203.0.113.10:55", "x").Bytes()
	leaves := func(frame []byte, to net.IP) (n int) {
		t.Helper()
		before := w.arrived(&devices[0], 0)
		w.send(tunnelOf(c.Tunnel, frame, "10.0.1.2:50000", "10.0.1.21:4789"))
		w.arrived(&devices[0], before+1)
		buf := make([]byte, 2048)
		for end := time.Now().Add(200 * time.Millisecond); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			got, _, err := unix.Recvfrom(sniffer, buf, unix.MSG_DONTWAIT)
			if err == nil && got >= 34 && net.IP(buf[30:34]).Equal(to) {
				n++
			}
		}
		return n
	}
	pod, vip := net.IPv4(10, 244, 1, 5), net.IPv4(203, 0, 113, 10)
	if n := leaves(known, pod); n != 1 {
		t.Fatalf("a translated packet leaves %d times: the node does not forward", n)
	}
	for name, frame := range map[string][]byte{"a packet without a rule": unknown,
		"an error about an unknown connection": tooBig, "a packet without a connection": untracked} {
		if n := leaves(frame, vip); n != 0 {
			t.Errorf("%s is sent back %d times", name, n)
		}
	}
	if err := w.node.Run(func() error {
		at := slices.IndexFunc(firewall(c), func(f doctor.Finding) bool {
			return f.Check == "translation" && strings.HasPrefix(f.Found, "dropped 1 packets")
		})
		if at < 0 {
			return fmt.Errorf("findings %+v", firewall(c))
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}
