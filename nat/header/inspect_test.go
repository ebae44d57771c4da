//go:build unix

package header_test

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"
	"unsafe"

	"sluice.dev/sluice/nat/checksum"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
)

const (
	plainBytes = unsafe.Sizeof(header.Plain{})
	maxStride  = plainBytes + 10*8
	largest    = 16 // frames of a group
)

// stage has all memory that Inspect reads and writes, each part guarded.
type stage struct {
	memory []byte
	m      header.Memory
	frames []header.Frame // largest frames, and as many ahead
	out    []byte

	queued int
	before []byte
	seen   [3]int // frames by family
}

func newStage(t testing.TB, memoryBytes int) *stage {
	const frames = 2 * largest
	b := headertest.Guarded(t, frames*int(unsafe.Sizeof(header.Frame{})))
	s := &stage{memory: headertest.Guarded(t, memoryBytes), out: headertest.Guarded(t, largest*int(maxStride))}
	for _, b := range [][]byte{b, s.memory} {
		for i := range b {
			b[i] = 0xa5 // so that the bytes next to a frame's length are not zero
		}
	}
	s.m = header.NewMemory(s.memory)
	s.frames = unsafe.Slice((*header.Frame)(unsafe.Pointer(&b[0])), frames)
	return s
}

// group returns a group of n frames, and the frames ahead of it, which follow it at the end of the
// guarded memory.
func (s *stage) group(n, ahead int) (frames, following []header.Frame) {
	all := s.frames[len(s.frames)-n-ahead:]
	return all[:n], all[n:]
}

// plainOf returns the result of Plain4 or Plain6 for a frame in memory.
func plainOf(memory []byte, f header.Frame) (p header.Plain, v6 bool) {
	p.Family = header.NotPlain
	if f.Addr > uint64(len(memory)-header.Window6Bytes) {
		return p, false
	}
	w4, w6 := (*[header.Window4Bytes]byte)(memory[f.Addr:]), (*[header.Window6Bytes]byte)(memory[f.Addr:])
	end, special := header.Plain4(w4, f.Len)
	if end != 0 {
		p.Family, p.Proto = header.PlainIPv4, uint32(header.PlainProto4(w4))
		p.Addr[0], p.Ports = header.PlainKey4(w4)
	} else if end, special = header.Plain6(w6, f.Len); end != 0 {
		p.Family, p.Proto = header.PlainIPv6, uint32(header.PlainProto6(w6))
		p.Addr[0], p.Addr[1], p.Addr[2], p.Addr[3], p.Ports = header.PlainKey6(w6)
	}
	if !special {
		p.End = end
	}
	return p, w6[12] == 0x86 && w6[13] == 0xdd
}

// inspector is Inspect, or its twin in Go.
type inspector func(m *header.Memory, frames, ahead []header.Frame, both bool, out *header.Plain, stride uintptr) (
	bytes uint64, v6 bool)

// agree checks that Inspect and its twin return the result of plainOf for each frame of a group,
// and write nothing else.
func (s *stage) agree(t *testing.T, frames, ahead []header.Frame, stride uintptr) {
	t.Helper()
	seen := s.seen
	s.agreeBy(t, (*header.Memory).InspectGo, frames, ahead, stride)
	s.seen = seen // count the same frames once
	s.agreeBy(t, (*header.Memory).Inspect, frames, ahead, stride)
}

func (s *stage) agreeBy(t *testing.T, inspect inspector, frames, ahead []header.Frame, stride uintptr) {
	t.Helper()
	size := int(stride)*(len(frames)-1) + int(plainBytes)
	out := s.out[len(s.out)-size:]
	for i := range out {
		out[i] = 0xa5
	}
	s.before = append(append(s.before[:0], s.memory...), out...)
	memoryBefore, outBefore := s.before[:len(s.memory)], s.before[len(s.memory):]
	all := frames[:len(frames)+len(ahead)]
	framesBefore := slices.Clone(all)
	both := len(frames)%2 != 0
	total, v6 := inspect(&s.m, frames, ahead, both, (*header.Plain)(unsafe.Pointer(&out[0])), stride)
	var wantTotal uint64
	wantV6 := false
	for i, f := range framesBefore[:len(frames)] {
		want, six := plainOf(memoryBefore, f)
		at := i * int(stride)
		got := *(*header.Plain)(unsafe.Pointer(&out[at]))
		switch s.seen[want.Family]++; got.Family {
		case header.PlainIPv4:
			clear(got.Addr[1:]) // undefined for IPv4
		case header.NotPlain:
			got = header.Plain{Family: got.Family, End: got.End}
		}
		if got != want {
			window := memoryBefore[min(f.Addr, uint64(len(s.memory))):]
			t.Fatalf("frame %d of %d at %#x, %d bytes: %+v, want %+v\n%x", i, len(frames), f.Addr, f.Len, got, want,
				window[:min(len(window), header.Window6Bytes)])
		}
		copy(outBefore[at:], out[at:at+int(plainBytes)])
		wantTotal += uint64(f.Len)
		wantV6 = wantV6 || six
	}
	if total != wantTotal || v6 != wantV6 {
		t.Fatalf("%d bytes, IPv6 %v, want %d, %v", total, v6, wantTotal, wantV6)
	}
	if !bytes.Equal(outBefore, out) {
		t.Fatalf("written outside of the results, which are %d bytes apart", stride)
	}
	if !bytes.Equal(memoryBefore, s.memory) || !slices.Equal(framesBefore, all) {
		t.Fatal("the frames changed")
	}
}

