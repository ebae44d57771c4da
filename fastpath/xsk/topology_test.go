package xsk

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

	"sluice.dev/sluice/fastpath"
)

// enterNamespace moves the test to a network namespace without a name, which
// ends with the test's thread: nothing is left behind even if the test is killed.
func enterNamespace(tb testing.TB) {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Skip("needs root: network namespaces, XDP")
	}
	runtime.LockOSThread() // never unlocked: the thread, and with it the namespace, dies
	ns, err := netns.New()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { ns.Close() })
	// Neighbour discovery would add frames that no test sent.
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
		tb.Fatal(err)
	}
}

// wire is a veth pair: AF_XDP is on dev, a packet socket on its peer.
type wire struct {
	dev, peer string
	xsks      *ebpf.Map
	prog      *ebpf.Program
	xdp       link.Link
	packet    int // AF_PACKET socket on peer
}

// newWire makes the pair and redirects everything that reaches dev to the XSKMAP.
func newWire(tb testing.TB, dev, peer string) *wire {
	tb.Helper()
	w := &wire{dev: dev, peer: peer, packet: -1}
	w.makeDevices(tb)
	tb.Cleanup(func() { w.close() })
	return w
}

func (w *wire) makeDevices(tb testing.TB) {
	tb.Helper()
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: w.dev}, PeerName: w.peer}
	must(tb, netlink.LinkAdd(pair))
	for _, name := range []string{w.dev, w.peer} {
		l, err := netlink.LinkByName(name)
		must(tb, err)
		must(tb, netlink.LinkSetUp(l))
	}
	var err error
	if w.xsks == nil {
		w.xsks, err = ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.XSKMap, KeySize: 4, ValueSize: 4, MaxEntries: 4})
		must(tb, err)
		w.prog, err = ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "Apache-2.0", Instructions: redirectAll(w.xsks)})
		must(tb, err)
	}
	w.attach(tb)
	w.packet, err = packetSocket(w.index(tb, w.peer))
	must(tb, err)
}

// redirectAll returns bpf_redirect_map(&xsks, ctx->rx_queue_index, XDP_PASS).
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

func (w *wire) attach(tb testing.TB) {
	tb.Helper()
	var err error
	w.xdp, err = link.AttachXDP(link.XDPOptions{Program: w.prog, Interface: w.index(tb, w.dev), Flags: link.XDPDriverMode})
	must(tb, err)
}

func (w *wire) index(tb testing.TB, name string) int {
	tb.Helper()
	l, err := netlink.LinkByName(name)
	must(tb, err)
	return l.Attrs().Index
}

// set takes dev down or up.
func (w *wire) set(tb testing.TB, up bool) {
	tb.Helper()
	l, err := netlink.LinkByName(w.dev)
	must(tb, err)
	if up {
		must(tb, netlink.LinkSetUp(l))
	} else {
		must(tb, netlink.LinkSetDown(l))
	}
}

// delete removes the pair; makeDevices brings back one of the same names.
func (w *wire) delete(tb testing.TB) {
	tb.Helper()
	l, err := netlink.LinkByName(w.dev)
	must(tb, err)
	must(tb, netlink.LinkDel(l))
	w.xdp.Close()
	unix.Close(w.packet)
	w.packet = -1
}

func (w *wire) close() {
	w.xdp.Close()
	w.prog.Close()
	w.xsks.Close()
	if w.packet >= 0 {
		unix.Close(w.packet)
	}
}

// redirectTo puts the socket in the map, so that packets reach it.
func (w *wire) redirectTo(tb testing.TB, s *Socket) {
	tb.Helper()
	must(tb, w.xsks.Put(uint32(s.Queue()), uint32(s.FD())))
}

// testEtherType is IEEE's for local experiments: no stack answers it.
const testEtherType = 0x88b5

func packetSocket(ifindex int) (int, error) {
	proto := uint16(testEtherType>>8 | testEtherType&0xff<<8) // network order
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(proto))
	if err != nil {
		return -1, err
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20); err != nil {
		return -1, err
	}
	return fd, unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: proto, Ifindex: ifindex})
}

const packetLen = 80

// fillPacket writes packet number n: its number, and a pattern made from it.
func fillPacket(b []byte, n uint64) {
	copy(b, []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, testEtherType >> 8, testEtherType & 0xff})
	binary.BigEndian.PutUint64(b[14:], n)
	for i := 22; i < len(b); i++ {
		b[i] = byte(n) + byte(i)
	}
}

// packetNumber returns a packet's number, and an error if a byte of it is wrong.
func packetNumber(b []byte) (uint64, error) {
	if len(b) < 22 {
		return 0, fmt.Errorf("packet of %d bytes", len(b))
	}
	n := binary.BigEndian.Uint64(b[14:])
	want := make([]byte, len(b))
	fillPacket(want, n)
	if string(want) != string(b) {
		return n, fmt.Errorf("packet %d came damaged:\n got %x\nwant %x", n, b, want)
	}
	return n, nil
}

