package headertest

import (
	"slices"
	"strings"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

func samples() map[string]*Packet {
	udp := UDP("192.0.2.1:40000", "198.51.100.7:5000", "hello")
	vlan := TCP("192.0.2.1:40000", "198.51.100.7:80", SYN|ACK)
	vlan.VLAN, vlan.TCPOptions, vlan.Options = []uint16{1, 2}, []byte{2, 4, 5, 0xb4}, []byte{1}
	chain := TCP("[2001:db8::1]:40000", "[2001:db8:1::7]:80", ACK)
	chain.Extensions = []Extension{{Type: Destination, Data: []byte{1, 4, 0, 0, 0, 0}}}
	return map[string]*Packet{
		"udp4": udp, "tcp4": vlan, "tcp6": chain,
		"udp6":   UDP("[2001:db8::1]:40000", "[2001:db8:1::7]:5000", "hello"),
		"sctp4":  SCTP("192.0.2.1:40000", "198.51.100.7:9", 1),
		"sctp6":  SCTP("[2001:db8::1]:40000", "[2001:db8:1::7]:9", 10),
		"echo4":  Echo("192.0.2.1", "198.51.100.7", 1, 2, false),
		"echo6":  Echo("2001:db8::1", "2001:db8:1::7", 1, 2, true),
		"error4": ICMPError("203.0.113.9", "192.0.2.1", 3, 3, 0, udp.Bytes(), -1),
		"error6": ICMPError("2001:db8:9::9", "2001:db8::1", 1, 4, 0, chain.Bytes(), -1),
	}
}

// gopacket decodes the built packets to the same ends and consistent lengths.
func TestBytesDecode(t *testing.T) {
	for name, p := range samples() {
		frame := p.Bytes()
		pkt := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default)
		if err := pkt.ErrorLayer(); err != nil {
			t.Errorf("%s: %v", name, err.Error())
			continue
		}
		src, dst := pkt.NetworkLayer().NetworkFlow().Endpoints()
		if src.String() != p.Src.String() || dst.String() != p.Dst.String() {
			t.Errorf("%s: from %v to %v", name, src, dst)
		}
		if err := Verify(frame); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Verify detects a change of any byte that a checksum covers.
func TestVerifyDetectsEachChangedByte(t *testing.T) {
	for name, p := range samples() {
		frame := p.Bytes()
		ip := len(frame) - len(IP(frame))
		for at := ip; at < len(frame); at++ {
			v6 := frame[ip]>>4 == 6
			if v6 && at-ip < 8 { // traffic class, flow label, length, next header, hop limit
				continue
			}
			if v6 && name != "udp6" && name != "echo6" && name != "error6" && at-ip >= 40 && at-ip < 48 {
				continue // the extension header of tcp6
			}
			if name == "sctp6" && at-ip < 40 {
				continue // no pseudo-header
			}
			f := slices.Clone(frame)
			f[at] ^= 0x10
			if Verify(f) == nil {
				t.Errorf("%s: byte %d changed without an error", name, at-ip)
			}
		}
	}
}

// The check value of CRC32c, and its place in a packet according to gopacket.
func TestSCTPChecksum(t *testing.T) {
	if got := crc32c([]byte("123456789")); got != 0xe3069283 {
		t.Errorf("check value %#08x", got)
	}
	frame := SCTP("192.0.2.1:40000", "198.51.100.7:9", 1).Bytes()
	sctp, ok := gopacket.NewPacket(frame, layers.LayerTypeEthernet,
		gopacket.Default).Layer(layers.LayerTypeSCTP).(*layers.SCTP)
	if !ok || sctp.SrcPort != 40000 || sctp.DstPort != 9 || sctp.VerificationTag != 0 {
		t.Fatalf("read as %+v", sctp)
	}
	buffer := gopacket.NewSerializeBuffer()
	if _, err := buffer.AppendBytes(len(sctp.Payload)); err != nil {
		t.Fatal(err)
	}
	copy(buffer.Bytes(), sctp.Payload)
	if err := sctp.SerializeTo(buffer, gopacket.SerializeOptions{ComputeChecksums: true}); err != nil {
		t.Fatal(err)
	}
	if got := buffer.Bytes(); !slices.Equal(got, frame[34:]) {
		t.Errorf("gopacket writes\n%x, the builder\n%x", got, frame[34:])
	}
}

func TestVerifyKnowsUDPWithoutChecksum(t *testing.T) {
	for _, p := range []*Packet{
		UDP("192.0.2.1:40000", "198.51.100.7:5000", "hello"),
		UDP("[2001:db8::1]:40000", "[2001:db8:1::7]:5000", "hello"),
	} {
		p.NoChecksum = true
		if err := Verify(p.Bytes()); err != nil {
			t.Errorf("to %v: %v", p.Dst, err)
		}
	}
}

// The fragments of Split are valid and of the requested size, and together have the datagram's
// payload.
func TestSplit(t *testing.T) {
	for _, p := range []*Packet{
		UDP("192.0.2.1:40000", "198.51.100.7:5000", strings.Repeat("x", 300)),
		UDP("[2001:db8::1]:40000", "[2001:db8:1::7]:5000", strings.Repeat("x", 300)),
	} {
		whole := p.Bytes()
		var payload []byte
		for i, f := range Split(whole, 104, 7) {
			if err := Verify(f); err != nil {
				t.Errorf("fragment %d: %v", i, err)
			}
			ip := IP(f)
			header := 20
			if ip[0]>>4 == 6 {
				header = 48
			}
			payload = append(payload, ip[header:]...)
			if n := len(ip) - header; n != 104 && i < 2 {
				t.Errorf("fragment %d carries %d bytes", i, n)
			}
		}
		if !strings.HasSuffix(string(whole), string(payload)) || len(payload) != 308 {
			t.Errorf("%d bytes in the fragments", len(payload))
		}
	}
}