// between is the distance of queued frames: odd, so that they begin anywhere in a line.
const between = header.Window6Bytes + 1

// newQueue returns a stage for add.
func newQueue(t testing.TB) *stage {
	return newStage(t, (largest-1)*between+header.Window6Bytes)
}

// queue returns the frames of the largest group.
func (s *stage) queue() []header.Frame { return s.frames[len(s.frames)-largest:] }

// add queues a frame. When there are as many as in the largest group, it checks that all agree.
func (s *stage) add(t *testing.T, frame []byte, frameBytes uint32) {
	t.Helper()
	f := &s.queue()[s.queued]
	f.Addr, f.Len = uint64(s.queued*between), frameBytes
	window := s.memory[f.Addr:][:header.Window6Bytes]
	clear(window[copy(window, frame):])
	if s.queued++; s.queued == largest {
		s.flush(t)
	}
}

func (s *stage) flush(t *testing.T) {
	t.Helper()
	if s.queued > 0 {
		s.agree(t, s.queue()[:s.queued], nil, plainBytes)
		s.queued = 0
	}
}

// seal20 sets the right checksum for the first 20 bytes of an IPv4 header, even if the header has
// another length: then only its length is wrong.
func seal20(frame []byte) {
	ip := frame[header.EthernetBytes:][:header.IPv4Bytes]
	ip[10], ip[11] = 0, 0
	binary.BigEndian.PutUint16(ip[10:], ^checksum.Sum(ip))
}

// TestInspect puts mutated frames anywhere in a memory, some so near the end that no window fits,
// and inspects them in groups of all sizes.
func TestInspect(t *testing.T) {
	r := seeded(t)
	s := newStage(t, 1<<15)
	for i := range s.memory {
		s.memory[i] = byte(r.Uint32())
	}
	last := len(s.memory) - header.Window6Bytes
	samples := traffic()
	for range 10_000 {
		frames, ahead := s.group(1+r.IntN(largest), r.IntN(largest+1))
		for i := range frames[:cap(frames)] {
			frame := mutated(r, samples[r.IntN(len(samples))])
			f := &frames[:cap(frames)][i]
			f.Addr, f.Len = uint64(r.IntN(last+1)), uint32(len(frame))
			switch r.IntN(20) {
			case 0:
				f.Addr = uint64(last)
			case 1: // the whole header is inside, but not its window
				f.Addr = uint64(last + 1 + r.IntN(20))
			case 2:
				f.Addr = uint64(last + 1 + r.IntN(1<<13))
			case 3:
				f.Addr = -uint64(1 + r.IntN(1<<13)) // before the memory, if added to its address
			case 4:
				f.Addr = r.Uint64()
			case 5:
				f.Len = r.Uint32() // the sum of these exceeds 32 bits
			}
			if f.Addr < uint64(len(s.memory)) {
				copy(s.memory[f.Addr:], frame)
			}
		}
		s.agree(t, frames, ahead, plainBytes+uintptr(r.IntN(11)*8))
	}
	if n := s.seen[0] + s.seen[1] + s.seen[2]; slices.Min(s.seen[:]) < n/8 {
		t.Errorf("frames by family %v: too one-sided for this test", s.seen)
	}
}

