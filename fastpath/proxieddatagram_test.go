package fastpath_test

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
)

// proxiedDatagrams makes the UDP Services have the PROXY protocol.
func proxiedDatagrams(b *services.Builder) {
	for _, vip := range []string{vip4, vip6} {
		f, _ := b.Settings().FrontendByKey(services.FrontendKey{Addr: addr(vip), Port: 53, Proto: header.ProtoUDP})
		svc, next := *f.Service, *f
		svc.ProxyProtocol = true
		next.Service = &svc
		b.SetService(&svc)
		b.SetFrontend(&next)
	}
}

// wantDatagramHeader is wantHeader for UDP.
func wantDatagramHeader(client, vip string) []byte {
	b := wantHeader(client, vip)
	b[13]++
	return b
}

// datagramOf returns the payload of a UDP datagram.
func datagramOf(frame []byte) []byte {
	ip := headertest.IP(frame)
	if ip[0]>>4 == 6 {
		return ip[40+8:]
	}
	return ip[20+8:]
}

var datagramEnds = []struct {
	client, vip string
	bytes       int // of the header
}{
	{join(client4, 40000), join(vip4, 53), 28},
	{join(client6, 40000), join(vip6, 53), 52},
}

// TestProxyDatagrams: each datagram of a client begins with a header, with a good checksum, or
// without one if it had none. Replies have no header.
func TestProxyDatagrams(t *testing.T) {
	for _, e := range datagramEnds {
		for _, vlan := range [][]uint16{nil, {7}} {
			l := newLab(t, labConfig{edit: proxiedDatagrams})
			g := l.workers[0]
			for _, text := range []string{"", "odd", "question"} {
				p := headertest.UDP(e.client, e.vip, text)
				p.NoChecksum, p.VLAN, p.Padding = text == "odd" && e.bytes == 28, vlan, 4
				l.send(0, p)
				frame, h := l.out(g.nic)
				want := append(wantDatagramHeader(e.client, e.vip), text...)
				if got := datagramOf(frame); !bytes.Equal(got, want) {
					t.Errorf("%s, %q: the backend got %x, want %x", e.vip, text, got, want)
				}
				if sum := binary.BigEndian.Uint16(frame[h.L4+6:]); (sum == 0) != p.NoChecksum {
					t.Errorf("%s, %q: the checksum is %#x", e.vip, text, sum)
				}
				src, dst := ends(&h.Tuple)
				l.send(0, headertest.UDP(dst.String(), src.String(), "answer"))
				frame, h = l.out(g.nic)
				l.wantTuple(&h, e.vip, e.client)
				if got := datagramOf(frame); string(got) != "answer" {
					t.Errorf("%s: the client got %q", e.vip, got)
				}
			}
			l.nothing(g.nic, g.host)
			if n := g.stats.ProxyHeaders.Load(); n != 3 {
				t.Errorf("%d headers are counted", n)
			}
		}
	}
}

// TestProxyDatagramMTU: a datagram that does not fit with its header is fragmented without DF.
// Otherwise its sender learns an MTU that leaves room for the header, also from a router behind the
// gateway. A fragment is dropped.
func TestProxyDatagramMTU(t *testing.T) {
	for _, e := range datagramEnds {
		l := newLab(t, labConfig{edit: proxiedDatagrams})
		g := l.workers[0]
		v6, ipBytes, icmpType, code := false, 20, uint8(3), uint8(4)
		if e.bytes == 52 {
			v6, ipBytes, icmpType, code = true, 40, 2, 0
		}
		datagram := func(bytes int, df bool) *headertest.Packet {
			p := headertest.UDP(e.client, e.vip, string(make([]byte, bytes-ipBytes-8)))
			p.DF = df
			return p
		}
		l.send(0, datagram(1500-e.bytes, true))
		fits, h := l.out(g.nic)
		if h.End-h.L3 != 1500 {
			t.Errorf("%s: %d bytes", e.vip, h.End-h.L3)
		}
		l.send(0, datagram(1500-e.bytes+1, true))
		frame, _ := l.out(g.nic)
		message := headertest.IP(frame)[ipBytes:]
		if mtu := int(binary.BigEndian.Uint16(message[6:])); mtu != 1500-e.bytes {
			t.Errorf("%s: the sender learns the MTU %d", e.vip, mtu)
		}
		l.wantDrop(reason.PacketTooBig, 1)

		src, _ := ends(&h.Tuple)
		l.send(0, headertest.ICMPError(backendOf(e.vip), src.Addr().String(), icmpType, code, 1400, fits, 100))
		frame, _ = l.out(g.nic)
		message = headertest.IP(frame)[ipBytes:]
		if mtu := int(binary.BigEndian.Uint16(message[6:])); mtu != 1400-e.bytes {
			t.Errorf("%s: the client learns the MTU %d of a router behind the gateway", e.vip, mtu)
		}
		if !v6 {
			l.send(0, datagram(1500, false))
			var parts []byte
			for range 2 {
				frame, ok := g.nic.Take(nil)
				if !ok {
					t.Fatalf("%s: no second fragment", e.vip)
				}
				parts = append(headertest.IP(frame)[20:], parts...) // the first fragment is sent last
			}
			if len(parts) != 1480+28 || !bytes.Equal(parts[8:8+28], wantDatagramHeader(e.client, e.vip)) {
				t.Errorf("fragments have %d bytes %.60x", len(parts), parts)
			}
		}
		l.nothing(g.nic, g.host)
	}
}

