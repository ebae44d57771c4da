package nat_test

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"slices"
	"testing"

	"sluice.dev/sluice/nat"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
)

// TestTranslatePlain: the result equals, byte for byte, the result of DecrementTTL and Translate,
// for random tuples and every kind of checksum: right, wrong, either form of zero, and checksums
// that become zero.
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
			binary.BigEndian.PutUint16(sum, d.L4) // ^(^x + x) is a form of zero
		}
		want := slices.Clone(window)
		nat.DecrementTTL(want[:len(frame)], p)
		nat.Translate(want[:len(frame)], p, &to, d)

		copy(want, "to and from!")
		m := header.NewMemory(window)
		l := rewriteOf(p, &to, d)
		nat.TranslatePlain(&m, []header.Frame{{Len: uint32(len(frame))}}, []header.Rewrite{l}, nil, false)
		if !bytes.Equal(window, want) {
			t.Fatalf("%x\nwant\n%x\nfrom\n%x", window, want, frame)
		}
	}
}

// rewriteOf returns the rewrite of a packet to a tuple, with MAC addresses of its own.
func rewriteOf(p *header.Packet, to *header.Tuple, d header.Delta) header.Rewrite {
	l := header.Rewrite{MACs: (*[12]byte)([]byte("to and from!")), Proto: uint32(to.Proto)}
	l.Ports = bits.ReverseBytes32(uint32(to.SrcPort)<<16 | uint32(to.DstPort))
	l.IP, l.L4 = bits.ReverseBytes16(d.IP), bits.ReverseBytes16(d.L4)
	if !p.Tuple.V6 {
		l.Addrs = &[]uint64{
			uint64(binary.BigEndian.Uint32(to.Dst[12:]))<<32 | uint64(binary.BigEndian.Uint32(to.Src[12:])),
		}[0]
		return l
	}
	l.Family, l.Addrs = header.PlainIPv6, &[]uint64{word(to.Dst[:8]), word(to.Dst[8:]), word(to.Src[:8]),
		word(to.Src[8:])}[0]
	return l
}

func word(b []byte) uint64 { return binary.BigEndian.Uint64(b) }

// TestTranslatePlainGroup: a group has packets of both families and protocols, anywhere in a
// memory. Each is rewritten as by DecrementTTL and Translate, and no other byte is written.
func TestTranslatePlainGroup(t *testing.T) {
	const room = 2 * header.Window6Bytes
	r := random(t)
	for range 2000 {
		memory := make([]byte, 16*room)
		for i := range memory {
			memory[i] = byte(r.Uint32())
		}
		want := slices.Clone(memory)
		frames, list := make([]header.Frame, r.IntN(17)), make([]header.Rewrite, 17)
		for i := range frames {
			v6 := r.IntN(2) == 0
			frame := headertest.TCP(ends[v6].client, ends[v6].vip, headertest.ACK).Bytes()
			if r.IntN(2) == 0 {
				frame = headertest.UDP(ends[v6].client, ends[v6].vip, "even load!").Bytes()
			}
			p := mustParse(t, frame)
			to := tuple(ends[v6].source, ends[v6].backend, p.Tuple.Proto)
			to.SrcPort, to.DstPort = uint16(r.Uint32()), uint16(r.Uint32())
			d := header.DeltaOf(&p.Tuple, &to)
			list[i] = rewriteOf(p, &to, d)
			frames[i] = header.Frame{Addr: uint64(i*room + r.IntN(header.Window6Bytes)), Len: uint32(len(frame))}
			copy(memory[frames[i].Addr:], frame)
			nat.DecrementTTL(frame, p)
			nat.Translate(frame, p, &to, d)
			copy(frame, "to and from!")
			copy(want[frames[i].Addr:], frame)
		}
		others := make([]header.Frame, r.IntN(20))
		for i := range others {
			others[i].Addr = r.Uint64() // is prefetched, not read
		}
		m := header.NewMemory(memory)
		if nat.TranslatePlain(&m, frames, list, others, r.IntN(2) == 0); !bytes.Equal(memory, want) {
			t.Fatalf("%d packets:\n%x\nwant\n%x", len(frames), memory, want)
		}
	}
}

func TestTranslatePlainAllocatesNothing(t *testing.T) {
	memory := make([]byte, header.Window6Bytes)
	frame := headertest.TCP(ends[false].client, ends[false].vip, headertest.ACK).Bytes()
	copy(memory, frame)
	p := mustParse(t, frame)
	m, frames := header.NewMemory(memory), []header.Frame{{Len: uint32(len(frame))}}
	list := []header.Rewrite{rewriteOf(p, &p.Tuple, header.Delta{})}
	if n := testing.AllocsPerRun(100, func() { nat.TranslatePlain(&m, frames, list, frames, true) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
