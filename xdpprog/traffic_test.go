//go:build root

package xdpprog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// gateway is a Steering with real interfaces: nic is connected to peer, and the host link's
// kernel-side end hl to its user-space end user.
type gateway struct {
	*rig
	nic, peer, hl, user int
}

func newGateway(t *testing.T) *gateway {
	t.Helper()
	isolate(t)
	g := &gateway{}
	g.nic, g.peer = veth(t, "nic", "peer")
	g.hl, g.user = veth(t, "hl", "user")
	g.rig = newRig(t, Settings{SNATFirst: snatFirst, SNATCount: snatCount, HostLinkIndex: g.hl}, fixture())
	g.beat(0)
	return g
}

func (g *gateway) counters() Counters {
	g.t.Helper()
	c, err := g.Counters()
	must(g.t, err)
	return c
}

// TestFramesReachSocket: matching packets are redirected to the socket of the queue, all others
// pass to the kernel; without a socket the heartbeat decides.
func TestFramesReachSocket(t *testing.T) {
	for _, mode := range []AttachMode{Native, Generic} {
		t.Run(mode.String(), func(t *testing.T) { framesReachSocket(t, mode) })
	}
}

func framesReachSocket(t *testing.T, mode AttachMode) {
	g := newGateway(t)
	port := attach(t, g.Steering, g.nic, "nic", mode)
	k := socketOn(t, "nic")
	must(t, port.SetSocket(0, k.FD()))
	wire, kernelSide := packetsOn(t, g.peer), packetsOn(t, g.nic)
	ours := (&pkt{src: client4, dst: vip4, proto: tcp, dport: 80}).frame()
	theirs := append((&pkt{src: client4, dst: plain4, proto: tcp, dport: 80}).frame(), 1, 2, 3)

	wire.send(ours)
	wire.send(theirs)
	if got := k.receive(1); got[0] != len(ours) {
		t.Errorf("the socket received %d bytes, want %d", got[0], len(ours))
	}
	kernelSide.receives(len(theirs))
	k.receivesNothing()
	if c := g.counters(); c.Steered != 1 || c.MissedDropped != 0 || c.MissedPassed != 0 {
		t.Errorf("counters %+v, want one steered", c)
	}
	if got := run(t, port.program, ours, &struct {
		data, end, meta, ingress, queue,
		egress uint32
	}{end: uint32(len(ours)), ingress: uint32(g.nic)}); got != 4 {
		t.Errorf("action %d, want redirect", got)
	}

	must(t, port.clearSocket(0))
	must(t, port.clearSocket(0)) // and again: no error
	wire.send(ours)
	wire.send(theirs)
	kernelSide.receives(len(theirs))
	if c := g.counters(); c.MissedDropped != 1 {
		t.Errorf("counters %+v, want one dropped for lack of a socket", c)
	}
	must(t, port.SetSocket(0, k.FD()))
	k.close() // the kernel removes the socket from the map
	g.beat(time.Hour)
	wire.send(ours)
	kernelSide.receives(len(ours))
	if c := g.counters(); c.MissedPassed != 1 {
		t.Errorf("counters %+v, want one passed for lack of a socket and a heartbeat", c)
	}
}

// egressGateway has the egress program on nic and a socket on the host link.
func egressGateway(t *testing.T) (*gateway, *socket) {
	t.Helper()
	g := newGateway(t)
	port, err := g.AttachHostLink(g.user, "user")
	must(t, err)
	letPass(t, g.nic)
	must(t, g.AttachEgress(g.nic, "nic"))
	k := socketOn(t, "user")
	must(t, port.SetSocket(0, k.FD()))
	t.Cleanup(k.close)
	return g, k
}

// letPass attaches another owner's TCX program that ends the chain (TCX_PASS): the egress program
// must come before existing ones.
func letPass(t *testing.T, ifindex int) {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS, License: "Apache-2.0",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	must(t, err)
	l, err := link.AttachTCX(link.TCXOptions{Interface: ifindex, Program: p, Attach: ebpf.AttachTCXEgress})
	must(t, err)
	t.Cleanup(func() { l.Close(); p.Close() })
}

// TestEgressReachesHostLink: replies that the kernel sends for kept backends arrive at the
// user-space end of the host link; other packets leave as before.
func TestEgressReachesHostLink(t *testing.T) {
	g, k := egressGateway(t)
	out, wire := packetsOn(t, g.nic), packetsOn(t, g.peer)
	other := append((&pkt{src: plain4, dst: client4, proto: tcp, sport: 8080}).frame(), 1, 2, 3)
	sent := uint64(0)
	for _, p := range []pkt{
		{src: kept4, dst: client4, proto: tcp, sport: 8080},
		{src: kept6, dst: client6, proto: tcp, sport: 8080},
		{src: kept4, dst: client4, proto: tcp, fragOffset: 1480},
	} {
		for _, tags := range [][]uint16{nil, {0x8100}} {
			frame := p.frame(tags...)
			out.send(frame)
			if got := k.receive(1); got[0] != len(frame) {
				t.Errorf("%s: the host link received %d bytes, want %d", p.src, got[0], len(frame))
			}
			sent++
		}
	}
	out.send(other)
	wire.receives(len(other))
	k.receivesNothing()
	if c := g.counters(); c.EgressRedirected != sent {
		t.Errorf("%d packets redirected, want %d", c.EgressRedirected, sent)
	}
}

