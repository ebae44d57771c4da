// Package xsktest makes the environment for tests of AF_XDP sockets: a separate network namespace,
// veth pairs in it, and numbered packets, by which tests detect loss, duplicates and damage.
package xsktest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// EnterNamespace moves the test to a network namespace without a name. It ends with the test's
// thread, so nothing remains even if the test is killed.
func EnterNamespace(tb testing.TB) {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Fatal("needs root: network namespaces, XDP")
	}
	runtime.LockOSThread() // never unlocked: the thread, and with it the namespace, dies
	ns, err := netns.New()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { ns.Close() })
	// Neighbour discovery would add frames that no test sent.
	if err := os.WriteFile(
		"/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0,
	); err != nil && !errors.Is(err, os.ErrNotExist) {
		tb.Fatal(err)
	}
}

// LimitMemlock limits the memory that this thread may lock, in bytes, until the end of the test.
// The thread loses CAP_IPC_LOCK for good, so it must end with the test, as after EnterNamespace.
func LimitMemlock(tb testing.TB, bytes uint64) {
	tb.Helper()
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	must(tb, unix.Capget(&head, &caps[0]))
	caps[unix.CAP_IPC_LOCK/32].Effective &^= 1 << (unix.CAP_IPC_LOCK % 32)
	must(tb, unix.Capset(&head, &caps[0]))
	var old unix.Rlimit
	must(tb, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &old))
	must(tb, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: bytes, Max: old.Max}))
	tb.Cleanup(func() { _ = unix.Setrlimit(unix.RLIMIT_MEMLOCK, &old) })
}

// Wire is a veth pair with AF_XDP on dev and a packet socket on its peer.
type Wire struct {
	Dev, Peer string
	xsks      *ebpf.Map
	prog      *ebpf.Program
	xdp       link.Link
	packet    int // AF_PACKET socket on peer
}

// NewWire makes the pair and redirects all packets that reach dev to the XSKMAP.
func NewWire(tb testing.TB, dev, peer string) *Wire {
	tb.Helper()
	w := &Wire{Dev: dev, Peer: peer, packet: -1}
	w.Make(tb)
	tb.Cleanup(func() { w.close() })
	return w
}

// Make creates the devices, also again after Delete, and attaches the program.
func (w *Wire) Make(tb testing.TB) {
	tb.Helper()
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: w.Dev}, PeerName: w.Peer}
	must(tb, netlink.LinkAdd(pair))
	for _, name := range []string{w.Dev, w.Peer} {
		l, err := netlink.LinkByName(name)
		must(tb, err)
		must(tb, netlink.LinkSetUp(l))
	}
	var err error
	if w.xsks == nil {
		w.xsks, err = ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.XSKMap, KeySize: 4, ValueSize: 4, MaxEntries: 4})
		must(tb, err)
		w.prog, err = ebpf.NewProgram(&ebpf.ProgramSpec{
			Type: ebpf.XDP, Flags: unix.BPF_F_XDP_HAS_FRAGS, License: "Apache-2.0", Instructions: redirectAll(w.xsks),
		})
		must(tb, err)
	}
	w.attach(tb)
	w.packet, err = packetSocket(w.index(tb, w.Peer))
	must(tb, err)
}

// NewQueues makes a pair without a program and packet socket, whose dev has the given number of
// queues.
func NewQueues(tb testing.TB, dev, peer string, queues int) {
	tb.Helper()
	must(tb, netlink.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: dev, NumRxQueues: queues, NumTxQueues: queues}, PeerName: peer,
	}))
}

// redirectAll returns a program: bpf_redirect_map(&xsks, ctx->rx_queue_index, XDP_PASS).
func redirectAll(xsks *ebpf.Map) asm.Instructions {
	const rxQueueIndex, xdpPass = 16, 2 // struct xdp_md, enum xdp_action
	return asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, rxQueueIndex, asm.Word),
		asm.LoadMapPtr(asm.R1, xsks.FD()),
		asm.Mov.Imm(asm.R3, xdpPass),
		asm.FnRedirectMap.Call(),
		asm.Return(),
	}
}

func (w *Wire) attach(tb testing.TB) {
	tb.Helper()
	var err error
	w.xdp, err = link.AttachXDP(
		link.XDPOptions{Program: w.prog, Interface: w.index(tb, w.Dev), Flags: link.XDPDriverMode},
	)
	must(tb, err)
}

// Index returns dev's interface index.
func (w *Wire) Index(tb testing.TB) int {
	tb.Helper()
	return w.index(tb, w.Dev)
}