// TestInspectChecksum searches for the right value of one word of an IPv4 header whose other words
// are given. For thousands of headers it tries the values that a sum with one carry too few or too
// many would accept or reject, and for some headers all values. Many words are 0 or 0xffff, so that
// sums carry twice or not at all.
func TestInspectChecksum(t *testing.T) {
	r := seeded(t)
	s := newQueue(t)
	sweeps := 48
	if testing.Short() {
		sweeps = 6
	}
	const headers = 6000
	any16 := func() uint16 { return []uint16{0, 0xffff, uint16(r.Uint32()), uint16(r.Uint32())}[r.IntN(4)] }
	frameBytes := uint32(header.EthernetBytes + 0xffff)
	for n := range headers {
		frame := headertest.UDP(client4, vip4, "").Bytes()
		ip := frame[header.EthernetBytes:]
		ip[1] = byte(any16())
		binary.BigEndian.PutUint16(ip[2:], max(any16(), uint16(len(ip))))
		ip[6] = byte(r.IntN(4)) << 6 // DF and the reserved bit, which may be set
		ip[8] = max(byte(any16()), 2)
		words := []int{4, 10, 12, 14, 16, 18}
		for _, at := range words {
			binary.BigEndian.PutUint16(ip[at:], any16())
		}
		if n%3 == 0 {
			// The sum of the double words becomes a multiple of 2^32 - 1: the one case in which
			// folding that to 16 bits carries.
			sum := uint64(0)
			for _, at := range []int{0, 4, 8, 16} {
				sum += uint64(binary.LittleEndian.Uint32(ip[at:]))
			}
			binary.LittleEndian.PutUint32(ip[12:], ^uint32(sum%(1<<32-1)))
		}
		at := words[r.IntN(len(words))]
		binary.BigEndian.PutUint16(ip[at:], 0)
		right := ^checksum.Sum(ip[:header.IPv4Bytes])
		try := func(v uint16) {
			binary.BigEndian.PutUint16(ip[at:], v)
			s.add(t, frame, frameBytes)
		}
		taken := s.seen[header.PlainIPv4]
		if n%(headers/sweeps) == 0 {
			for v := range 1 << 16 {
				try(uint16(v))
			}
			want := 1
			if right == 0 || right == 0xffff { // equal in ones' complement
				want = 2
			}
			s.flush(t)
			if got := s.seen[header.PlainIPv4] - taken; got != want {
				t.Fatalf("%d values of the word at %d were accepted, want %d: %x", got, at, want, frame)
			}
		} else {
			for _, v := range []uint16{right, ^right, right + 1, right - 1, right + 2, right - 2, right +
				0x100, right - 0x100, right<<8 | right>>8} {
				try(v)
			}
			for range 5 {
				try(uint16(1 + r.IntN(0xfffe)))
			}
			try(0)
			try(0xffff)
		}
		s.flush(t)
		if taken == s.seen[header.PlainIPv4] {
			t.Fatalf("no value of the word at %d was accepted: %x", at, frame)
		}
	}
}

// TestInspectBytes sets every byte of plain packets, and of the rest of their windows, to each of
// its values: these include all protocols, TTLs, flags and data offsets.
func TestInspectBytes(t *testing.T) {
	s := newQueue(t)
	for _, p := range []*headertest.Packet{
		headertest.TCP(client4, vip4, headertest.ACK), headertest.TCP(client6, vip6, headertest.ACK),
		headertest.UDP(client4, vip4, "payload"), headertest.UDP(client6, vip6, "payload"),
	} {
		if p.Proto == header.ProtoTCP {
			p.Payload = bytes.Repeat([]byte{0x5a}, 20)
		}
		transport := header.Plain4Bytes
		if p.Dst.Is6() {
			transport = header.Plain6Bytes
		}
		// The place of UDP's checksum: only 0 in both bytes means none, and part of TCP's sequence
		// number may be 0.
		for _, field := range []uint16{0x1234, 0x0034, 0x1200} {
			base := append(p.Bytes(), make([]byte, header.Window6Bytes)...)
			length := len(base) - header.Window6Bytes
			binary.BigEndian.PutUint16(base[transport+6:], field)
			for at := range header.Window6Bytes {
				for v := range 256 {
					frame := slices.Clone(base)
					frame[at] = byte(v)
					s.add(t, frame, uint32(length))
					if p.Dst.Is4() && at < header.Plain4Bytes {
						seal20(frame)
						s.add(t, frame, uint32(length+3))
					}
				}
			}
		}
	}
	s.flush(t)
	if slices.Min(s.seen[:]) < 10_000 {
		t.Errorf("frames by family %v: too one-sided for this test", s.seen)
	}
}

