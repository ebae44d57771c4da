//go:build root

package e2e

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gopacket/gopacket/pcapgo"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/topo"
)

// kernelView is what a host's kernel saw at an interface (AF_PACKET), as IP packets.
type kernelView struct {
	fd      int
	done    sync.WaitGroup
	closing atomic.Bool

	mu             sync.Mutex
	sent, received map[string]int // IP packets
}

func viewOf(t *testing.T, h *topo.Host) *kernelView {
	t.Helper()
	v := &kernelView{sent: map[string]int{}, received: map[string]int{}}
	err := h.Run(func() (err error) {
		if v.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		ifi, err := net.InterfaceByName(h.Interfaces[0].Name)
		if err != nil {
			return err
		}
		all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
		return errors.Join(unix.SetsockoptInt(v.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20),
			unix.SetsockoptTimeval(v.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 300_000}),
			unix.Bind(v.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: ifi.Index}))
	})
	if err != nil {
		t.Fatal(err)
	}
	v.done.Go(func() {
		b := make([]byte, 1<<16)
		for !v.closing.Load() {
			if n, from, err := unix.Recvfrom(v.fd, b, 0); err == nil {
				v.note(b[:n], from.(*unix.SockaddrLinklayer).Pkttype == unix.PACKET_OUTGOING)
			}
		}
	})
	t.Cleanup(func() {
		v.closing.Store(true)
		v.done.Wait()
		unix.Close(v.fd)
	})
	return v
}

func (v *kernelView) note(frame []byte, outgoing bool) {
	p, ok := ipPacket(frame)
	if !ok {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if outgoing {
		v.sent[p]++
	} else {
		v.received[p]++
	}
}

// ipPacket returns a frame's IP packet without padding; ok is false for other packets, and for
// neighbour discovery and multicast, which the gateway's kernel exchanges.
func ipPacket(frame []byte) (p string, ok bool) {
	if len(frame) < header.EthernetBytes+header.IPv4Bytes {
		return "", false
	}
	ip := frame[header.EthernetBytes:]
	switch binary.BigEndian.Uint16(frame[12:]) {
	case header.EtherTypeIPv4:
		return string(ip[:binary.BigEndian.Uint16(ip[2:])]), ip[16] < 224
	case header.EtherTypeIPv6:
		if len(ip) < 41 || ip[6] == header.ProtoICMPv6 && ip[40] >= 130 && ip[40] <= 143 || ip[24] == 0xff {
			return "", false
		}
		return string(ip[:header.IPv6Bytes+int(binary.BigEndian.Uint16(ip[4:]))]), true
	}
	return "", false
}

// captured is a capture, read back: IP packets by interface, and drops by reason.
type captured struct {
	at       map[string]map[string]int
	drops    map[string]uint64
	comments []string
}

func readCapture(t *testing.T, r io.Reader) *captured {
	t.Helper()
	c := &captured{at: map[string]map[string]int{}, drops: map[string]uint64{}}
	ng, err := pcapgo.NewNgReader(r, pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatal(err)
	}
	for {
		b, ci, o, err := ng.ReadPacketDataWithOptions()
		if errors.Is(err, io.EOF) {
			return c
		}
		if err != nil {
			t.Fatal(err)
		}
		i, err := ng.Interface(ci.InterfaceIndex)
		if err != nil || len(o.Comments) != 1 {
			t.Fatalf("%v, comments %q", err, o.Comments)
		}
		c.comments = append(c.comments, i.Name+": "+o.Comments[0])
		if i.Name == "dropped" {
			_, rest, _ := strings.Cut(o.Comments[0], "reason=")
			reason, _, _ := strings.Cut(rest, " ")
			c.drops[reason]++
		} else if p, ok := ipPacket(b); ok {
			if c.at[i.Name] == nil {
				c.at[i.Name] = map[string]int{}
			}
			c.at[i.Name][p]++
		}
	}
}

// captureProcess is `sluice capture`.
type captureProcess struct {
	*exec.Cmd
	errs bytes.Buffer
}

func (l *lab) startCapture(out *os.File, args ...string) *captureProcess {
	l.t.Helper()
	c := &captureProcess{Cmd: exec.Command(daemonBinary, append([]string{"capture", "--socket", l.gate.Socket()},
		args...)...)}
	c.Stdout, c.Stderr = out, &c.errs
	before := strings.Count(l.wholeLog(), "capture began")
	if err := c.Start(); err != nil {
		l.t.Fatal(err)
	}
	l.eventually(10*time.Second, "the capture began", func() bool {
		return strings.Count(l.wholeLog(), "capture began") > before
	})
	return c
}

func (l *lab) wholeLog() string {
	b, err := os.ReadFile(l.gate.LogFile())
	if err != nil {
		l.t.Fatal(err)
	}
	return string(b)
}

// stop ends the capture as ^C does.
func (c *captureProcess) stop(t *testing.T) string {
	t.Helper()
	if err := c.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); err != nil {
		t.Errorf("sluice capture: %v: %s", err, &c.errs)
	}
	return c.errs.String()
}

