package nat_test

import (
	"encoding/binary"
	"testing"

	"sluice.dev/sluice/nat"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
)

// TestBuildReset: sequence and acknowledgement numbers follow RFC 9293 section 3.10.7.1.
func TestBuildReset(t *testing.T) {
	for _, tt := range []struct {
		name     string
		packet   *headertest.Packet
		flags    uint8
		seq, ack uint32
	}{
		{"with an ACK", headertest.TCP("198.51.100.7:1", "203.0.113.1:80", headertest.ACK),
			headertest.RST, 0x05060708, 0},
		{"IPv6", headertest.TCP("[2001:db8::7]:1", "[2001:db8::1]:80", headertest.ACK),
			headertest.RST, 0x05060708, 0},
		{"a SYN and its data", headertest.TCP("198.51.100.7:1", "203.0.113.1:80", headertest.SYN),
			headertest.RST | headertest.ACK, 0, 0x01020304 + 1 + 5},
	} {
		tt.packet.Payload, tt.packet.Seq, tt.packet.Ack = []byte("12345"), 0x01020304, 0x05060708
		tt.packet.TCPOptions = []byte{1, 1, 1, 1, 1}
		orig := tt.packet.Bytes()
		var p header.Packet
		header.Parse(orig, &p)
		dst := make([]byte, 128)
		n, ok := nat.BuildReset(dst, orig, &p, 64)
		if !ok {
			t.Errorf("%s: none", tt.name)
			continue
		}
		if err := headertest.Verify(dst[:n]); err != nil {
			t.Errorf("%s: %x: %v", tt.name, dst[:n], err)
		}
		var out header.Packet
		header.Parse(dst[:n], &out)
		seq, ack := binary.BigEndian.Uint32(dst[out.L4+4:]), binary.BigEndian.Uint32(dst[out.L4+8:])
		if out.Tuple != p.Tuple.Reverse() || out.TCPFlags != tt.flags || seq != tt.seq || ack != tt.ack {
			t.Errorf("%s: %v, flags %x, seq %x, ack %x", tt.name, out.Tuple, out.TCPFlags, seq, ack)
		}
		if _, ok := nat.BuildReset(dst[:n-1], orig, &p, 64); ok {
			t.Errorf("%s: built without room", tt.name)
		}
		p.TCPFlags |= header.TCPRST
		if _, ok := nat.BuildReset(dst, orig, &p, 64); ok {
			t.Errorf("%s: an RST was answered", tt.name)
		}
	}
}
