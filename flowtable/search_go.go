//go:build !amd64 || noasm || race

package flowtable

import (
	"unsafe"

	"sluice.dev/sluice/flowtable/prefetch"
)

// fetchBuckets, fetchFlows and match are the twins of the assembly.
func fetchBuckets(geo *geometries, group []Search) {
	for i := range group {
		prefetch.Read((*byte)(unsafe.Pointer(geo.bucket(&group[i]))))
	}
}

func fetchFlows(geo *geometries, group []Search) {
	for i := range group {
		s := &group[i]
		s.slot = geo.bucket(s).find(uint8(s.hash))
		at := &geo[s.family]
		first := unsafe.Add(at.records, uint64(slotIndex(s.slot))*at.recordSize)
		prefetch.Read((*byte)(first))
		prefetch.Read((*byte)(unsafe.Add(first, at.recordSize-64)))
	}
}

func match(geo *geometries, group []Search, flows []*Flow, steady *steady, now uint32) int {
	for i := range group {
		s := &group[i]
		at, side := &geo[s.family], s.Side()
		// Safety: a slot names a record of its arena; a search for nothing has slot 0, and the empty bucket is as good as a record 0.
		first := unsafe.Add(at.records, uint64(slotIndex(s.slot))*at.recordSize)
		f := (*Flow)(first)
		// Meta before the key: a live flow's ports are final. Record 0 is never live.
		m := f.load()
		if ticks(now).since(m.seen()) > steady[side][uint8(m>>metaStateShift)] ||
			uint64(m)>>metaProtoShift != uint64(s.proto) || f.ports[side].Load() != s.ports {
			return i
		}
		if s.family == 0 && (*record4)(first).addr[side] != s.addr[0] || s.family == 1 && (*record6)(first).addr[side] != s.addr {
			return i
		}
		flows[i] = f
	}
	return len(group)
}

// bucket is the home of a search's key.
func (geo *geometries) bucket(s *Search) *bucket {
	at := &geo[s.family]
	// Safety: a home is below homes, and so many buckets there are.
	return (*bucket)(unsafe.Add(at.buckets, ((s.hash>>32)*at.homes>>32)*uint64(unsafe.Sizeof(bucket{}))))
}