// TestInspectLengths combines the lengths of a packet: the frame's, IP's and UDP's, or TCP's data
// offset.
func TestInspectLengths(t *testing.T) {
	s := newQueue(t)
	long := []int{127, 128, 255, 256, 1500, 0x7fff, 0x8000, 0xfffe, 0xffff}
	for _, p := range []*headertest.Packet{
		headertest.TCP(client4, vip4, headertest.ACK), headertest.TCP(client6, vip6, headertest.ACK),
		headertest.UDP(client4, vip4, "payload"), headertest.UDP(client6, vip6, "payload"),
	} {
		base := p.Bytes()
		// The part of the IP header that IP's length counts, and the place of the length field.
		fixed, at, transport := header.IPv4Bytes, header.EthernetBytes+2, header.Plain4Bytes
		if p.Dst.Is6() {
			fixed, at, transport = 0, header.EthernetBytes+4, header.Plain6Bytes
		}
		ends := append([]int{0, 1, fixed}, long...)
		for n := range 64 {
			ends = append(ends, fixed+n)
		}
		var inner []int
		for n := range 64 {
			inner = append(inner, n)
		}
		if inner = append(inner, long...); p.Proto == header.ProtoTCP {
			inner = inner[:16]
		}
		for _, end := range ends {
			for _, n := range inner {
				binary.BigEndian.PutUint16(base[at:], uint16(end))
				if p.Dst.Is4() {
					seal20(base)
				}
				if p.Proto == header.ProtoTCP {
					base[transport+12] = byte(n) << 4
				} else {
					binary.BigEndian.PutUint16(base[transport+4:], uint16(n))
				}
				whole := transport - fixed + end
				for _, frameBytes := range []int{0, header.EthernetBytes, transport, whole - 1, whole, whole +
					1, whole + 18, 1 << 31, whole + 1<<31, 1<<32 - 1} {
					s.add(t, base, uint32(frameBytes))
				}
			}
		}
	}
	s.flush(t)
	if slices.Min(s.seen[:]) < 5000 {
		t.Errorf("frames by family %v: too one-sided for this test", s.seen)
	}
}

// TestInspectAhead: Inspect reads no frame behind the frames ahead, which end at an unmapped page,
// whether they are more or fewer than it prefetches.
func TestInspectAhead(t *testing.T) {
	s := newStage(t, 4096)
	for n := 1; n <= largest; n++ {
		for count := range largest + 1 {
			frames, ahead := s.group(n, count)
			for i := range frames[:cap(frames)] {
				f := &frames[:cap(frames)][i]
				f.Addr, f.Len = uint64(i*100), 60
			}
			s.agree(t, frames, ahead, plainBytes)
		}
	}
}

// TestNewMemory: NewMemory panics if the bytes are too few for a window, even if the slice has more
// capacity.
func TestNewMemory(t *testing.T) {
	b := make([]byte, 2*header.Window6Bytes)
	header.NewMemory(b[:header.Window6Bytes])
	for _, n := range []int{0, 1, header.Window6Bytes - 1} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%d bytes of %d: no panic", n, len(b))
				}
			}()
			header.NewMemory(b[:n])
		}()
	}
}

func TestInspectAllocatesNothing(t *testing.T) {
	memory := make([]byte, 1<<15)
	frames := make([]header.Frame, 2*largest)
	for i, f := range traffic()[:len(frames)] {
		frames[i] = header.Frame{Addr: uint64(i * 1000), Len: uint32(copy(memory[i*1000:], f))}
	}
	if n := testing.AllocsPerRun(100, func() {
		m := header.NewMemory(memory)
		var out [largest]header.Plain
		m.Inspect(frames[:largest], frames[largest:], true, &out[0], plainBytes)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzInspect: for a frame with any bytes and any length, in a memory of one window, Inspect and
// its twin return the results of Plain4 and Plain6.
func FuzzInspect(f *testing.F) {
	for _, frame := range corpus() {
		f.Add(frame, uint32(len(frame)), byte(0), true)
	}
	s := newStage(f, header.Window6Bytes)
	f.Fuzz(func(t *testing.T, data []byte, frameBytes uint32, behind byte, seal bool) {
		for i := copy(s.memory, data); i < len(s.memory); i++ {
			s.memory[i] = behind
		}
		if seal && s.memory[12] == 8 && s.memory[13] == 0 {
			seal20(s.memory)
		}
		frames, _ := s.group(1, 0)
		frames[0].Addr, frames[0].Len = 0, frameBytes
		s.agree(t, frames, nil, plainBytes)
	})
}
