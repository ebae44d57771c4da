package bfd

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"syscall"

	"golang.org/x/net/bpf"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// The UDP port, source ports and the TTL of control packets (RFC 5881, sections 4 and 5).
const (
	controlPort     = 3784
	firstSourcePort = 49152
	lastSourcePort  = 65535
	ttl             = 255
)

// maxPacket is room for a control packet: its Length is one byte.
const maxPacket = 256

// receiver is the socket that packets of one family arrive on.
type receiver interface {
	// read returns a packet, its TTL or hop limit, and where it came from.
	read(b []byte) (n, ttl int, from netip.Addr, err error)
	Close() error
}

type receiver4 struct{ *ipv4.PacketConn }
type receiver6 struct{ *ipv6.PacketConn }

func (r receiver4) read(b []byte) (n, ttl int, from netip.Addr, err error) {
	n, control, address, err := r.ReadFrom(b)
	if control != nil {
		ttl = control.TTL
	}
	return n, ttl, source(address), err
}

func (r receiver6) read(b []byte) (n, ttl int, from netip.Addr, err error) {
	n, control, address, err := r.ReadFrom(b)
	if control != nil {
		ttl = control.HopLimit
	}
	return n, ttl, source(address), err
}

// source returns the address of a packet's sender, with a zone if it is a link-local one.
func source(a net.Addr) netip.Addr {
	u, ok := a.(*net.UDPAddr)
	if !ok {
		return netip.Addr{}
	}
	return u.AddrPort().Addr().Unmap()
}

// listen opens the socket of a family.
func listen(is4 bool, port uint16) (r receiver, err error) {
	network, offset := "udp6", uint32(7) // of Hop Limit (RFC 8200, section 3)
	if is4 {
		network, offset = "udp4", 8 // of Time to Live (RFC 791, section 3.1)
	}
	conn, err := net.ListenPacket(network, ":"+strconv.Itoa(int(port)))
	if err != nil {
		return nil, err
	}
	// Other packets do not wake this process. Offsets from skfNetOff are into the network header.
	filter, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: skfNetOff + offset, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: ttl, SkipTrue: 1},
		bpf.RetConstant{Val: 0}, bpf.RetConstant{Val: 0xffff},
	})
	if err == nil && is4 {
		c := ipv4.NewPacketConn(conn)
		r, err = receiver4{c}, errors.Join(c.SetBPF(filter), c.SetControlMessage(ipv4.FlagTTL, true))
	} else if err == nil {
		c := ipv6.NewPacketConn(conn)
		r, err = receiver6{c}, errors.Join(c.SetBPF(filter), c.SetControlMessage(ipv6.FlagHopLimit, true))
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("UDP port %d: %w", port, err)
	}
	return r, nil
}

// skfNetOff is SKF_NET_OFF of linux/filter.h, -0x100000.
const skfNetOff = 0xfff00000

// sender is the socket that a session's packets leave by: a *net.UDPConn, or a fake in tests.
type sender interface {
	syscall.Conn
	Close() error
}

// errQueueFull means that the link takes no packets, for example because the switch pauses it.
var errQueueFull = errors.New("the socket's earlier packets wait for the link")

// send sends a packet. It returns EAGAIN where Write would wait.
func send(to sender, b []byte) error {
	c, err := to.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	err = c.Write(func(fd uintptr) bool {
		sent = unix.Send(int(fd), b, unix.MSG_DONTWAIT)
		return true
	})
	return errors.Join(err, sent)
}

// dial opens the socket that a session's packets leave by: from a source port that no other has,
// and with TTL 255.
func dial(p *Peer, port uint16) (sender, error) {
	d := net.Dialer{Control: func(network, _ string, c syscall.RawConn) error {
		level, option := unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS
		if network == "udp4" {
			level, option = unix.IPPROTO_IP, unix.IP_TTL
		}
		var set error
		err := c.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), level, option, ttl) })
		return errors.Join(err, set)
	}}
	to := netip.AddrPortFrom(p.Address, port)
	var err error
	for range 16 {
		local := net.UDPAddr{Port: firstSourcePort + rand.IntN(lastSourcePort-firstSourcePort+1)}
		if p.Source.IsValid() {
			local.IP = p.Source.AsSlice()
		}
		d.LocalAddr = &local
		var conn net.Conn
		if conn, err = d.Dial("udp", to.String()); err == nil {
			return conn.(*net.UDPConn), nil
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			break
		}
	}
	return nil, cause(err)
}

// cause is an error without the addresses and ports that Go puts before it.
func cause(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}