func (w *Wire) index(tb testing.TB, name string) int {
	tb.Helper()
	l, err := netlink.LinkByName(name)
	must(tb, err)
	return l.Attrs().Index
}

// Set takes dev down or up.
func (w *Wire) Set(tb testing.TB, up bool) {
	tb.Helper()
	l, err := netlink.LinkByName(w.Dev)
	must(tb, err)
	if up {
		must(tb, netlink.LinkSetUp(l))
	} else {
		must(tb, netlink.LinkSetDown(l))
	}
}

// SetMTU gives both ends an MTU.
func (w *Wire) SetMTU(tb testing.TB, mtu int) {
	tb.Helper()
	for _, name := range []string{w.Dev, w.Peer} {
		l, err := netlink.LinkByName(name)
		must(tb, err)
		must(tb, netlink.LinkSetMTU(l, mtu))
	}
}

// Delete removes the pair; Make creates it again with the same names.
func (w *Wire) Delete(tb testing.TB) {
	tb.Helper()
	l, err := netlink.LinkByName(w.Dev)
	must(tb, err)
	must(tb, netlink.LinkDel(l))
	w.xdp.Close()
	unix.Close(w.packet)
	w.packet = -1
}

func (w *Wire) close() {
	w.xdp.Close()
	w.prog.Close()
	w.xsks.Close()
	if w.packet >= 0 {
		unix.Close(w.packet)
	}
}

// Redirect puts the socket in the map, so that packets reach it.
func (w *Wire) Redirect(tb testing.TB, queue, fd int) {
	tb.Helper()
	must(tb, w.xsks.Put(uint32(queue), uint32(fd)))
}

// EtherType is the one for local experiments (IEEE 802): no stack answers it.
const EtherType = 0x88b5

func packetSocket(ifindex int) (int, error) {
	proto := uint16(EtherType>>8 | EtherType&0xff<<8) // network order
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(proto))
	if err != nil {
		return -1, err
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20); err != nil {
		return -1, err
	}
	return fd, unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: proto, Ifindex: ifindex})
}

const PacketLen = 80

// FillPacket writes packet n: its number, and a pattern made from the number.
func FillPacket(b []byte, n uint64) {
	copy(b, []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, EtherType >> 8, EtherType & 0xff})
	binary.BigEndian.PutUint64(b[14:], n)
	for i := 22; i < len(b); i++ {
		b[i] = byte(n) + byte(i)
	}
}

// PacketNumber returns a packet's number, and an error if a byte of it is wrong.
func PacketNumber(b []byte) (uint64, error) {
	if len(b) < 22 {
		return 0, fmt.Errorf("packet of %d bytes", len(b))
	}
	n := binary.BigEndian.Uint64(b[14:])
	want := make([]byte, len(b))
	FillPacket(want, n)
	if string(want) != string(b) {
		return n, fmt.Errorf("packet %d came damaged:\n got %x\nwant %x", n, b, want)
	}
	return n, nil
}

// Send sends packets [from, to) from the peer; it waits while the device is full.
func (w *Wire) Send(tb testing.TB, from, to uint64) {
	tb.Helper()
	b := make([]byte, PacketLen)
	for n := from; n < to; n++ {
		FillPacket(b, n)
		deadline := time.Now().Add(5 * time.Second)
		for {
			err := unix.Send(w.packet, b, 0)
			if err == nil {
				break
			}
			if !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.EAGAIN) || time.Now().After(deadline) {
				tb.Fatalf("sending from %s: %v", w.Peer, err)
			}
			runtime.Gosched()
		}
	}
}

// ClosePeer closes the peer's packet socket: packets that arrive there are discarded, which costs
// the sender less.
func (w *Wire) ClosePeer() {
	unix.Close(w.packet)
	w.packet = -1
}

// Inject sends one packet from the peer. It does not allocate.
func (w *Wire) Inject(b []byte) error {
	_, err := unix.Write(w.packet, b)
	return err
}

// Next returns one packet that reached the peer, or nil if there is none.
func (w *Wire) Next(tb testing.TB) []byte {
	tb.Helper()
	b := make([]byte, 1<<16)
	n, err := unix.Read(w.packet, b)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENETDOWN) {
		return nil
	}
	must(tb, err)
	return b[:n]
}

// Receive reads the packets that reached the peer and counts each in seen by its number.
func (w *Wire) Receive(tb testing.TB, seen map[uint64]int) {
	tb.Helper()
	b := make([]byte, 4096)
	for {
		n, err := unix.Read(w.packet, b)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENETDOWN) {
			return
		}
		must(tb, err)
		number, err := PacketNumber(b[:n])
		if err != nil {
			tb.Error(err)
		}
		seen[number]++
	}
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
