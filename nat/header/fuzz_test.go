package header_test

import (
	"bytes"
	"slices"
	"testing"

	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
)

// FuzzParse: for any bytes, Parse reads no byte outside the frame (the slice has no capacity beyond
// it), writes none, returns the same result for any former contents of Packet, agrees with the
// reference, and returns only offsets inside the frame.
func FuzzParse(f *testing.F) {
	for _, frame := range corpus() {
		f.Add(frame, false)
		f.Add(frame, true)
	}
	f.Fuzz(func(t *testing.T, data []byte, seal bool) {
		frame := slices.Clip(slices.Clone(data))
		if seal && len(frame) >= 34 && frame[12] == 0x08 && frame[13] == 0 {
			headertest.SealIPv4(frame) // otherwise the fuzzer rarely passes the checksum
		}
		before := slices.Clone(frame)
		agree(t, "fuzz", frame)
		var p header.Packet
		drop := header.Parse(frame, &p)
		again := header.Packet{Tuple: header.Tuple{SrcPort: 9, V6: true}, VLANs: 2, Fragment: header.LaterFragment}
		if header.Parse(frame, &again) != drop || again != p {
			t.Fatalf("not the same twice: %+v, %+v", p, again)
		}
		if !bytes.Equal(frame, before) {
			t.Fatal("the frame changed")
		}
		if drop == reason.None {
			within(t, frame, &p)
		}
	})
}

// within checks the order of offsets, and the values computed from them.
func within(t *testing.T, frame []byte, p *header.Packet) {
	if p.L3 < header.EthernetBytes || p.L4 < p.L3+header.IPv4Bytes || p.End < p.L4 || int(p.End) > len(frame) {
		t.Fatalf("offsets %d, %d, %d in %d bytes", p.L3, p.L4, p.End, len(frame))
	}
	if p.Fragment != header.LaterFragment && p.End-p.L4 < 8 {
		t.Fatalf("%d bytes of transport", p.End-p.L4)
	}
	if p.Tuple.V6 == p.Tuple.Src.Is4() || p.Tuple.V6 == p.Tuple.Dst.Is4() {
		t.Fatalf("families %+v", p.Tuple)
	}
	if !header.Unicast(&p.Tuple.Src) || !header.Unicast(&p.Tuple.Dst) {
		t.Fatalf("not unicast: %+v", p.Tuple)
	}
	if p.Fragment != header.NotFragment && uint32(p.FragmentOffset)+uint32(p.FragmentBytes()) > 65535 {
		t.Fatalf("%d bytes at %d", p.FragmentBytes(), p.FragmentOffset)
	}
	header.ChecksumICMP(frame, p)
}

// FuzzIPv4Options: any 40 bytes of options with a right checksum.
func FuzzIPv4Options(f *testing.F) {
	for _, options := range [][]byte{
		{}, {0}, {1, 1, 1, 1}, {131, 3, 4}, {137, 7, 4, 1, 2, 3, 4}, {7, 39, 4}, {68, 4, 5, 0},
		{148, 4, 0, 0}, {7, 0}, {7, 1}, {7, 5, 0, 0}, {1, 1, 1, 7}, {0, 131, 3, 4}, bytes.Repeat([]byte{1}, 40),
	} {
		f.Add(options)
	}
	f.Fuzz(func(t *testing.T, options []byte) {
		frame := tcp(func(p *headertest.Packet) { p.Options = options[:min(len(options), 40)] })
		agree(t, "fuzz", frame)
		var p header.Packet
		switch drop := header.Parse(frame, &p); drop {
		case reason.None:
			if err := headertest.Verify(frame); err != nil {
				t.Fatal(err)
			}
		case reason.IPv4Header, reason.IPv4SourceRoute:
		default:
			t.Fatalf("dropped as %v", drop)
		}
	})
}
