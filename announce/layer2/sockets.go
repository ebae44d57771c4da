package layer2

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/announce/layer2/frame"
	"sluice.dev/sluice/announce/layer2/hello"
)

// Offsets in an Ethernet frame with IPv6, for socket filters.
const (
	atNextHeader = 14 + 6
	atHopLimit   = 14 + 7
	atICMPType   = 14 + 40
)

// sockets are the sockets of a link that is up.
type sockets struct {
	index             int
	mac               frame.MAC
	arp, ndp, hellos  *packet.Conn
	groups            *groups
	acceptsGroupsFail error // neighbour solicitations may not arrive
}

// openSockets opens the sockets of an interface. Each has a filter, so that other packets, such
// as clients' packets, do not wake this process.
func openSockets(name string) (_ *sockets, err error) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return nil, err
	}
	s := &sockets{index: i.Index, groups: &groups{index: i.Index}}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if len(i.HardwareAddr) != len(s.mac) {
		return nil, fmt.Errorf("its hardware address is %v, which is not an Ethernet address", i.HardwareAddr)
	}
	s.mac = frame.MAC(i.HardwareAddr)
	for _, one := range []struct {
		to     **packet.Conn
		kind   int
		filter []bpf.Instruction
	}{
		{&s.arp, frame.ARP, forUs(bpf.RetConstant{Val: maxFrame})},
		{&s.ndp, frame.IPv6, forUs(
			bpf.LoadAbsolute{Off: atNextHeader, Size: 1}, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 58, SkipTrue: 6},
			bpf.LoadAbsolute{Off: atHopLimit, Size: 1}, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 255, SkipTrue: 4},
			bpf.LoadAbsolute{Off: atICMPType, Size: 1}, bpf.JumpIf{Cond: bpf.JumpLessThan, Val: 135, SkipTrue: 2},
			bpf.JumpIf{Cond: bpf.JumpGreaterThan, Val: 136, SkipTrue: 1},
			bpf.RetConstant{Val: maxFrame}, bpf.RetConstant{Val: 0})},
		{&s.hellos, hello.EtherType, forUs(bpf.RetConstant{Val: maxFrame})},
	} {
		filter, err := bpf.Assemble(one.filter)
		if err != nil {
			return nil, err
		}
		if *one.to, err = packet.Listen(i, packet.Raw, one.kind, &packet.Config{Filter: filter}); err != nil {
			if errors.Is(err, unix.EPERM) {
				return nil, fmt.Errorf("packet sockets need the capability CAP_NET_RAW: %w", err)
			}
			return nil, err
		}
	}
	group := hello.Group
	return s, s.hellos.JoinGroup(group[:])
}

// maxFrame is the size of the read buffer, in bytes.
const maxFrame = 2048

// forUs drops frames for other hosts, which a device in promiscuous mode delivers.
func forUs(rest ...bpf.Instruction) []bpf.Instruction {
	return append([]bpf.Instruction{bpf.LoadExtension{Num: bpf.ExtType},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.PACKET_OTHERHOST, SkipTrue: 1}, bpf.RetConstant{Val: 0}}, rest...)
}

func (s *sockets) each() []*packet.Conn { return []*packet.Conn{s.arp, s.ndp, s.hellos} }

func (s *sockets) close() {
	for _, c := range s.each() {
		if c != nil {
			c.Close()
		}
	}
	s.groups.close()
}

// sendTimeout bounds how long a frame waits for space in a socket's buffer.
const sendTimeout = 20 * time.Millisecond

// outFrame is a frame, with its Ethernet header, and the socket to send it by.
type outFrame struct {
	by *packet.Conn
	b  []byte
}

// send sends the frame. The error is os.ErrDeadlineExceeded if it got no space.
func (f outFrame) send() error {
	if err := f.by.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
		return err
	}
	_, err := f.by.WriteTo(f.b, &packet.Addr{HardwareAddr: f.b[:6]})
	return err
}

// groups are the solicited-node groups of VIPs. The process joins them like a host, so that
// switches with MLD snooping (RFC 4541) forward solicitations to this port, and the NIC accepts
// them.
type groups struct {
	index  int
	joined map[netip.Addr]int // the socket that joined the group
	fds    []int
}

// set joins and leaves groups according to the VIPs.
func (g *groups) set(wishes []LinkVIP) error {
	wanted := map[netip.Addr]bool{}
	for _, w := range wishes {
		if w.VIP.Is6() {
			wanted[frame.SolicitedNode(w.VIP)] = true
		}
	}
	for group, fd := range g.joined {
		if !wanted[group] {
			_ = unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, unix.IPV6_LEAVE_GROUP, g.request(group))
			delete(g.joined, group)
		}
	}
	for group := range wanted {
		if _, there := g.joined[group]; there {
			continue
		}
		if err := g.join(group); err != nil {
			return fmt.Errorf("join %v: %w", group, err)
		}
	}
	return nil
}

func (g *groups) request(group netip.Addr) *unix.IPv6Mreq {
	return &unix.IPv6Mreq{Multiaddr: group.As16(), Interface: uint32(g.index)}
}

// join joins a group with the last socket, or with a new one if that is full (net.core.optmem_max).
func (g *groups) join(group netip.Addr) error {
	if g.joined == nil {
		g.joined = map[netip.Addr]int{}
	}
	for fresh := len(g.fds) == 0; ; fresh = true {
		if fresh {
			fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			g.fds = append(g.fds, fd)
		}
		fd := g.fds[len(g.fds)-1]
		err := unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP, g.request(group))
		if err == nil {
			g.joined[group] = fd
			return nil
		}
		if fresh || !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.ENOMEM) {
			return err
		}
	}
}

func (g *groups) close() {
	for _, fd := range g.fds {
		unix.Close(fd)
	}
	g.fds, g.joined = nil, nil
}

// carrier is a socket for queries whether interfaces are up. The ioctls do not wait for kernel
// locks that network changes hold for long (dev_ifsioc_locked of net/core/dev_ioctl.c).
type carrier int

func newCarrier() (carrier, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	return carrier(fd), err
}

// up returns the index of an interface, and why it is not usable: missing, down or without carrier.
func (c carrier) up(name string) (index int, why string) {
	r, err := unix.NewIfreq(name)
	if err == nil {
		err = unix.IoctlIfreq(int(c), unix.SIOCGIFINDEX, r)
		index = int(r.Uint32())
	}
	if err == nil {
		r, _ = unix.NewIfreq(name) // the name is as it was
		err = unix.IoctlIfreq(int(c), unix.SIOCGIFFLAGS, r)
	}
	switch {
	case err != nil:
		return 0, fmt.Sprintf("%s: %v", name, err)
	case r.Uint16()&unix.IFF_UP == 0:
		return index, name + " is down"
	case r.Uint16()&unix.IFF_RUNNING == 0:
		return index, name + " has no carrier"
	}
	return index, ""
}

func (c carrier) close() { unix.Close(int(c)) }
