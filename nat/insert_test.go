package nat_test

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"sluice.dev/sluice/nat"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
)

// sackBlocks reads the SACK blocks of some options, and the other options without NOPs.
func sackBlocks(o []byte) (blocks [][2]uint32, others [][]byte) {
	for len(o) > 0 && o[0] != 0 {
		if o[0] == 1 {
			o = o[1:]
			continue
		}
		if len(o) < 2 || o[1] < 2 || int(o[1]) > len(o) {
			return blocks, append(others, o)
		}
		option := o[:o[1]]
		o = o[o[1]:]
		if option[0] != 5 || len(option)%8 != 2 {
			others = append(others, option)
			continue
		}
		for at := 2; at < len(option); at += 8 {
			left, right := binary.BigEndian.Uint32(option[at:]), binary.BigEndian.Uint32(option[at+4:])
			blocks = append(blocks, [2]uint32{left, right})
		}
	}
	return blocks, others
}

// wantBlocks are the blocks that the client must get.
func wantBlocks(blocks [][2]uint32, i *nat.Insertion) (want [][2]uint32) {
	for _, b := range blocks {
		inside := func(n uint32) bool { return n-i.First <= i.Bytes }
		switch {
		case !i.Acked || inside(b[1]):
		case inside(b[0]):
			want = append(want, [2]uint32{i.First, b[1] - i.Bytes})
		default:
			want = append(want, [2]uint32{b[0] - i.Bytes, b[1] - i.Bytes})
		}
	}
	return want
}

// FuzzShiftSACK: any options of a backend's segment. SACK blocks are translated or removed, the
// other options stay in order, the checksum keeps its fault, and the length stays.
func FuzzShiftSACK(f *testing.F) {
	f.Add([]byte{1, 1, 5, 10, 0, 0, 0, 100, 0, 0, 0, 200}, uint32(1), true)
	f.Add([]byte{1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8, 1, 1, 5, 18, 0, 0, 0, 1, 0, 0, 0, 29, 0, 0, 0, 60, 0, 0, 0, 90},
		uint32(1), true)
	f.Add([]byte{5, 10, 0, 0, 0, 100, 0, 0, 0, 200, 1, 0}, uint32(1<<31), false)
	f.Add([]byte{2, 4, 5, 180, 4, 2, 5}, uint32(7), true)
	f.Fuzz(func(t *testing.T, options []byte, first uint32, acked bool) {
		p := headertest.TCP("10.0.1.11:8080", "10.0.1.2:20000", headertest.ACK)
		p.TCPOptions, p.Ack = options[:min(len(options), 40)], first+1000
		frame := p.Bytes()
		frame[14+20+16] ^= byte(first) // a checksum may be wrong
		var h header.Packet
		if r := header.Parse(frame, &h); r != reason.None {
			t.Fatal(r)
		}
		before := bytes.Clone(frame)
		i := nat.Insertion{First: first, Bytes: 28, Sent: true, Acked: acked}
		nat.ShiftToClient(frame, &h, &i)
		end := 14 + 20 + int(frame[14+20+12]>>4)*4
		had, hadOthers := sackBlocks(before[14+20+20 : end])
		got, others := sackBlocks(frame[14+20+20 : end])
		if want := wantBlocks(had, &i); !slices.Equal(got, want) {
			t.Errorf("%x became %x: blocks %x, want %x", before[54:end], frame[54:end], got, want)
		}
		if !slices.EqualFunc(others, hadOthers, bytes.Equal) {
			t.Errorf("other options %x became %x", hadOthers, others)
		}
		if ack := binary.BigEndian.Uint32(frame[14+20+8:]); ack != first+1000-28 {
			t.Errorf("ACK %d", ack)
		}
		ip, transport := faults(frame, &h)
		wantIP, wantTransport := faults(before, &h)
		if ip != wantIP || transport != wantTransport {
			t.Errorf("the checksum is wrong by %d, was by %d", transport, wantTransport)
		}
	})
}

// TestToClient: each number that a backend may acknowledge, before and after it has acknowledged
// the header.
func TestToClient(t *testing.T) {
	const bytes = 28
	first := uint32(0xfffffff0)
	for _, tt := range []struct {
		name        string
		sent, acked bool
		seq, want   uint32
	}{
		{"not sent", false, false, first, first},
		{"nothing of the header", true, false, first, first},
		{"a part", true, false, first + 10, first},
		{"all of it", true, false, first + bytes, first},
		{"a byte more", true, false, first + bytes + 1, first + 1},
		{"the SYN", true, false, first - 1, first - 1},
		{"later", true, true, first + 1000, first + 1000 - bytes},
		{"the same numbers again", true, true, first + 5, first + 5 - bytes},
	} {
		i := nat.Insertion{First: first, Bytes: bytes, Sent: tt.sent, Acked: tt.acked}
		if got := i.ToClient(tt.seq); got != tt.want {
			t.Errorf("%s: %#x becomes %#x, want %#x", tt.name, tt.seq, got, tt.want)
		}
	}
}

// TestStripOpening: a SYN loses its data and its Fast Open options, and nothing else.
func TestStripOpening(t *testing.T) {
	for _, ends := range [][2]string{{"198.51.100.7:1", "203.0.113.10:80"}, {"[2001:db8::7]:1", "[2001:db8::a]:80"}} {
		p := headertest.TCP(ends[0], ends[1], headertest.SYN)
		p.TCPOptions = []byte{2, 4, 5, 180, 34, 6, 1, 2, 3, 4, 254, 6, 0xf9, 0x89, 9, 9, 254, 4, 1, 2, 3, 3, 7}
		p.Payload = []byte("odd")
		frame := p.Bytes()
		var h header.Packet
		header.Parse(frame, &h)
		frame = frame[:nat.StripOpening(frame, &h)]
		want := headertest.TCP(ends[0], ends[1], headertest.SYN)
		want.TCPOptions = []byte{2, 4, 5, 180, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 254, 4, 1, 2, 3, 3, 7}
		if err := headertest.Verify(frame); err != nil || !bytes.Equal(frame, want.Bytes()) {
			t.Errorf("%x, want %x: %v", frame, want.Bytes(), err)
		}
	}
}
