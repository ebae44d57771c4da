//go:build root

package xdpnat

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"sluice.dev/sluice/test/bed/machine"
	"sluice.dev/sluice/test/bed/topo"
	"sluice.dev/sluice/test/bed/xdp"
)

const (
	servicePort, backendPort = 80, 8080
	protoTCP, protoUDP       = 6, 17
)

var vip = netip.MustParseAddr("203.0.113.10")

// rig is a client, a gateway whose interfaces have the program, and a server.
type rig struct {
	*testing.T
	client, gateway, server *topo.Host
	nat                     *NAT
}

// newRig serves UDP and TCP of the VIP from some ports of the server.
func newRig(t *testing.T, backends int, change func(*Config)) *rig {
	t.Helper()
	n, err := topo.New(topo.Config{Direct: true, Queues: 2})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{T: t, client: n.Clients[0], gateway: n.Gateway, server: n.Backends[0]}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
		if left, err := n.Leftovers(); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	})
	// The peer of a veth that packets are redirected to needs NAPI.
	for _, h := range []*topo.Host{r.client, r.server} {
		r.attachPass(h)
	}
	var list []netip.AddrPort
	for i := range backends {
		list = append(list, netip.AddrPortFrom(r.server.Addr4(), uint16(backendPort+i)))
	}
	c := Config{
		Front: Port{Interface: "front0", NextHop: r.client.Interfaces[0].MAC[:]},
		Back:  Port{Interface: "back0", NextHop: r.server.Interfaces[0].MAC[:]},
		SNAT:  []netip.Addr{r.from()}, Flows: 1000,
	}
	for _, proto := range []uint8{protoTCP, protoUDP} {
		c.Services = append(c.Services, Service{netip.AddrPortFrom(vip, servicePort), proto, list})
	}
	if change != nil {
		change(&c)
	}
	if err := r.gateway.Run(func() (err error) {
		r.nat, err = Attach(c)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.nat.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *rig) attachPass(h *topo.Host) {
	r.Helper()
	var p *xdp.Program
	err := h.Run(func() error {
		dev, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		p, err = xdp.Attach(dev.Index, 0, &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1},
			func(*ebpf.Map) asm.Instructions {
				return asm.Instructions{asm.Mov.Imm(asm.R0, 2).WithSymbol("pass"), asm.Return()} // XDP_PASS
			})
		return err
	})
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() {
		if err := p.Close(); err != nil {
			r.Error(err)
		}
	})
}

// from is the source address that endpoints see.
func (r *rig) from() netip.Addr { return r.gateway.Interfaces[1].Addr4.Addr() }

func (r *rig) counters() Counters {
	r.Helper()
	c, err := r.nat.Counters()
	if err != nil {
		r.Fatal(err)
	}
	return c
}

var limit = machine.Slower(10 * time.Second)

// TestTraffic: real clients reach real servers over TCP and UDP, each server sees the gateway's
// address, all backends get flows, and each flow is made once.
func TestTraffic(t *testing.T) {
	const backends, tcp, udp = 3, 40, 60
	r := newRig(t, backends, nil)
	for i := range backends {
		s, err := r.server.ServeOn(fmt.Sprintf("server-%d", i), uint16(backendPort+i), r.server.Addr4())
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
	}
	to := netip.AddrPortFrom(vip, servicePort)
	load := topo.FlowLoad{Targets: []netip.AddrPort{to}, Interval: 10 * time.Millisecond}
	for _, kind := range []struct {
		name  string
		flows int
		open  func(context.Context, topo.FlowLoad) (*topo.Flows, error)
	}{{"TCP", tcp, r.client.OpenTCP}, {"UDP", udp, r.client.OpenUDP}} {
		load.Flows = kind.flows
		f, err := kind.open(t.Context(), load)
		if err != nil {
			t.Fatal(err)
		}
		err = f.AnsweredAgain(t.Context(), limit, 5)
		by := f.ByBackend()
		if result := f.Finish(); err != nil || result.Failed() > 0 || len(by) != backends {
			t.Errorf("%s: %v; errors %v, flows by backend %v", kind.name, err, result.Errors, by)
		}
		for i, s := range f.States() {
			if s.Moves > 0 {
				t.Errorf("%s: flow %d met two servers: %+v", kind.name, i, s)
			}
		}
	}
	const size = 4 << 20
	if d, err := r.client.Download(t.Context(), to, size); err != nil {
		t.Errorf("download: %+v, %v", d, err)
	}
	if c := r.counters(); c != (Counters{Made: tcp + udp + 1}) {
		t.Errorf("%+v, want %d flows made and nothing else", c, tcp+udp+1)
	}
}

