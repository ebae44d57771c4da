package header_test

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"testing"

	"sluice.dev/sluice/nat/checksum"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
)

// A segment of any length, in one part or cut in two at any place, verifies as good, and as wrong
// if any byte is changed.
func TestVerifyTCP(t *testing.T) {
	for _, ends := range [][2]string{
		{"192.0.2.1:40000", "198.51.100.7:80"}, {"[2001:db8::1]:40000", "[2001:db8:f::2]:80"},
	} {
		for payload := range 67 {
			segment := headertest.TCP(ends[0], ends[1], headertest.FIN|headertest.ACK)
			segment.Payload, segment.Padding = make([]byte, payload), 3
			for i := range segment.Payload {
				segment.Payload[i] = byte(i*37 + payload)
			}
			frame := segment.Bytes()
			var p header.Packet
			header.Parse(frame, &p)
			if got := header.VerifyTCP(frame, &p, 0); got != header.ChecksumGood {
				t.Fatalf("%s, payload of %d: %d", ends[0], payload, got)
			}
			for at := p.L4 + 20; at <= p.End; at++ {
				rest := checksum.Sum(frame[at:p.End])
				if (at-p.L4)&1 != 0 {
					rest = rest>>8 | rest<<8
				}
				if got := header.VerifyTCP(frame[:at], &p, rest); got != header.ChecksumGood {
					t.Fatalf("%s, payload of %d, cut at %d: %d", ends[0], payload, at, got)
				}
			}
			for at := p.L4; at < p.End; at++ {
				frame[at] ^= 0x20
				if got := header.VerifyTCP(frame, &p, 0); got != header.ChecksumWrong {
					t.Fatalf("%s, payload of %d, byte %d changed: %d", ends[0], payload, at, got)
				}
				frame[at] ^= 0x20
			}
		}
	}
}

func TestVerifySCTP(t *testing.T) {
	frame := headertest.SCTP("192.0.2.1:40000", "198.51.100.7:9", header.SCTPShutdown).Bytes()
	var p header.Packet
	header.Parse(frame, &p)
	b := append([]byte(nil), p.Transport(frame)...)
	field := b[8:12]
	sent := binary.LittleEndian.Uint32(field)
	clear(field)
	crc := crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))
	for _, c := range []struct {
		field uint32
		want  header.Checksum
	}{{sent, header.ChecksumGood}, {sent ^ 1, header.ChecksumWrong}, {0, header.ChecksumUnfinished}} {
		binary.LittleEndian.PutUint32(field, c.field)
		if got := header.VerifySCTP(b, crc); got != c.want {
			t.Errorf("field %#x: %d, want %d", c.field, got, c.want)
		}
	}
}

// BenchmarkVerifyTCP measures VerifyTCP for segments in the first-level cache.
func BenchmarkVerifyTCP(b *testing.B) {
	for family, ends := range map[string][2]string{
		"IPv4": {"192.0.2.1:40000", "198.51.100.7:80"}, "IPv6": {"[2001:db8::1]:40000", "[2001:db8:f::2]:80"},
	} {
		for _, payload := range []int{0, 1460} {
			b.Run(fmt.Sprintf("%s/payload=%d", family, payload), func(b *testing.B) {
				segment := headertest.TCP(ends[0], ends[1], headertest.FIN|headertest.ACK)
				segment.TCPOptions, segment.Payload = make([]byte, 12), make([]byte, payload)
				frame := segment.Bytes()
				var p header.Packet
				header.Parse(frame, &p)
				good := 0
				for b.Loop() {
					if header.VerifyTCP(frame, &p, 0) == header.ChecksumGood {
						good++
					}
				}
				if good != b.N {
					b.Error("not good")
				}
			})
		}
	}
}
