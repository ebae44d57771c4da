package nat_test

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"sluice.dev/sluice/nat"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
)

// TestTranslatePlain: byte for byte what DecrementTTL and Translate do, for random
// tuples, and for every kind of checksum: right, wrong, either zero, and those that come out as zero.
func TestTranslatePlain(t *testing.T) {
	r := random(t)
	for n := range 200_000 {
		v6, udp := n&1 != 0, n&2 != 0
		in, out := ends[v6], ends[v6]
		frame := headertest.TCP(in.client, in.vip, headertest.ACK).Bytes()
		field := 16
		if udp {
			frame = headertest.UDP(in.client, in.vip, "even load!").Bytes()
			field = 6
		}
		window := make([]byte, header.Window6Bytes)
		copy(window, frame)
		p := mustParse(t, window[:len(frame)])
		to := tuple(out.source, out.backend, p.Tuple.Proto)
		to.SrcPort, to.DstPort = uint16(r.Uint32()), uint16(r.Uint32())
		to.Src[15], to.Dst[15], to.Dst[14] = byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32())
		d := header.DeltaOf(&p.Tuple, &to)
		sum := window[int(p.L4)+field:]
		switch r.IntN(5) {
		case 0:
			binary.BigEndian.PutUint16(sum, uint16(r.Uint32()))
		case 1:
			binary.BigEndian.PutUint16(sum, 0)
		case 2:
			binary.BigEndian.PutUint16(sum, 0xffff)
		case 3:
			binary.BigEndian.PutUint16(sum, d.L4) // ^(^x + x) is a zero
		}
		want := slices.Clone(window)
		nat.DecrementTTL(want[:len(frame)], p)
		nat.Translate(want[:len(frame)], p, &to, d)

		ports := uint32(to.SrcPort)<<16 | uint32(to.DstPort)
		if v6 {
			addrs := [4]uint64{word(to.Dst[:8]), word(to.Dst[8:]), word(to.Src[:8]), word(to.Src[8:])}
			nat.TranslatePlain6((*[header.Window6Bytes]byte)(window), &addrs, ports, d)
		} else {
			addrs := uint64(binary.BigEndian.Uint32(to.Src[12:]))<<32 | uint64(binary.BigEndian.Uint32(to.Dst[12:]))
			nat.TranslatePlain4((*[header.Window4Bytes]byte)(window), addrs, ports, d)
		}
		if !bytes.Equal(window, want) {
			t.Fatalf("%x\nwant\n%x\nfrom\n%x", window, want, frame)
		}
	}
}

func word(b []byte) uint64 { return binary.BigEndian.Uint64(b) }