// listen opens a UDP socket on the server.
func (r *rig) listen() net.PacketConn {
	r.Helper()
	c, err := r.server.ListenPacket("udp4", netip.AddrPortFrom(r.server.Addr4(), backendPort).String())
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { c.Close() })
	return c
}

// dial opens a UDP socket on the client with an address and a port.
func (r *rig) dial(from netip.Addr, port uint16) net.Conn {
	r.Helper()
	var c net.Conn
	err := r.client.Run(func() (err error) {
		d := net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, port))}
		c, err = d.Dial("udp4", netip.AddrPortFrom(vip, servicePort).String())
		return err
	})
	if err != nil {
		r.Fatal(err)
	}
	return c
}

// seenFrom sends a datagram and returns the source that the server saw; the answer must arrive.
func (r *rig) seenFrom(client net.Conn, server net.PacketConn, text string) (netip.AddrPort, error) {
	b := make([]byte, 100)
	if _, err := client.Write([]byte(text)); err != nil {
		return netip.AddrPort{}, err
	}
	if err := errors.Join(server.SetDeadline(time.Now().Add(limit)), client.SetDeadline(time.Now().Add(
		limit))); err != nil {
		return netip.AddrPort{}, err
	}
	n, from, err := server.ReadFrom(b)
	if err != nil || string(b[:n]) != text {
		return netip.AddrPort{}, fmt.Errorf("the server got %q, want %q: %w", b[:n], text, err)
	}
	seen := from.(*net.UDPAddr).AddrPort()
	if _, err := server.WriteTo([]byte("re "+text), from); err != nil {
		return seen, err
	}
	if n, err = client.Read(b); err != nil || string(b[:n]) != "re "+text {
		return seen, fmt.Errorf("the client got %q, want %q: %w", b[:n], "re "+text, err)
	}
	return seen, nil
}

// TestKeepsFlows: the configured number of flows is kept, regardless of the CPU on which they
// arrive.
func TestKeepsFlows(t *testing.T) {
	const flows = 500
	r := newRig(t, 1, func(c *Config) { c.Flows = flows })
	server := r.listen()
	var clients []net.Conn
	for i := range flows {
		c := r.dial(r.client.Addr4(), uint16(31_000+i))
		defer c.Close()
		clients = append(clients, c)
	}
	for range 3 {
		for i, c := range clients {
			if seen, err := r.seenFrom(c, server, "x"); err != nil || seen.Port() != uint16(31_000+i) {
				t.Fatalf("flow %d: seen as %s, %v", i, seen, err)
			}
		}
	}
	if c := r.counters(); c != (Counters{Made: flows}) {
		t.Errorf("%+v, want %d flows made", c, flows)
	}
}

// TestKernel: packets without a service and a flow pass to the kernel, which rejects them here.
func TestKernel(t *testing.T) {
	r := newRig(t, 1, nil)
	for _, to := range []netip.AddrPort{
		netip.AddrPortFrom(r.gateway.Addr4(), servicePort), netip.AddrPortFrom(r.from(), 5000),
	} {
		if c, err := r.client.Dial(t.Context(), "tcp", to.String()); err == nil {
			c.Close()
			t.Errorf("somebody listens on %s", to)
		} else if !bytes.Contains([]byte(err.Error()), []byte("refused")) {
			t.Errorf("%s: %v, want it refused", to, err)
		}
	}
	if c := r.counters(); c != (Counters{}) {
		t.Errorf("%+v, want nothing", c)
	}
}

// TestChecksums runs the program on packets with arbitrary content: its output equals gopacket's
// result for the same fields, and the answer has the request's fields, reversed.
func TestChecksums(t *testing.T) {
	r := newRig(t, 5, nil)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 2000 {
		proto := []layers.IPProtocol{layers.IPProtocolTCP, layers.IPProtocolUDP}[i%2]
		src := netip.AddrFrom4([4]byte{198, 18, byte(random.Uint32()), byte(random.Uint32())})
		request := packet{src, vip, uint16(random.Uint32()), servicePort, uint8(2 + random.IntN(254)), proto,
			make([]byte, 1+random.IntN(100))}
		for j := range request.payload {
			request.payload[j] = byte(random.Uint32())
		}
		noSum := proto == layers.IPProtocolUDP && i%10 == 1
		out := r.runs(request.bytes(t, noSum))
		got := parse(t, out)
		if got.src != r.from() || got.dst != r.server.Addr4() || got.dport < backendPort || got.dport >= backendPort+5 {
			t.Fatalf("%+v became %+v", request, got)
		}
		want := request
		want.src, want.dst, want.sport, want.dport, want.ttl = got.src, got.dst, got.sport, got.dport, request.ttl-1
		if w := want.bytes(t, noSum); !bytes.Equal(out[ethernetBytes:], w[ethernetBytes:]) {
			t.Fatalf("%+v: the program wrote\n%x, want\n%x", request, out, w)
		}
		answer := packet{got.dst, got.src, got.dport, got.sport, 64, proto, request.payload}
		back := parse(t, r.runs(answer.bytes(t, false)))
		want = packet{vip, src, servicePort, request.sport, 63, proto, request.payload}
		if !bytes.Equal(back.bytes(t, false), want.bytes(t, false)) {
			t.Fatalf("the answer of %+v is %+v, want %+v", request, back, want)
		}
	}
}

