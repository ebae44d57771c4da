package header

import (
	"unsafe"

	"sluice.dev/sluice/nat/prefetch"
)

// Frame is the place of a packet's frame in memory: the offset of its first byte, and its length in
// bytes.
type Frame struct {
	Addr uint64
	Len  uint32
}

// Plain is the result of Inspect for a packet, and the key of its flow.
type Plain struct {
	Family uint32 // PlainIPv4, PlainIPv6 or NotPlain; the fields below except End are set only for plain packets
	Proto  uint32 // ProtoTCP or ProtoUDP
	Ports  uint32 // source<<16 | destination
	// End is the end of the packet, in bytes from the frame's start; 0 if the packet is not plain,
	// or is a TCP segment that opens or closes a connection.
	End  uint32
	Addr [4]uint64 // IPv6: source and destination, big endian; IPv4: source<<32 | destination in the first
}

// Families of a Plain.
const (
	PlainIPv4 = iota
	PlainIPv6
	NotPlain
)

// Memory is the memory that holds frames.
type Memory struct {
	base unsafe.Pointer
	last uint64 // the last offset at which a whole window is inside the memory
}

// NewMemory returns the Memory of b, which must have at least Window6Bytes and must not move.
func NewMemory(b []byte) Memory {
	_ = b[Window6Bytes-1] // panics if there are fewer; a slice of b would check its capacity
	return Memory{unsafe.Pointer(&b[0]), uint64(len(b)) - Window6Bytes}
}

// Window4 and Window6 return the window of a frame, which Inspect must have accepted as a frame of
// that family. They do not check the address again, which would take twelve instructions for each
// packet in each stage. The compiler inlines them.
func (m *Memory) Window4(addr uint64) *[Window4Bytes]byte {
	return (*[Window4Bytes]byte)(unsafe.Add(m.base, addr)) // Safety: Inspect has compared the address with last
}

func (m *Memory) Window6(addr uint64) *[Window6Bytes]byte {
	return (*[Window6Bytes]byte)(unsafe.Add(m.base, addr)) // Safety: as above
}

// Fetch prefetches the first cache lines of frames for writing, and the second ones if both is
// true. The first lines have all headers, except for the end of a TCP header over IPv6.
func (m *Memory) Fetch(frames []Frame, both bool) {
	if len(frames) == 0 {
		return
	}
	prefetch.WriteAll((*byte)(m.base), &frames[0].Addr, unsafe.Sizeof(frames[0]), len(frames))
	if both {
		second := (*byte)(unsafe.Add(m.base, lineBytes))
		prefetch.WriteAll(second, &frames[0].Addr, unsafe.Sizeof(frames[0]), len(frames))
	}
}

const lineBytes = 64

// perAhead is the number of frames that Inspect checks, and nat.TranslatePlain rewrites, for each
// frame whose lines it prefetches. A line for each frame would be more misses than a core can have
// in flight at that rate.
const perAhead = 2

// Ahead returns how many of the frames ahead Inspect and nat.TranslatePlain prefetch while they
// process a number of frames.
func Ahead(frames, ahead int) int { return min(frames/perAhead, ahead) }

// Inspect checks frames as Plain4 and Plain6 do. It writes the result of frame i to the Plain at
// stride*i bytes after out, which must exist. It returns the sum of the frames' lengths, and
// whether one of them has the EtherType of IPv6. In between it prefetches the lines of the first
// frames ahead, as Fetch does; Ahead returns of how many.
func (m *Memory) Inspect(frames, ahead []Frame, both bool, out *Plain, stride uintptr) (bytes uint64, v6 bool) {
	return inspect(m, frames, ahead, both, out, stride, &plainTables)
}
