//go:build root

package xdpprog

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/xsk"
)

// isolate moves the test to its own network and mount namespaces, which end with its thread:
// nothing remains even if the test is killed.
func isolate(t *testing.T) {
	t.Helper()
	needRoot(t)
	runtime.LockOSThread() // never unlocked: the thread, and with it the namespaces, dies
	must(t, unix.Unshare(unix.CLONE_NEWNET|unix.CLONE_NEWNS))
	must(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	// Allow no frames except the test's: no router solicitation, no duplicate address detection.
	sysctl(t, "ipv6/conf/default/disable_ipv6", "1")
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("needs root: BPF programs, namespaces")
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func sysctl(t *testing.T, name, value string) {
	t.Helper()
	if err := os.WriteFile("/proc/sys/net/"+name, []byte(value), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
}

// pinDir mounts a bpffs and returns a directory on it.
func pinDir(t *testing.T) string {
	t.Helper()
	mount := filepath.Join(t.TempDir(), "bpf")
	here, err := EnsureBPFFS(mount)
	must(t, err)
	if !here {
		t.Fatalf("EnsureBPFFS mounted nothing on %s", mount)
	}
	t.Cleanup(func() {
		if err := UnmountBPFFS(mount); err != nil {
			t.Error(err)
		}
	})
	return filepath.Join(mount, "sluice")
}

// veth makes a pair, both ends up, and returns their indexes.
func veth(t *testing.T, a, b string) (int, int) {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = a
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: b}))
	return up(t, a), up(t, b)
}

func up(t *testing.T, name string) int {
	t.Helper()
	l, err := netlink.LinkByName(name)
	must(t, err)
	must(t, netlink.LinkSetUp(l))
	return l.Attrs().Index
}

func remove(t *testing.T, name string) {
	t.Helper()
	l, err := netlink.LinkByName(name)
	must(t, err)
	must(t, netlink.LinkDel(l))
}

func load(t *testing.T, c Config) *Steering {
	t.Helper()
	s, err := Load(c)
	must(t, err)
	return s
}

func attach(t *testing.T, s *Steering, ifindex int, name string, mode AttachMode) *Port {
	t.Helper()
	p, err := s.Attach(ifindex, name, mode)
	must(t, err)
	return p
}

// patience bounds every wait for a packet that must come.
const patience = 5 * time.Second

// packets is a packet socket on an interface.
type packets struct {
	t       *testing.T
	fd      int
	ifindex int
}

func packetsOn(t *testing.T, ifindex int) *packets {
	t.Helper()
	const allProtocols = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, allProtocols)
	must(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	must(t, unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: allProtocols, Ifindex: ifindex}))
	return &packets{t, fd, ifindex}
}

// send sends a frame through the interface's queueing discipline and TCX.
func (p *packets) send(frame []byte) {
	p.t.Helper()
	must(p.t, unix.Sendto(p.fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: p.ifindex, Halen: 6}))
}

// receives waits until the interface has received a frame of this length.
func (p *packets) receives(length int) {
	p.t.Helper()
	deadline := time.Now().Add(patience)
	buf := make([]byte, 1<<16)
	for {
		n, from, err := unix.Recvfrom(p.fd, buf, 0)
		ll, _ := from.(*unix.SockaddrLinklayer)
		if err == nil && n == length && ll.Pkttype != unix.PACKET_OUTGOING {
			return
		}
		if err == nil {
			continue
		}
		wait(p.t, p.fd, deadline)
	}
}

// wait blocks until fd is readable; the deadline fails the test.
func wait(t *testing.T, fd int, deadline time.Time) {
	t.Helper()
	left := time.Until(deadline)
	if left <= 0 {
		t.Fatalf("nothing arrived in %v", patience)
	}
	_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left.Milliseconds())+1)
	if err != nil && !errors.Is(err, unix.EINTR) {
		t.Fatal(err)
	}
}

// socket is an AF_XDP socket on queue 0 of an interface.
type socket struct {
	*xsk.Socket
	t    *testing.T
	umem *xsk.UMEM
	pool *fastpath.Pool
}

func socketOn(t *testing.T, name string) *socket {
	t.Helper()
	umem, err := xsk.NewUMEM(xsk.UMEMConfig{Frames: 256, FrameSize: 2048})
	must(t, err)
	s, err := xsk.Open(context.Background(), xsk.Config{
		Interface: name, UMEM: umem, RxSize: 64, TxSize: 64, FillSize: 64, CompletionSize: 64,
	})
	must(t, err)
	k := &socket{s, t, umem, fastpath.NewPool(umem.Frames(), umem.FrameSize())}
	k.Refill(k.pool)
	return k
}

func (k *socket) close() {
	k.t.Helper()
	must(k.t, k.Close(k.pool))
	must(k.t, k.umem.Close())
}

// receive waits for n packets and returns their lengths.
func (k *socket) receive(n int) (lengths []int) {
	k.t.Helper()
	deadline := time.Now().Add(patience)
	batch := make([]fastpath.Desc, 16)
	for len(lengths) < n {
		got := k.Receive(batch)
		for _, d := range batch[:got] {
			lengths = append(lengths, int(d.Len))
			k.pool.Put(d.Addr)
		}
		if got == 0 {
			wait(k.t, k.FD(), deadline)
		}
	}
	return lengths
}

// receivesNothing checks that the socket received no packet. Call it after a packet that was sent
// later has arrived elsewhere.
func (k *socket) receivesNothing() {
	k.t.Helper()
	if n := k.Receive(make([]fastpath.Desc, 16)); n != 0 {
		k.t.Errorf("the socket received %d packets, want none", n)
	}
}

func (k *socket) transmit(frame []byte) {
	k.t.Helper()
	at, ok := k.pool.Get()
	if !ok {
		k.t.Fatal("no free frame")
	}
	copy(k.umem.Bytes()[at:], frame)
	if k.Transmit([]fastpath.Desc{{Addr: at, Len: uint32(len(frame))}}) != 1 {
		k.t.Fatal("the transmit ring took nothing")
	}
	k.Flush()
}

// address gives an interface an IPv4 prefix.
func address(t *testing.T, ifindex int, prefix string) {
	t.Helper()
	l, err := netlink.LinkByIndex(ifindex)
	must(t, err)
	a, err := netlink.ParseAddr(prefix)
	must(t, err)
	must(t, netlink.AddrAdd(l, a))
}

// neighbour makes an address reachable on an interface without resolving its MAC.
func neighbour(t *testing.T, ifindex int, ip string) {
	t.Helper()
	dst := netip.MustParseAddr(ip).AsSlice()
	must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: ifindex, Scope: netlink.SCOPE_LINK, Dst: netlink.NewIPNet(dst)}))
	must(t, netlink.NeighAdd(&netlink.Neigh{
		LinkIndex: ifindex, State: netlink.NUD_PERMANENT, IP: dst, HardwareAddr: []byte{2, 0, 0, 0, 0, 9},
	}))
}