func backendOf(vip string) string {
	if netip.MustParseAddrPort(vip).Addr().Is6() {
		return backend6
	}
	return backend4
}

// TestProxyDatagramFragment: a fragment cannot get a header.
func TestProxyDatagramFragment(t *testing.T) {
	l := newLab(t, labConfig{edit: proxiedDatagrams})
	g := l.workers[0]
	first := headertest.UDP(datagramEnds[0].client, datagramEnds[0].vip, string(make([]byte, 64)))
	frame := first.Bytes()
	binary.BigEndian.PutUint16(frame[14+6:], 0x2000)
	fixIPv4(frame)
	g.nic.Inject(frame)
	l.step(time.Microsecond)
	l.nothing(g.nic, g.host)
	l.wantDrop(reason.ProxyDatagram, 1)
}

// fixIPv4 writes the checksum of an IPv4 header without options.
func fixIPv4(frame []byte) {
	ip := frame[14 : 14+20]
	ip[10], ip[11] = 0, 0
	sum := uint32(0)
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum))
}

// TestProxyDatagramAfterRestart: while no process runs, the client's frontend goes from a Service
// with the PROXY protocol to one without, or back, that has the same pod. The client's next
// datagram is as the new one wants it.
func TestProxyDatagramAfterRestart(t *testing.T) {
	for _, e := range datagramEnds {
		for _, was := range []bool{false, true} {
			table := restarts(t)
			for _, on := range []bool{was, !was} {
				c := labConfig{table: table()}
				if on {
					c.edit = proxiedDatagrams
				}
				l := newLab(t, c)
				l.send(0, headertest.UDP(e.client, e.vip, "question"))
				frame, _ := l.out(l.workers[0].nic)
				if got := isHeader(frame); got != on {
					t.Errorf("%s, first with a header %v: now %v, want %v", e.vip, was, got, on)
				}
			}
		}
	}
}

// TestProxyDatagramsSwitched: a flow in use gets or loses its header as soon as its service port
// gets or loses the PROXY protocol, also if the frontend did not exist for a time.
func TestProxyDatagramsSwitched(t *testing.T) {
	for _, removed := range []bool{false, true} {
		l := newLab(t, labConfig{})
		e := datagramEnds[0]
		key := services.FrontendKey{Addr: addr(vip4), Port: 53, Proto: header.ProtoUDP}
		f, _ := l.handle.Load().FrontendByKey(key)
		for i := range 6 {
			on := i%2 == 1
			svc, next := *f.Service, *f
			svc.ProxyProtocol, next.Service = on, &svc
			if removed {
				l.publish(func(b *services.Builder) { b.DeleteFrontend(key) })
			}
			l.publish(func(b *services.Builder) { b.SetService(&svc); b.SetFrontend(&next) })
			for n := range 5 {
				l.send(0, headertest.UDP(e.client, e.vip, "question"))
				frame, h := l.out(l.workers[0].nic)
				if got := datagramOf(frame); isHeader(got) != on {
					t.Errorf("switch %d, datagram %d: the backend got %x", i, n, got)
				}
				src, dst := ends(&h.Tuple)
				l.send(0, headertest.UDP(dst.String(), src.String(), "answer"))
				l.out(l.workers[0].nic)
			}
		}
	}
}
