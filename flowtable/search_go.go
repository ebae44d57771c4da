package flowtable

import (
	"math/bits"
	"unsafe"

	"sluice.dev/sluice/flowtable/conn"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/prefetch"
)

// fetchBucketsGo, fetchFlowsGo and matchGo are the twins of the assembly.
func fetchBucketsGo(geo *geometries, secret *HashKey, group []Search) {
	for i := range group {
		s := &group[i]
		if a := &s.Addr; s.Family == header.PlainIPv6 {
			s.hash = secret.hash6(a[0], a[1], a[2], a[3], s.Ports, uint8(s.Proto))
		} else {
			s.hash = secret.hash4(a[0], s.Ports, uint8(s.Proto))
		}
		prefetch.Read((*byte)(unsafe.Pointer(geo.bucket(s))))
	}
}

func fetchFlowsGo(geo *geometries, group []Search) {
	for i := range group {
		s := &group[i]
		s.slot = geo.bucket(s).first(uint8(s.hash))
		at := &geo[s.Family]
		first := unsafe.Add(at.records, uint64(slotIndex(s.slot))*at.recordSize)
		prefetch.Read((*byte)(first))
		prefetch.Read((*byte)(unsafe.Add(first, at.recordSize-64)))
	}
}

func matchGo(
	geo *geometries, group []Search, flows []*Flow, rewrites []header.Rewrite, steady *conn.Steady, now uint32,
) int {
	for i := range group {
		s := &group[i]
		at, side := &geo[s.Family], s.Side()
		// Safety: a slot names a record of its arena. The slot of a packet that is not plain is 0,
		// and the empty bucket is as large as a record.
		first := unsafe.Add(at.records, uint64(slotIndex(s.slot))*at.recordSize)
		f := (*Flow)(first)
		// Load meta before the key: a live flow's ports are final. Record 0 is never live.
		m := f.load()
		if Ticks(now).Since(m.Seen()) > steady[side][uint8(m>>conn.MetaStateShift)] ||
			uint64(m)>>conn.MetaProtoShift != uint64(s.Proto) || f.ports[side].Load() != s.Ports {
			return i
		}
		if s.Family == header.PlainIPv4 && (*record4)(first).addr[side] != s.Addr[0] ||
			s.Family == header.PlainIPv6 && (*record6)(first).addr[side] != s.Addr {
			return i
		}
		flows[i] = f
		f.Rewrite(side, s.Family == header.PlainIPv6, &rewrites[i])
	}
	return len(group)
}

// bucket returns the home bucket of a search's key.
func (geo *geometries) bucket(s *Search) *bucket {
	at := &geo[s.Family]
	// Safety: a home is below homes, which is at most the number of buckets.
	return (*bucket)(unsafe.Add(at.buckets, ((s.hash>>32)*at.homes>>32)*uint64(unsafe.Sizeof(bucket{}))))
}

// first returns the slot value of the first member of the home whose tag matches, or 0. Unlike find
// it never returns a member with another tag.
func (b *bucket) first(tag uint8) uint32 {
	pattern := uint64(tag) * 0x0101010101010101
	same := zeroBytes(b.tagsLo.Load()^pattern) | zeroBytes(uint64(b.tagsHi.Load())^pattern&0xffffffff)<<8
	m := same & b.ctl.Load() & slotMask
	if m == 0 {
		return 0
	}
	return b.slots[bits.TrailingZeros64(m)].Load()
}

// zeroBytes returns a bit for each byte of x that is 0.
func zeroBytes(x uint64) uint64 {
	const low, gather = 0x7f7f7f7f7f7f7f7f, 0x0102040810204080
	tops := ^((x&low + low) | x | low) // the top bit of each byte that is 0
	return (tops >> 7) * gather >> 56
}
