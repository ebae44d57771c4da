package stateless

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"sluice.dev/sluice/nat/checksum"
)

// everyTraffic is one of each kind of packets that there are.
func everyTraffic() map[string]Traffic {
	out := make(map[string]Traffic)
	for _, family := range []string{"IPv4", "IPv6"} {
		for _, p := range []Protocol{UDP, TCPSYN, ICMPEcho} {
			for vlans := range 3 {
				t := traffic4()
				t.Protocol, t.VLANs = p, []uint16{100, 4094}[:vlans]
				t.DestinationMAC, t.SourceMAC = net.HardwareAddr{2, 0, 0, 0, 0, 2}, net.HardwareAddr{2, 0, 0, 0, 0, 1}
				if family == "IPv6" {
					t.Sources.First, t.Destinations.First = netip.MustParseAddr("fd00:1234::ffff:fffa"),
						netip.MustParseAddr("fd00:5678::1")
					t.Sources.Count = 6 // no carry
				}
				if p == ICMPEcho {
					t.DestinationPorts = Ports{}
				}
				t.Flows, t.Sizes = 7, IMIX()
				name := fmt.Sprintf("%s %v, %d tags", family, p, vlans)
				out[name] = t
				if p != TCPSYN {
					t.Fragments = 3
					out[name+", fragments"] = t
				}
			}
		}
	}
	return out
}

// TestEveryPacketIsValid has an independent decoder read what the writer writes, and
// an independent sum check the checksums.
func TestEveryPacketIsValid(t *testing.T) {
	for name, traffic := range everyTraffic() {
		t.Run(name, func(t *testing.T) {
			traffic.setDefaults()
			must(t, traffic.check())
			for _, prepared := range []bool{true, false} {
				w := newWriter(&traffic, 7, 0, 1)
				frame := make([]byte, maxFrameBytes)
				if prepared {
					w.prepare(frame)
				} else {
					for i := range frame {
						frame[i] = 0xa5 // what a frame has before
					}
				}
				fragments := max(traffic.Fragments, 1)
				var whole []byte
				for i := range 60 * fragments {
					n := w.next(frame, uint64(0x123456789abc+i))
					k := i % fragments
					if k == 0 {
						whole = nil
					}
					whole = append(whole, checkPacket(t, &traffic, frame[:n], w, k)...)
					if k == fragments-1 {
						checkTransport(t, &traffic, frame[:n], whole)
					}
				}
			}
		})
	}
}

// checkPacket checks one frame and returns its IP payload.
func checkPacket(t *testing.T, traffic *Traffic, b []byte, w *writer, k int) []byte {
	t.Helper()
	p := gopacket.NewPacket(b, layers.LayerTypeEthernet, gopacket.Default)
	vlans := 0
	for _, l := range p.Layers() {
		if v, ok := l.(*layers.Dot1Q); ok {
			if v.VLANIdentifier != traffic.VLANs[vlans] {
				t.Fatalf("tag %d is %d", vlans, v.VLANIdentifier)
			}
			vlans++
		}
	}
	if vlans != len(traffic.VLANs) {
		t.Fatalf("%d tags, want %d", vlans, len(traffic.VLANs))
	}
	var payload []byte
	later, more := k > 0, k < traffic.Fragments-1
	if ip, ok := p.NetworkLayer().(*layers.IPv4); ok {
		if checksum.Sum(ip.Contents) != 0xffff {
			t.Fatalf("IPv4 checksum %#x is wrong", ip.Checksum)
		}
		if int(ip.Length) != len(ip.Contents)+len(ip.Payload) || (int(ip.FragOffset) > 0) != later {
			t.Fatalf("length %d, fragment offset %d of fragment %d", ip.Length, ip.FragOffset, k)
		}
		if (ip.Flags&layers.IPv4MoreFragments != 0) != more ||
			(ip.Flags&layers.IPv4DontFragment != 0) != (traffic.Fragments <= 1) {
			t.Fatalf("flags %v of fragment %d", ip.Flags, k)
		}
		if traffic.Fragments > 1 && (ip.Id == 0 || int(ip.FragOffset)*8 != k*len(ip.Payload)) {
			t.Fatalf("fragment %d: id %d, offset %d", k, ip.Id, ip.FragOffset)
		}
		payload = ip.Payload
	} else {
		ip, ok := p.NetworkLayer().(*layers.IPv6)
		if !ok {
			t.Fatalf("no IP: %v", p)
		}
		if int(ip.Length) != len(ip.Payload) {
			t.Fatalf("IPv6 length %d of %d", ip.Length, len(ip.Payload))
		}
		payload = ip.Payload
		if f, ok := p.Layer(layers.LayerTypeIPv6Fragment).(*layers.IPv6Fragment); ok {
			if (f.FragmentOffset > 0) != later || f.Identification == 0 || f.MoreFragments != more ||
				int(f.FragmentOffset)*8 != k*(len(payload)-ip6FragmentBytes) {
				t.Fatalf("fragment offset %d, id %d of fragment %d", f.FragmentOffset, f.Identification, k)
			}
			payload = payload[ip6FragmentBytes:]
		}
	}
	at := w.layout.tag
	if later {
		at = w.layout.laterTag
	}
	tag, ok := readTag(b[at:])
	if !ok || tag.run != 7 || tag.flow >= uint32(traffic.Flows) || tag.nanos>>12 != 0x123456789abc>>12 {
		t.Fatalf("tag %+v, %v", tag, ok)
	}
	return payload
}

