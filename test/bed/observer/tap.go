package observer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/bed/topo"
)

// Packet is one IPv4 packet that arrived.
type Packet struct {
	// At is when the kernel received it (SO_TIMESTAMPNS), comparable with time.Now, but
	// without a monotonic part.
	At       time.Time
	Src, Dst netip.AddrPort
	// Sequence of a TCP segment: with the two ends it tells a new connection from a SYN
	// that is sent again.
	Sequence uint32
}

// Tap hands out packets that arrive at an interface, in order.
type Tap struct {
	file    *os.File
	raw     syscall.RawConn
	closing atomic.Bool // set by Close before it closes the file; read wakes by that
	running sync.WaitGroup
	err     error // why it ended early; read after running
}

// SYNs calls each for every TCP segment with SYN and without ACK, first or repeated.
func SYNs(h *topo.Host, dev string, each func(Packet)) (*Tap, error) {
	return open(h, dev, synFilter, each)
}

// Datagrams calls each for every UDP datagram to a port that is not a later fragment.
func Datagrams(h *topo.Host, dev string, port uint16, each func(Packet)) (*Tap, error) {
	return open(h, dev, udpFilter(port), each)
}

// Offsets in headers of IPv4 (RFC 791 section 3.1), TCP (RFC 9293 section 3.1) and UDP.
const (
	ipFragment, ipProtocol, ipSource, ipDestination = 6, 9, 12, 16
	ipMinimum                                       = 20
	dstPort, tcpSequence, tcpFlags                  = 2, 4, 13
	synAndACK, syn                                  = 0x12, 0x02
	snapBytes                                       = 128
)

// synFilter and udpFilter run on packets that begin with the IPv4 header: classic BPF,
// in which X is the header's length.
var synFilter = []unix.SockFilter{
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: ipProtocol},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.IPPROTO_TCP, Jf: 7},
	{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: ipFragment},
	{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: 0x1fff, Jt: 5},
	{Code: unix.BPF_LDX | unix.BPF_B | unix.BPF_MSH},
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_IND, K: tcpFlags},
	{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: synAndACK},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: syn, Jf: 1},
	{Code: unix.BPF_RET | unix.BPF_K, K: snapBytes},
	{Code: unix.BPF_RET | unix.BPF_K},
}

func udpFilter(port uint16) []unix.SockFilter {
	return []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: ipProtocol},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.IPPROTO_UDP, Jf: 6},
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: ipFragment},
		{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: 0x1fff, Jt: 4},
		{Code: unix.BPF_LDX | unix.BPF_B | unix.BPF_MSH},
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_IND, K: dstPort},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(port), Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: snapBytes},
		{Code: unix.BPF_RET | unix.BPF_K},
	}
}

// receiveBytes is room for a second of a hundred thousand packets that nobody reads.
const receiveBytes = 64 << 20

func open(h *topo.Host, dev string, filter []unix.SockFilter, each func(Packet)) (*Tap, error) {
	t := &Tap{}
	err := h.Run(func() error {
		// Protocol 0 receives nothing, so that nothing passes before the filter is there.
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("tap: packet socket (CAP_NET_RAW is needed): %w", err)
		}
		t.file = os.NewFile(uintptr(fd), "tap:"+dev)
		return t.bind(fd, dev, filter)
	})
	if err == nil {
		t.raw, err = t.file.SyscallConn()
	}
	if err != nil {
		if t.file != nil {
			t.file.Close()
		}
		return nil, err
	}
	t.running.Go(func() { t.err = t.read(each) })
	return t, nil
}

func (t *Tap) bind(fd int, dev string, filter []unix.SockFilter) error {
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	index, err := interfaceIndex(dev)
	if err != nil {
		return err
	}
	err = errors.Join(
		unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBytes),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: bigEndian(unix.ETH_P_IP), Ifindex: index}),
	)
	if err != nil {
		return fmt.Errorf("tap on %s: %w", dev, err)
	}
	return nil
}

func bigEndian(v uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], v)
	return binary.NativeEndian.Uint16(b[:])
}

func (t *Tap) read(each func(Packet)) error {
	in, control := make([]byte, snapBytes), make([]byte, 128)
	for {
		var n, controlBytes int
		var err error
		waited := t.raw.Read(func(fd uintptr) bool {
			n, controlBytes, _, _, err = unix.Recvmsg(int(fd), in, control, 0)
			return err != unix.EAGAIN
		})
		switch {
		case waited != nil && t.closing.Load():
			return nil
		case waited != nil || err != nil:
			return errors.Join(waited, err)
		}
		if p, ok := parse(in[:n]); ok {
			if p.At, err = received(control[:controlBytes]); err != nil {
				return err
			}
			each(p)
		}
	}
}

// parse reads a packet that passed the filter.
func parse(b []byte) (p Packet, ok bool) {
	if len(b) < ipMinimum {
		return p, false
	}
	l4 := int(b[0]&0xf) * 4
	if l4 < ipMinimum || len(b) < l4+tcpSequence+4 {
		return p, false
	}
	end := func(at int, port []byte) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[at:at+4])), binary.BigEndian.Uint16(port))
	}
	p.Src, p.Dst = end(ipSource, b[l4:]), end(ipDestination, b[l4+dstPort:])
	if b[ipProtocol] == unix.IPPROTO_TCP {
		p.Sequence = binary.BigEndian.Uint32(b[l4+tcpSequence:])
	}
	return p, true
}

var errNoTime = errors.New("tap: a packet without a time of receipt")

func received(control []byte) (time.Time, error) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return time.Time{}, err
	}
	for _, m := range messages {
		if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SCM_TIMESTAMPNS && len(m.Data) >= 16 {
			return time.Unix(int64(binary.NativeEndian.Uint64(m.Data)), int64(binary.NativeEndian.Uint64(m.Data[8:]))),
				nil
		}
	}
	return time.Time{}, errNoTime
}

// Close ends the tap and returns how many packets it missed. After it, each is not called.
func (t *Tap) Close() (missed uint32, err error) {
	var statistics *unix.TpacketStats
	var asked error
	err = t.raw.Control(func(fd uintptr) {
		statistics, asked = unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS)
	})
	if err = errors.Join(err, asked); err == nil {
		missed = statistics.Drops
	}
	t.closing.Store(true)
	err = errors.Join(err, t.file.Close())
	t.running.Wait()
	return missed, errors.Join(err, t.err)
}
