package fastpath_test

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
	"sluice.dev/sluice/test/bed/garbage"
)

// TestTunnelGarbage: packets of all classes, most of them mutated, come for a direct Service. Each
// leaves in a tunnel as it came, with one hop less, or as an answer to its sender, or is dropped
// with a reason.
func TestTunnelGarbage(t *testing.T) {
	packets := 60_000
	if testing.Short() {
		packets = 15_000
	}
	l := tunnelLab(t, labConfig{frameSize: garbageFrame, flows: 1 << 14}, node1, node2, node61)
	g := l.workers[0]
	var flows []*garbage.Flow
	for port := range uint16(8) {
		for _, k := range []struct {
			proto       uint8
			client, vip string
		}{{header.ProtoTCP, client4, join(vip4, 80)}, {header.ProtoUDP, client4, join(vip4, 53)},
			{header.ProtoTCP, client6, join(vip6, 80)}, {header.ProtoUDP, client6, join(vip6, 53)}} {
			f := &garbage.Flow{Proto: k.proto, VIP: netip.MustParseAddrPort(k.vip),
				Client: netip.MustParseAddrPort(join(k.client, 40000+port))}
			f.Server, f.SNAT = f.VIP, f.Client // what the node sends to the client
			flows = append(flows, f)
		}
	}
	var places []netip.Addr
	for _, a := range []string{vip4, vip6, client4, client6, snat4, snat6, node1, node61} {
		places = append(places, netip.MustParseAddr(a))
	}
	source := garbage.New(1, places...)
	source.Aim(flows)
	tunnelled, answers := 0, 0
	var in [][]byte
	for range packets / 16 {
		in = in[max(0, len(in)-16*64):] // fragments wait for a second
		for range 16 {
			f := source.Next()
			if len(f.Bytes) > 0 && g.nic.Inject(f.Bytes) {
				in = append(in, f.Bytes)
			}
		}
		l.step(20 * time.Millisecond)
		for {
			frame, ok := g.nic.Take(nil)
			if !ok {
				break
			}
			if l.tunnelsOneOf(frame, in) {
				tunnelled++
			} else {
				answers++
			}
		}
		for {
			if _, ok := g.host.Take(nil); !ok {
				break
			}
		}
	}
	if tunnelled < packets/20 || answers == 0 {
		t.Errorf("%d of %d packets left in tunnels, %d answers", tunnelled, packets, answers)
	}
	t.Logf("%d of %d packets left in tunnels, %d answers, drops %v", tunnelled, packets, answers, l.drops())
}

// tunnelsOneOf checks a sent frame. It reports whether the frame is in a tunnel; the packet in it
// must be one of in.
func (l *lab) tunnelsOneOf(frame []byte, in [][]byte) bool {
	l.t.Helper()
	var outer header.Packet
	if r := header.Parse(frame, &outer); r != reason.None {
		l.t.Fatalf("sent frame %x does not parse: %v", frame, r)
	}
	if outer.Tuple.Proto != header.ProtoUDP || outer.Tuple.DstPort != labTunnel.Port {
		return false
	}
	if !outer.Tuple.V6 { // over IPv6 Verify wants a UDP checksum
		if err := headertest.Verify(frame); err != nil && !bytes.Contains([]byte(err.Error()), []byte("ICMP")) {
			l.t.Fatalf("sent frame %x: %v", frame, err)
		}
	}
	got := frame[outer.L4+header.UDPBytes+8+header.EthernetBytes : outer.End]
	for _, f := range in {
		if ip := headertest.IP(f); len(ip) >= len(got) && sameButHop(got, ip[:len(got)]) {
			return true
		}
	}
	l.t.Fatalf("sent %x, which did not come", got)
	return true
}

// sameButHop reports whether an IP packet is another one after a hop.
func sameButHop(got, sent []byte) bool {
	want := bytes.Clone(sent)
	if want[0]>>4 == 6 {
		want[7]--
		return bytes.Equal(got, want)
	}
	want[8]--
	want[10], want[11] = got[10], got[11] // verified
	return bytes.Equal(got, want)
}