// send puts packets [from, to) on the wire from the peer; a full device is waited for.
func (w *wire) send(tb testing.TB, from, to uint64) {
	tb.Helper()
	b := make([]byte, packetLen)
	for n := from; n < to; n++ {
		fillPacket(b, n)
		deadline := time.Now().Add(5 * time.Second)
		for {
			err := unix.Send(w.packet, b, 0)
			if err == nil {
				break
			}
			if !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.EAGAIN) || time.Now().After(deadline) {
				tb.Fatalf("sending from %s: %v", w.peer, err)
			}
			runtime.Gosched()
		}
	}
}

// receive reads what reached the peer and notes it in seen.
func (w *wire) receive(tb testing.TB, seen map[uint64]int) {
	tb.Helper()
	b := make([]byte, 4096)
	for {
		n, err := unix.Read(w.packet, b)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENETDOWN) {
			return
		}
		must(tb, err)
		number, err := packetNumber(b[:n])
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

// eventually runs step until done, and fails after twenty seconds.
func eventually(tb testing.TB, what string, step func(), done func() bool) {
	tb.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; {
		step()
		if done() {
			return
		}
		if time.Now().After(deadline) {
			tb.Fatalf("%s: not within 20 s", what)
		}
		runtime.Gosched()
	}
}

// rig is what a worker has: a UMEM, its pool, and links.
type rig struct {
	tb    testing.TB
	umem  *UMEM
	pool  *fastpath.Pool
	links []*Socket
	batch []fastpath.Desc
	held  int // in a test's own hands
}

func newRig(tb testing.TB, frames int) *rig {
	tb.Helper()
	u, err := NewUMEM(UMEMConfig{Frames: frames, FrameSize: 2048})
	must(tb, err)
	r := &rig{tb: tb, umem: u, pool: fastpath.NewPool(frames, 2048), batch: make([]fastpath.Desc, 64)}
	tb.Cleanup(func() {
		for _, s := range r.links {
			if s.FD() >= 0 {
				must(tb, s.Close(r.pool))
			}
		}
		r.law("after the test")
		if r.pool.Free()+r.held+u.Kept() != frames {
			tb.Errorf("after closing all sockets %d of %d frames are free", r.pool.Free(), frames)
		}
		must(tb, u.Close())
	})
	return r
}

// open adds a link on a wire and fills its fill ring.
func (r *rig) open(w *wire, c Config) *Socket {
	r.tb.Helper()
	r.links = append(r.links, nil)
	return r.reopen(len(r.links)-1, w, c)
}

// reopen puts a new link in the place of one that was closed.
func (r *rig) reopen(i int, w *wire, c Config) *Socket {
	r.tb.Helper()
	c.Interface, c.UMEM, c.RebindFor = w.dev, r.umem, 20*time.Second // the machine may be busy
	s, err := Open(r.tb.Context(), c)
	must(r.tb, err)
	s.Refill(r.pool)
	w.redirectTo(r.tb, s)
	r.links[i] = s
	return s
}

// law asserts that every frame is in exactly one place.
func (r *rig) law(when string) {
	r.tb.Helper()
	sum := r.pool.Free() + r.held + r.umem.Kept()
	for _, s := range r.links {
		sum += s.Frames()
		owned := len(s.done)
		for _, o := range r.umem.owners {
			if o == s.inFill || o == s.inTx {
				owned++
			}
		}
		if s.FD() >= 0 && owned != s.Frames() {
			r.tb.Errorf("%s %s: the link counts %d frames, the owner table %d", s.name, when, s.Frames(), owned)
		}
		for _, addr := range s.done {
			if r.umem.owners[addr>>s.frameShift] != kept {
				r.tb.Errorf("%s %s: a completed frame is not marked", s.name, when)
			}
		}
	}
	if sum != r.umem.Frames() {
		r.tb.Errorf("frame law broken %s: %d free + %d held + %d kept + links = %d, want %d",
			when, r.pool.Free(), r.held, r.umem.Kept(), sum, r.umem.Frames())
	}
}

// step moves packets from one link to another as a worker does, and returns how many.
// What the link does not take is freed.
func (r *rig) step(from, to *Socket) (received, sent int) {
	for _, s := range r.links {
		s.Complete(r.pool)
	}
	n := from.Receive(r.batch)
	sent = to.Transmit(r.batch[:n])
	for _, d := range r.batch[sent:n] {
		r.pool.Put(d.Addr)
	}
	for _, s := range r.links {
		s.Flush()
		s.Refill(r.pool)
	}
	return n, sent
}

// generate takes n frames, writes packets numbered from first into them and
// transmits them, unflushed. It returns how many were taken.
func (r *rig) generate(s *Socket, first uint64, n int) int {
	r.tb.Helper()
	batch := make([]fastpath.Desc, 0, n)
	for i := range n {
		addr, ok := r.pool.Get()
		if !ok {
			break
		}
		addr += packetHeadroom - 24 // as after pushing tags
		fillPacket(r.umem.Bytes()[addr:addr+packetLen], first+uint64(i))
		batch = append(batch, fastpath.Desc{Addr: addr, Len: packetLen})
	}
	sent := s.Transmit(batch)
	for _, d := range batch[sent:] {
		r.pool.Put(d.Addr)
	}
	return sent
}
