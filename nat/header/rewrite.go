package header

import "unsafe"

// Rewrite is what a plain packet's headers are rewritten to. Ports and checksum deltas are in the
// byte order of the headers, read as little endian, so that they are written without a swap.
// Ones-complement sums do not depend on the byte order (RFC 1071 section 2).
//
// Addrs points to the addresses of the other side's tuple, which is the reverse of what the packet
// is sent with: one word of Plain.Addr for IPv4, four for IPv6.
type Rewrite struct {
	MACs   *[12]byte // destination and source
	Addrs  *uint64
	Ports  uint32
	IP, L4 uint16 // Delta's
	Family uint32 // Plain's
	Proto  uint32
}

// The assembly of nat and flowtable knows this size and these offsets.
const (
	_ = -(unsafe.Sizeof(Rewrite{}) ^ 32)
	_ = -(unsafe.Offsetof(Rewrite{}.Addrs) ^ 8)
	_ = -(unsafe.Offsetof(Rewrite{}.Ports) ^ 16)
	_ = -(unsafe.Offsetof(Rewrite{}.IP) ^ 20)
	_ = -(unsafe.Offsetof(Rewrite{}.L4) ^ 22)
	_ = -(unsafe.Offsetof(Rewrite{}.Family) ^ 24)
	_ = -(unsafe.Offsetof(Rewrite{}.Proto) ^ 28)
)