// TestEgressHeadersNotLinear: for a frame longer than a page, a packet socket puts only the
// requested bytes in the skb's head, the only part that a TCX program can read directly.
func TestEgressHeadersNotLinear(t *testing.T) {
	g := newGateway(t)
	for _, name := range []string{"nic", "peer", "hl", "user"} {
		l, err := netlink.LinkByName(name)
		must(t, err)
		must(t, netlink.LinkSetMTU(l, 9000))
	}
	must(t, g.AttachEgress(g.nic, "nic"))
	out, far := packetsOn(t, g.nic), packetsOn(t, g.user)
	must(t, unix.SetsockoptInt(out.fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1))
	about := pkt{src: client6, dst: kept6, proto: tcp, sport: 999, dport: 8080}
	for _, p := range []pkt{
		{src: kept6, dst: client6, proto: tcp, sport: 8080},
		{src: kept4, dst: client4, proto: tcp, fragOffset: 1480, optionBytes: 40},
		{src: plain6, dst: client6, proto: icmp6, icmpType: 1, quote: &about},
	} {
		for linear := 14; linear <= p.needs(0)+1; linear++ {
			frame := append(p.frame(), make([]byte, 5000+linear)...)
			header := make([]byte, 10) // struct virtio_net_hdr
			binary.LittleEndian.PutUint16(header[2:], uint16(linear))
			out.send(append(header, frame...))
			far.receives(len(frame))
		}
	}
}

// TestEgressKernelFragments: a socket of the kernel sends from a kept address; all fragments take
// the same path.
func TestEgressKernelFragments(t *testing.T) {
	g, k := egressGateway(t)
	lo := up(t, "lo")
	address(t, lo, kept4+"/32")
	neighbour(t, g.nic, client4)
	must(t, g.KeepSource(key(kept4, udp, 53)))
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(fd)
	must(t, unix.Bind(fd, &unix.SockaddrInet4{Port: 53, Addr: netip.MustParseAddr(kept4).As4()}))
	to := &unix.SockaddrInet4{Port: 999, Addr: netip.MustParseAddr(client4).As4()}
	must(t, unix.Sendto(fd, make([]byte, 4000), 0, to))
	if got, want := fmt.Sprint(k.receive(3)), "[1514 1514 1082]"; got != want {
		t.Errorf("fragments of %s bytes, want %s", got, want)
	}
}

// TestEgressPassesOwnPackets: packets that Sluice itself sends by AF_XDP on the NIC, or has
// returned to the kernel by the host link, leave the node.
func TestEgressPassesOwnPackets(t *testing.T) {
	g, k := egressGateway(t)
	wire := packetsOn(t, g.peer)
	frame := (&pkt{src: kept4, dst: client4, proto: tcp, sport: 8080}).frame()

	attach(t, g.Steering, g.nic, "nic", Native)
	onNIC := socketOn(t, "nic")
	defer onNIC.close()
	onNIC.transmit(frame)
	wire.receives(len(frame))

	neighbour(t, g.nic, client4)
	sysctl(t, "ipv4/ip_forward", "1")
	sysctl(t, "ipv4/conf/all/rp_filter", "0")
	sysctl(t, "ipv4/conf/hl/rp_filter", "0")
	hl, err := netlink.LinkByIndex(g.hl)
	must(t, err)
	copy(frame, hl.Attrs().HardwareAddr)
	longer := append(frame, 0)
	binary.BigEndian.PutUint16(longer[16:], binary.BigEndian.Uint16(longer[16:])+1)
	copy(longer[24:26], []byte{0, 0})
	binary.BigEndian.PutUint16(longer[24:], ^sum(longer[14:34]))
	k.transmit(longer)
	wire.receives(len(longer))
	k.receivesNothing()
	if c := g.counters(); c.EgressRedirected != 0 {
		t.Errorf("%d packets redirected, want none", c.EgressRedirected)
	}
}

// clearSocket removes a queue's socket from the map.
func (p *Port) clearSocket(queue int) error {
	if err := p.xsks.Delete(uint32(queue)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("socket of %s queue %d: %w", p.name, queue, err)
	}
	return nil
}
