//go:build root

package l2fwd

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/fastpath/xsk/xsktest"
)

// TestForward sends a thousand packets each way, IPv4 and IPv6, over two queues. Each must arrive
// once, with the next hop's address, and ARP packets must not be forwarded. One worker on each CPU
// has all queues; without CPUs there is one for each queue.
func TestForward(t *testing.T) {
	for _, c := range []struct {
		name    string
		cpus    []int
		workers int
	}{{"a worker per queue", nil, 2}, {"one worker for two queues", []int{0}, 1}} {
		t.Run(c.name, func(t *testing.T) { forward(t, c.cpus, c.workers) })
	}
}

func forward(t *testing.T, cpus []int, workers int) {
	xsktest.EnterNamespace(t)
	in, out := pair(t, "in0", "in1"), pair(t, "out0", "out1")
	c := Config{In: Side{"in0", in.mac}, Out: Side{"out0", out.mac}, CPUs: cpus}
	started := start(t, &c)
	const each = 1000
	for _, way := range []struct {
		name     string
		from, to *end
		src      MAC
	}{{"in to out", in, out, hardware(t, "out0")}, {"out to in", out, in, hardware(t, "in0")}} {
		t.Run(way.name, func(t *testing.T) {
			for n := range uint32(each) {
				way.from.send(t, n)
				if n%50 == 0 {
					way.from.sendARP(t)
				}
			}
			got := way.to.receive(t, each)
			for n := range uint32(each) {
				if got[n].times != 1 || got[n].dst != way.to.mac || got[n].src != way.src {
					t.Fatalf("packet %d: %+v, want once, to %x from %x", n, got[n], way.to.mac, way.src)
				}
			}
		})
	}
	if n := attached(t); n != 2 {
		t.Errorf("%d interfaces have a program, want 2", n)
	}
	started.stop(t)
	if n := attached(t); n != 0 {
		t.Errorf("%d interfaces still have a program", n)
	}
	// A worker counts after it has sent, so counters are complete only after it has ended.
	totals := started.stats.Totals()
	if totals.Forwarded != 2*each || totals.Packets != 2*each || len(started.stats.Workers) != workers {
		t.Errorf("%+v by %d workers, want %d packets by %d", totals, len(started.stats.Workers), 2*each, workers)
	}
}

// TestHairpin: without a next hop a packet goes back to its sender.
func TestHairpin(t *testing.T) {
	xsktest.EnterNamespace(t)
	e := pair(t, "in0", "in1")
	s := start(t, &Config{In: Side{Interface: "in0"}, Out: Side{Interface: "in0"}})
	for n := range uint32(100) {
		e.send(t, n)
	}
	for n, p := range e.receive(t, 100) {
		if p.times != 1 || p.dst != e.mac {
			t.Fatalf("packet %d: %+v, want once, to %x", n, p, e.mac)
		}
	}
	s.stop(t)
}

func TestRefusals(t *testing.T) {
	xsktest.EnterNamespace(t)
	pair(t, "in0", "in1")
	for name, c := range map[string]Config{
		"no names":        {},
		"no such device":  {In: Side{Interface: "in0"}, Out: Side{Interface: "nowhere"}},
		"too many queues": {In: Side{Interface: "in0"}, Out: Side{Interface: "in0"}, Queues: 3},
		"negative":        {In: Side{Interface: "in0"}, Out: Side{Interface: "in0"}, Queues: -1},
		"no such CPU":     {In: Side{Interface: "in0"}, Out: Side{Interface: "in0"}, CPUs: []int{1023}},
	} {
		if err := Run(t.Context(), c); err == nil {
			t.Errorf("%s: no error", name)
		} else {
			t.Log(err)
		}
	}
}

type running struct {
	stats  *Stats
	cancel context.CancelFunc
	done   chan error
}

