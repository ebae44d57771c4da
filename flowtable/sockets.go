package flowtable

import (
	"encoding/binary"
	"net/netip"
	"unsafe"

	"sluice.dev/sluice/nat/header"
)

// Socket is an address and a port as numbers, which are compared faster than a header.Addr. IPv4 is
// in mapped form (RFC 4291 section 2.5.5.2).
type Socket struct {
	Hi, Lo uint64 // the address's halves, big endian
	Port   uint16
}

// mapped4 is the lower half of an IPv4 address in mapped form, without the address.
const mapped4 = 0xffff << 32

// SocketOf returns an address and a port as a Socket.
func SocketOf(a *header.Addr, port uint16) Socket {
	return Socket{binary.BigEndian.Uint64(a[:8]), binary.BigEndian.Uint64(a[8:]), port}
}

// Addr returns the address.
func (s *Socket) Addr() (a header.Addr) {
	binary.BigEndian.PutUint64(a[:8], s.Hi)
	binary.BigEndian.PutUint64(a[8:], s.Lo)
	return a
}

// AddrPort returns the address and the port.
func (s *Socket) AddrPort() netip.AddrPort {
	a := s.Addr()
	return netip.AddrPortFrom(a.Netip(), s.Port)
}

// Is4 reports whether the address is IPv4.
func (s *Socket) Is4() bool { return s.Hi == 0 && s.Lo>>32 == mapped4>>32 }

// V6 reports whether a flow is an IPv6 flow.
func (r Ref) V6() bool { return r&refV6 != 0 }

// Source and Destination return the ends of a side's tuple: client and frontend on the client side,
// backend and the gateway's source on the reply side. v6 is the flow's family. The flow must be
// live.
func (f *Flow) Source(side Side, v6 bool) Socket {
	port := uint16(f.ports[side&1].Load() >> 16)
	// Safety: a Flow is the first field of a record4 or a record6.
	if !v6 {
		return Socket{0, mapped4 | (*record4)(unsafe.Pointer(f)).addr[side&1]>>32, port}
	}
	addr := &(*record6)(unsafe.Pointer(f)).addr[side&1]
	return Socket{addr[0], addr[1], port}
}

// Destination is described at Source.
func (f *Flow) Destination(side Side, v6 bool) Socket {
	port := uint16(f.ports[side&1].Load())
	// Safety: as in Source.
	if !v6 {
		return Socket{0, mapped4 | uint64(uint32((*record4)(unsafe.Pointer(f)).addr[side&1])), port}
	}
	addr := &(*record6)(unsafe.Pointer(f)).addr[side&1]
	return Socket{addr[2], addr[3], port}
}

// MaybeFrom4 returns a bit for each of up to 32 live flows whose source on a side may be in an IPv4
// prefix: every such flow, and IPv6 flows. It has no branch for each flow.
func MaybeFrom4(flows []*Flow, side Side, addr, mask uint32) (maybe uint32) {
	at := unsafe.Offsetof(record4{}.addr) + uintptr(side&1)*unsafe.Sizeof(record4{}.addr[0])
	for i, f := range flows {
		// Safety: as in Source. A record6 is longer, and has other bytes there.
		source := uint32(*(*uint64)(unsafe.Add(unsafe.Pointer(f), at)) >> 32)
		maybe |= uint32((uint64((source^addr)&mask)-1)>>63) << (i & 31)
	}
	return maybe
}

// From6 is MaybeFrom4 for an IPv6 prefix: it returns a bit for each flow whose source is in it.
// group has the flows' packets, which say the family.
func From6(flows []*Flow, group []Search, side Side, addr, mask *Socket) (in uint32) {
	at := unsafe.Offsetof(record6{}.addr) + uintptr(side&1)*unsafe.Sizeof(record6{}.addr[0])
	hi, lo, maskHi, maskLo := addr.Hi, addr.Lo, mask.Hi, mask.Lo
	for i, f := range flows {
		if group[i].Family != header.PlainIPv6 {
			continue
		}
		// Safety: as in Source.
		source := (*[2]uint64)(unsafe.Add(unsafe.Pointer(f), at))
		if (source[0]^hi)&maskHi|(source[1]^lo)&maskLo == 0 {
			in |= 1 << (i & 31)
		}
	}
	return in
}
