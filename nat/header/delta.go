package header

// Delta is what turning one tuple into another adds to ones-complement checksums
// (RFC 1624): IP to the IPv4 header checksum (addresses), L4 to the TCP, UDP,
// and ICMPv6 checksums (addresses and ports). It depends on the
// tuples alone, so a flow stores it once; the way back is its complement.
type Delta struct{ IP, L4 uint16 }

// DeltaOf returns the delta of packets that arrive as in and leave as out.
func DeltaOf(in, out *Tuple) Delta { panic("written by package header") }

// Reverse returns the delta of packets in the other direction.
func (d Delta) Reverse() Delta { return Delta{^d.IP, ^d.L4} }