// start runs the forwarder on a thread in the test's namespace.
func start(t *testing.T, c *Config) *running {
	t.Helper()
	r := &running{done: make(chan error, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	r.cancel = cancel
	ready := make(chan *Stats, 1)
	c.Ready = func(s *Stats) { ready <- s }
	ns, err := os.Open("/proc/thread-self/ns/net")
	must(t, err)
	defer ns.Close()
	go func() {
		if err := enter(int(ns.Fd())); err != nil {
			r.done <- err
			return
		}
		r.done <- Run(ctx, *c)
	}()
	select {
	case r.stats = <-ready:
	case err := <-r.done:
		t.Fatal(err)
	}
	return r
}

func (r *running) stop(t *testing.T) {
	t.Helper()
	r.cancel()
	must(t, <-r.done)
}

// end is the far end of a veth pair, which sends and receives.
type end struct {
	mac    MAC
	packet int
}

// pair makes a veth pair of two queues; the packets are sent and received on peer.
func pair(t *testing.T, dev, peer string) *end {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.NumTxQueues, attrs.NumRxQueues = dev, 2, 2
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerNumTxQueues, veth.PeerNumRxQueues = peer, 2, 2
	must(t, netlink.LinkAdd(veth))
	for _, name := range []string{dev, peer} {
		l, err := netlink.LinkByName(name)
		must(t, err)
		must(t, netlink.LinkSetUp(l))
	}
	ifi, err := net.InterfaceByName(peer)
	must(t, err)
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK,
		int(swap(unix.ETH_P_ALL)))
	must(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	must(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20))
	must(t, unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: swap(unix.ETH_P_ALL), Ifindex: ifi.Index}))
	return &end{mac: MAC(ifi.HardwareAddr), packet: fd}
}

func hardware(t *testing.T, dev string) MAC {
	ifi, err := net.InterfaceByName(dev)
	must(t, err)
	return MAC(ifi.HardwareAddr)
}

func swap(v uint16) uint16 { return v<<8 | v>>8 }

// magic marks the packets of these tests.
const magic = 0x51c0ffee

// send transmits packet n: even ones are IPv4, odd ones IPv6.
func (e *end) send(t *testing.T, n uint32) {
	t.Helper()
	b := make([]byte, 80)
	copy(b[6:], e.mac[:])
	binary.BigEndian.PutUint16(b[12:], unix.ETH_P_IP)
	if n%2 == 1 {
		binary.BigEndian.PutUint16(b[12:], unix.ETH_P_IPV6)
	}
	binary.BigEndian.PutUint32(b[14:], magic)
	binary.BigEndian.PutUint32(b[18:], n)
	e.write(t, b)
}

func (e *end) sendARP(t *testing.T) {
	t.Helper()
	b := make([]byte, 60)
	binary.BigEndian.PutUint16(b[12:], unix.ETH_P_ARP)
	binary.BigEndian.PutUint32(b[14:], magic)
	e.write(t, b)
}

func (e *end) write(t *testing.T, b []byte) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); ; {
		_, err := unix.Write(e.packet, b)
		if err == nil {
			return
		}
		if !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.EAGAIN) || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

type arrival struct {
	times    int
	dst, src MAC
}

// receive reads until want packets have arrived, and fails on unexpected packets.
func (e *end) receive(t *testing.T, want int) map[uint32]arrival {
	t.Helper()
	got := map[uint32]arrival{}
	b := make([]byte, 4096)
	fds := []unix.PollFd{{Fd: int32(e.packet), Events: unix.POLLIN}}
	for deadline := time.Now().Add(10 * time.Second); len(got) < want; {
		n, from, err := unix.Recvfrom(e.packet, b, 0)
		if errors.Is(err, unix.EAGAIN) {
			if time.Now().After(deadline) {
				t.Fatalf("%d of %d packets came", len(got), want)
			}
			_, _ = unix.Poll(fds, 100)
			continue
		}
		must(t, err)
		if from.(*unix.SockaddrLinklayer).Pkttype == unix.PACKET_OUTGOING || binary.BigEndian.Uint32(b[14:]) != magic {
			continue
		}
		if binary.BigEndian.Uint16(b[12:]) == unix.ETH_P_ARP || n != 80 {
			t.Fatalf("forwarded an unexpected packet: %x", b[:n])
		}
		number := binary.BigEndian.Uint32(b[18:])
		a := got[number]
		got[number] = arrival{a.times + 1, MAC(b[:6]), MAC(b[6:12])}
	}
	return got
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// enter moves the goroutine to a network namespace for the rest of its life.
func enter(fd int) error {
	runtime.LockOSThread()
	return unix.Setns(fd, unix.CLONE_NEWNET)
}

// attached counts the interfaces of this namespace that have an XDP program.
func attached(t *testing.T) (n int) {
	t.Helper()
	links, err := netlink.LinkList()
	must(t, err)
	for _, l := range links {
		if x := l.Attrs().Xdp; x != nil && x.Attached {
			n++
		}
	}
	return n
}