// checkTransport checks a whole datagram; b is its last frame.
func checkTransport(t *testing.T, traffic *Traffic, b, whole []byte) {
	t.Helper()
	p := gopacket.NewPacket(b, layers.LayerTypeEthernet, gopacket.NoCopy)
	var pseudo []byte
	proto := map[Protocol]layers.IPProtocol{UDP: layers.IPProtocolUDP, TCPSYN: layers.IPProtocolTCP,
		ICMPEcho: layers.IPProtocolICMPv4}[traffic.Protocol]
	if traffic.Sources.First.Is6() && traffic.Protocol == ICMPEcho {
		proto = layers.IPProtocolICMPv6
	}
	if proto != layers.IPProtocolICMPv4 {
		flow := p.NetworkLayer().NetworkFlow()
		pseudo = append(append(pseudo, flow.Src().Raw()...), flow.Dst().Raw()...)
		pseudo = append(pseudo, 0, byte(proto), byte(len(whole)>>8), byte(len(whole)))
	}
	if checksum.Add(checksum.Sum(pseudo), checksum.Sum(whole)) != 0xffff {
		t.Fatalf("checksum of %v over %d bytes is wrong", proto, len(whole))
	}
	switch proto {
	case layers.IPProtocolUDP:
		var udp layers.UDP
		must(t, udp.DecodeFromBytes(whole, gopacket.NilDecodeFeedback))
		if int(udp.Length) != len(whole) || udp.DstPort != 80 || udp.SrcPort < 1024 || udp.SrcPort > 1123 ||
			udp.Checksum == 0 {
			t.Fatalf("%+v", udp)
		}
	case layers.IPProtocolTCP:
		var tcp layers.TCP
		must(t, tcp.DecodeFromBytes(whole, gopacket.NilDecodeFeedback))
		if !tcp.SYN || tcp.ACK || tcp.DstPort != 80 || len(tcp.Payload) < tagBytes {
			t.Fatalf("%+v", tcp)
		}
	case layers.IPProtocolICMPv4:
		var icmp layers.ICMPv4
		must(t, icmp.DecodeFromBytes(whole, gopacket.NilDecodeFeedback))
		if icmp.TypeCode.Type() != layers.ICMPv4TypeEchoRequest || icmp.Id < 1024 {
			t.Fatalf("%+v", icmp)
		}
	default:
		if whole[0] != layers.ICMPv6TypeEchoRequest {
			t.Fatalf("ICMPv6 type %d", whole[0])
		}
	}
}
