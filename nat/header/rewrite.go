package header

import "unsafe"

// Rewrite has the new headers of a plain packet. Ports and checksum deltas are in the
// byte order of the headers, read as little endian, so that they are written without a swap.
// Ones-complement sums do not depend on the byte order (RFC 1071 section 2).
//
// Addrs points to the addresses of the other side's tuple, the reverse of the packet's new tuple:
// one word, as in Plain.Addr, for IPv4, four for IPv6.
type Rewrite struct {
	MACs   *[12]byte // destination and source
	Addrs  *uint64
	Ports  uint32
	IP, L4 uint16 // as in Delta
	Family uint32 // as in Plain
	Proto  uint32
}

// The assembly of flowtable writes IP and L4, and Family and Proto, in one store each; it copies
// the latter from a Plain.
const (
	_ = -(unsafe.Offsetof(Rewrite{}.L4) - unsafe.Offsetof(Rewrite{}.IP) ^ 2)
	_ = -(unsafe.Offsetof(Rewrite{}.Proto) - unsafe.Offsetof(Rewrite{}.Family) ^ 4)
	_ = -(unsafe.Offsetof(Plain{}.Proto) - unsafe.Offsetof(Plain{}.Family) ^ 4)
)
