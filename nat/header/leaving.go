package header

import "unsafe"

// Leaving is what a plain packet leaves with. Ports and checksum deltas are as they stand in its headers, read as little endian, so that
// whoever writes them has nothing to turn. Ones-complement sums do not mind the byte order (RFC 1071 section 2).
type Leaving struct {
	MACs   *[12]byte // destination and source
	Addrs  *uint64   // of the other side's tuple, which is the reverse of what the packet leaves with: one word of Plain.Addr for IPv4, four for IPv6
	Ports  uint32
	IP, L4 uint16 // Delta's
	Family uint32 // Plain's
	Proto  uint32
}

// The assembly of nat and flowtable knows this size and these offsets.
const (
	_ = -(unsafe.Sizeof(Leaving{}) ^ 32)
	_ = -(unsafe.Offsetof(Leaving{}.Addrs) ^ 8)
	_ = -(unsafe.Offsetof(Leaving{}.Ports) ^ 16)
	_ = -(unsafe.Offsetof(Leaving{}.IP) ^ 20)
	_ = -(unsafe.Offsetof(Leaving{}.L4) ^ 22)
	_ = -(unsafe.Offsetof(Leaving{}.Family) ^ 24)
	_ = -(unsafe.Offsetof(Leaving{}.Proto) ^ 28)
)