// drops sums the gateway's drops by reason.
func (l *lab) drops() map[string]uint64 {
	sum := map[string]uint64{}
	for _, w := range l.checkLaws().Workers {
		for reason, n := range w.Drops {
			sum[reason] += n
		}
	}
	return sum
}

// TestCaptureIsWhatKernelsSaw: an unfiltered capture has the packets that the client's and the
// backend's kernels sent and received, byte by byte: TCP, UDP, fragments and ICMP errors in both
// directions and both families. It has each drop of the ledger.
func TestCaptureIsWhatKernelsSaw(t *testing.T) {
	t.Parallel()
	l := newLab(t, labConfig{Config: topo.Config{Backends: 1, Queues: 2}, small: true})
	l.apply(l.web(l.Backends...), l.dns(l.Backends...), launch.Service{Name: "closed", UDP: true, Port: 99,
		VIPs: []string{vip4, vip6}, Endpoints: closedEndpoints(l.Backends[0])})
	l.applied()
	client, backend := viewOf(t, l.Clients[0]), viewOf(t, l.Backends[0])
	file := filepath.Join(t.TempDir(), "all.pcapng")
	before := l.drops()
	c := l.startCapture(nil, "-w", file, "--rate", "0")
	l.variedTraffic()
	after := l.drops()
	said := c.stop(t)
	if strings.Contains(said, "lost") || strings.Contains(said, "over the rate") {
		t.Error(said)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got := readCapture(t, f)
	front, back := l.Gateway.Interfaces[0].Name, l.Gateway.Interfaces[1].Name
	client.same(t, got, front)
	backend.same(t, got, back)
	for reason, n := range before {
		if after[reason] -= n; after[reason] == 0 {
			delete(after, reason)
		}
	}
	if !maps.Equal(after, got.drops) {
		t.Errorf("drops are %v, captured %v", after, got.drops)
	}
	for _, want := range []string{
		"reason=no_flow service=default/web",
		front + " in: verdict=forward service=default/web:p backend=" +
			netip.AddrPortFrom(l.Backends[0].Addr4(), backendPort).String(),
		back + " in: verdict=forward service=default/dns", "protocol=UDP from=backend", "protocol=TCP from=client",
		front + " out: verdict=generated",
	} {
		if !slices.ContainsFunc(got.comments, func(c string) bool { return strings.Contains(c, want) }) {
			t.Errorf("no comment has %q", want)
		}
	}
	t.Logf("%d packets captured; drops %v; %s", len(got.comments), got.drops, strings.TrimSpace(said))
}

// closedEndpoints are of a port at which nothing listens.
func closedEndpoints(h *topo.Host) []launch.Endpoint {
	list := endpoints(h)
	for i := range list {
		list[i].Port = 9
	}
	return list
}

// variedTraffic sends what TestCaptureIsWhatKernelsSaw lists, and packets that are dropped.
func (l *lab) variedTraffic() {
	l.t.Helper()
	client := l.Clients[0]
	w := openWire(l.t, client, l.Gateway.Interfaces[0].MAC)
	for _, vip := range []string{vip4, vip6} {
		r, err := client.HTTP(l.ctx, topo.HTTPLoad{Targets: []netip.AddrPort{at(vip, webPort)}, Requests: 20})
		if err != nil || r.Failed() > 0 {
			l.t.Fatalf("%v, %v", r, err)
		}
		conn, err := client.Dial(l.ctx, "udp", at(vip, dnsPort).String())
		if err != nil {
			l.t.Fatal(err)
		}
		for _, n := range []int{10, 4000} { // the kernels make fragments of the latter
			if _, err := ask(conn, bytes.Repeat([]byte{'x'}, n)); err != nil {
				l.t.Fatal(err)
			}
		}
		from := conn.LocalAddr().String()
		conn.Close()
		// The answer to a closed socket causes an ICMP error of the client, a datagram to a closed
		// port one of the backend.
		closed, err := client.Dial(l.ctx, "udp", at(vip, 99).String())
		if err != nil {
			l.t.Fatal(err)
		}
		defer closed.Close()
		if _, err := io.WriteString(closed, "to a closed port"); err != nil {
			l.t.Fatal(err)
		}
		for _, frame := range [][]byte{
			headertest.UDP(from, at(vip, dnsPort).String(), "to nobody").Bytes(),
			headertest.TCP(from, at(vip, webPort).String(), headertest.ACK).Bytes(), // no_flow, and an RST
		} {
			if err := w.send(frame); err != nil {
				l.t.Fatal(err)
			}
		}
	}
	time.Sleep(500 * time.Millisecond) // until the last answers have come
}

// same compares the view with a capture at the gateway's interface on its segment.
func (v *kernelView) same(t *testing.T, c *captured, dev string) {
	t.Helper()
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, direction := range []struct {
		kernel map[string]int
		name   string
	}{{v.sent, dev + " in"}, {v.received, dev + " out"}} {
		got := c.at[direction.name]
		kinds := map[string]int{}
		for p, n := range direction.kernel {
			if got[p] != n {
				t.Errorf("%s: a kernel saw %d times, the capture has %d times: %x", direction.name, n, got[p], p)
			}
			kinds[kindOf(p)] += n
		}
		for p, n := range got {
			if direction.kernel[p] == 0 {
				t.Errorf("%s: the capture has %d times, no kernel saw: %x", direction.name, n, p)
			}
		}
		for _, kind := range []string{"IPv4 TCP", "IPv4 UDP", "IPv4 fragment", "IPv4 ICMP", "IPv6 TCP", "IPv6 UDP",
			"IPv6 fragment", "IPv6 ICMP"} {
			if kinds[kind] == 0 {
				t.Errorf("%s: no %s", direction.name, kind)
			}
		}
		t.Logf("%s: %v, each in the capture", direction.name, kinds)
	}
}

// kindOf names the protocol of an IP packet.
func kindOf(p string) string {
	family, proto, fragment := "IPv4", p[9], p[6]&0x3f != 0 || p[7] != 0
	if p[0]>>4 == 6 {
		family, proto = "IPv6", p[6]
		fragment = proto == 44
	}
	switch {
	case fragment:
		return family + " fragment"
	case proto == header.ProtoTCP:
		return family + " TCP"
	case proto == header.ProtoUDP:
		return family + " UDP"
	case proto == header.ProtoICMP, proto == header.ProtoICMPv6:
		return family + " ICMP"
	}
	return fmt.Sprint(family, " protocol ", proto)
}

// TestCaptureHarmsNothing: with a reader that takes nothing, the gateway forwards as before. A
// reader that is killed ends its capture, so that its place is free again.
func TestCaptureHarmsNothing(t *testing.T) {
	t.Parallel()
	l := newLab(t, labConfig{Config: topo.Config{Backends: 1, Queues: 2}, small: true})
	for range 5 { // one more than there may be at once
		in, out, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		c := l.startCapture(out, "-w", "-", "--rate", "0")
		out.Close()
		if _, err := l.Clients[0].Download(l.ctx, at(vip4, webPort), 4<<20); err != nil {
			t.Error(err)
		}
		if err := c.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = c.Wait()
		in.Close()
		began := strings.Count(l.wholeLog(), "capture began")
		l.eventually(10*time.Second, "the capture ended", func() bool {
			return strings.Count(l.wholeLog(), "capture ended") == began
		})
	}
	if n := strings.Count(l.wholeLog(), "lost=0"); n != 0 {
		t.Errorf("%d of 5 captures lost nothing: the readers were not stalled", n)
	}
	l.wantServed("after the captures")
}

// TestCaptureEndsWithHandOver: the command says why the capture has ended, and the next process
// captures.
func TestCaptureEndsWithHandOver(t *testing.T) {
	t.Parallel()
	l := newLab(t, labConfig{Config: topo.Config{Backends: 1, Queues: 2}, small: true})
	dir := t.TempDir()
	c := l.startCapture(nil, "-w", dir+"/a")
	l.wantServed("before the hand-over")
	if err := l.gate.LaunchNext(); err != nil {
		t.Fatal(err)
	}
	if err := l.gate.TakenOver(l.ctx); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); err == nil || !strings.Contains(c.errs.String(), "hands over") {
		t.Errorf("%v: %s", err, &c.errs)
	}
	l.applied()
	c = l.startCapture(nil, "-w", dir+"/b", "--client", l.Clients[0].Addr4().String())
	l.wantServed("after the hand-over")
	if said := c.stop(t); strings.Contains(said, " 0 packets") {
		t.Error(said)
	}
}
