//go:build !amd64 || noasm || race

package flowtable

import (
	"unsafe"

	"sluice.dev/sluice/flowtable/prefetch"
)

// fetchBuckets and fetchFlows are the twins of the assembly.
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

// bucket is the home of a search's key.
func (geo *geometries) bucket(s *Search) *bucket {
	at := &geo[s.family]
	// Safety: a home is below homes, and so many buckets there are.
	return (*bucket)(unsafe.Add(at.buckets, ((s.hash>>32)*at.homes>>32)*uint64(unsafe.Sizeof(bucket{}))))
}
