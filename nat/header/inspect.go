package header

import (
	"unsafe"

	"sluice.dev/sluice/nat/prefetch"
)

// Frame is where a packet's frame is in memory: the byte offset of its first byte, and how many
// bytes there are.
type Frame struct {
	Addr uint64
	Len  uint32
}

// Plain is the result of Inspect for a packet, and the key of its flow.
type Plain struct {
	Family uint32 // PlainIPv4, PlainIPv6 or NotPlain; what follows is of plain packets alone, but for End
	Proto  uint32 // TCP's number or UDP's
	Ports  uint32 // source<<16 | destination
	// End is that of the packet, in bytes from the frame's start; 0 if the packet is not plain, or
	// a TCP segment that opens or closes.
	End  uint32
	Addr [4]uint64 // IPv6: source and destination, big endian; IPv4: source<<32 | destination in the first
}

// Families of a Plain.
const (
	PlainIPv4 = iota
	PlainIPv6
	NotPlain
)

// Memory is where frames are.
type Memory struct {
	base unsafe.Pointer
	last uint64 // the last offset that has a window behind it
}

// NewMemory returns that of some bytes, which must be at least Window6Bytes and stay where they
// are.
func NewMemory(b []byte) Memory {
	_ = b[Window6Bytes-1] // panics if there are fewer; a slice of b would check its capacity
	return Memory{unsafe.Pointer(&b[0]), uint64(len(b)) - Window6Bytes}
}

// Window4 and Window6 return what plain packets are judged by, of a frame that Inspect took to be
// of that family. They do not check where it is again, which would be twelve instructions for each
// packet in each stage. The compiler inlines them.
func (m *Memory) Window4(addr uint64) *[Window4Bytes]byte {
	return (*[Window4Bytes]byte)(unsafe.Add(m.base, addr)) // Safety: Inspect has compared the address with last
}

func (m *Memory) Window6(addr uint64) *[Window6Bytes]byte {
	return (*[Window6Bytes]byte)(unsafe.Add(m.base, addr)) // Safety: as above
}

// Fetch prefetches the first lines of frames for writing. In them are the headers, but for the end
// of TCP's over IPv6.
func (m *Memory) Fetch(frames []Frame) { fetch(m.base, frames) }

// FetchEnds prefetches the second lines.
func (m *Memory) FetchEnds(frames []Frame) { fetch(unsafe.Add(m.base, lineBytes), frames) }

const lineBytes = 64

func fetch(base unsafe.Pointer, frames []Frame) {
	if len(frames) != 0 {
		prefetch.WriteAll((*byte)(base), &frames[0].Addr, unsafe.Sizeof(frames[0]), len(frames))
	}
}

// Distance is the most frames of one Inspect, and how far ahead it prefetches.
const Distance = 16

// Inspect judges up to Distance frames as Plain4 and Plain6 do. It writes the result of frame i to
// the Plain that is stride*i bytes behind out, which must be there. It returns the sum of the
// frames' lengths, and whether one of them was of IPv6. It also Fetches the frames that are
// Distance behind the first ahead of them, in the same array.
func (m *Memory) Inspect(frames []Frame, ahead int, out *Plain, stride uintptr) (bytes uint64, v6 bool) {
	if ahead > 0 {
		_ = frames[:Distance+ahead]
	}
	return inspect(m, frames, ahead, out, stride, &plainTables)
}