// TestZeroChecksum: a UDP checksum that becomes 0 is written as all ones (RFC 768).
func TestZeroChecksum(t *testing.T) {
	const at = ethernetBytes + 20 + 6
	r := newRig(t, 1, nil)
	p := packet{netip.MustParseAddr("198.18.0.1"), vip, 30_000, servicePort, 64, layers.IPProtocolUDP, make([]byte, 2)}
	copy(p.payload, r.runs(p.bytes(t, false))[at:]) // with its own checksum in it, the sum is -0
	if out := r.runs(p.bytes(t, false)); out[at] != 0xff || out[at+1] != 0xff {
		t.Errorf("checksum %x, want ffff", out[at:at+2])
	}
}

const ethernetBytes = 14

// packet holds the test's fields of a packet.
type packet struct {
	src, dst     netip.Addr
	sport, dport uint16
	ttl          uint8
	proto        layers.IPProtocol
	payload      []byte
}

func (p packet) bytes(t *testing.T, noSum bool) []byte {
	t.Helper()
	ip := &layers.IPv4{Version: 4, IHL: 5, TTL: p.ttl, Protocol: p.proto, SrcIP: p.src.AsSlice(),
		DstIP: p.dst.AsSlice()}
	eth := &layers.Ethernet{SrcMAC: make(net.HardwareAddr, 6), DstMAC: make(net.HardwareAddr, 6),
		EthernetType: layers.EthernetTypeIPv4}
	var transport gopacket.SerializableLayer
	if p.proto == layers.IPProtocolTCP {
		l := &layers.TCP{SrcPort: layers.TCPPort(p.sport), DstPort: layers.TCPPort(p.dport), ACK: true}
		_ = l.SetNetworkLayerForChecksum(ip)
		transport = l
	} else {
		l := &layers.UDP{SrcPort: layers.UDPPort(p.sport), DstPort: layers.UDPPort(p.dport)}
		_ = l.SetNetworkLayerForChecksum(ip)
		transport = l
	}
	b := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, eth, ip,
		transport, gopacket.Payload(p.payload)); err != nil {
		t.Fatal(err)
	}
	out := b.Bytes()
	if at := ethernetBytes + 20 + 6; p.proto == layers.IPProtocolUDP && noSum {
		out[at], out[at+1] = 0, 0
	}
	return out
}

func parse(t *testing.T, frame []byte) (p packet) {
	t.Helper()
	g := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default)
	ip, ok := g.Layer(layers.LayerTypeIPv4).(*layers.IPv4)
	if !ok {
		t.Fatalf("%x has no IPv4", frame)
	}
	p.src, _ = netip.AddrFromSlice(ip.SrcIP)
	p.dst, _ = netip.AddrFromSlice(ip.DstIP)
	p.ttl, p.proto = ip.TTL, ip.Protocol
	switch l := g.TransportLayer().(type) {
	case *layers.TCP:
		p.sport, p.dport, p.payload = uint16(l.SrcPort), uint16(l.DstPort), l.Payload
	case *layers.UDP:
		p.sport, p.dport, p.payload = uint16(l.SrcPort), uint16(l.DstPort), l.Payload
	}
	return p
}

// runs runs the program on a frame, and returns the redirected frame.
func (r *rig) runs(frame []byte) []byte {
	r.Helper()
	const redirected = 4
	out := make([]byte, len(frame)+256)
	verdict, err := r.nat.objects.Nat.Run(&ebpf.RunOptions{Data: frame, DataOut: out})
	if err != nil || verdict != redirected {
		r.Fatalf("%x: verdict %d, %v", frame, verdict, err)
	}
	return out[:len(frame)]
}
