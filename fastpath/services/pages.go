package services

import "hash/maphash"

// edit is the generation of the snapshot that a Builder makes. A page with this number was made or
// copied by that Builder, which may write it until Build; any other Builder must copy it first. It
// is a number and not a pointer: pointers in pages that are shared for long would keep old Builders
// alive.
type edit uint64

// pages is a persistent array: a root of fixed-size pages. A copy of the struct shares the root and
// all pages; a writer copies the root and the pages that it writes, once per edit.
//
//	root ─┬─▶ page 0: elements   0 … 127
//	      └─▶ page 1: elements 128 … 255
type pages[T any] struct {
	edit edit // the owner of the root
	root []*page[T]
}

const pageSize = 128

type page[T any] struct {
	edit edit
	v    [pageSize]T
}

func (p *pages[T]) at(i uint32) *T {
	if root, n := p.root, uint(i/pageSize); n < uint(len(root)) {
		return &root[n].v[i%pageSize]
	}
	return nil
}

func (p *pages[T]) len() int { return len(p.root) * pageSize }

func (p *pages[T]) each(f func(*T) bool) {
	for _, pg := range p.root {
		for i := range pg.v {
			if !f(&pg.v[i]) {
				return
			}
		}
	}
}

// own returns element i, which edit e may write. It copies the root and the page if e does not own
// them yet, and grows the array if necessary.
func (p *pages[T]) own(e edit, i uint32) *T {
	n := int(i / pageSize)
	if p.edit != e {
		p.root = append(make([]*page[T], 0, max(n+1, len(p.root))), p.root...)
		p.edit = e
	}
	for n >= len(p.root) {
		p.root = append(p.root, &page[T]{edit: e})
	}
	if p.root[n].edit != e {
		c := *p.root[n]
		c.edit = e
		p.root[n] = &c
	}
	return &p.root[n].v[i%pageSize]
}

// index is a persistent hash table: a persistent array of buckets of a few entries. A bucket is
// copied before it is written. The number of buckets doubles when they have more than indexLoad
// entries on average; it never shrinks.
type index[K comparable, V any] struct {
	seed    maphash.Seed // drawn for the first entry, so that clients cannot know it
	buckets pages[bucket[K, V]]
	size    uint32 // number of buckets, a power of two; 0 if there never was an entry
	n       int
}

const (
	indexLoad    = 4
	indexMinSize = pageSize
)

type bucket[K comparable, V any] struct {
	edit edit
	kv   []entry[K, V]
}

type entry[K comparable, V any] struct {
	k K
	v V
}

func (x *index[K, V]) slot(k K) uint32 {
	return uint32(maphash.Comparable(x.seed, k)) & (x.size - 1)
}

func (x *index[K, V]) get(k K) (v V, ok bool) {
	if x.n == 0 {
		return v, false
	}
	kv := x.buckets.at(x.slot(k)).kv
	for i := range kv {
		if kv[i].k == k {
			return kv[i].v, true
		}
	}
	return v, false
}

func (x *index[K, V]) each(f func(K, V) bool) {
	x.buckets.each(func(b *bucket[K, V]) bool {
		for i := range b.kv {
			if !f(b.kv[i].k, b.kv[i].v) {
				return false
			}
		}
		return true
	})
}

// own returns the bucket of k, which edit e may write.
func (x *index[K, V]) own(e edit, k K) *bucket[K, V] {
	b := x.buckets.own(e, x.slot(k))
	if b.edit != e {
		b.edit, b.kv = e, append(make([]entry[K, V], 0, len(b.kv)+1), b.kv...)
	}
	return b
}

// set adds or replaces the entry of k. It reports whether it added one.
func (x *index[K, V]) set(e edit, k K, v V) bool {
	if x.n >= int(x.size)*indexLoad {
		x.grow(e)
	}
	b := x.own(e, k)
	for i := range b.kv {
		if b.kv[i].k == k {
			b.kv[i].v = v
			return false
		}
	}
	b.kv = append(b.kv, entry[K, V]{k, v})
	x.n++
	return true
}

// delete removes the entry of k. It reports whether there was one.
func (x *index[K, V]) delete(e edit, k K) bool {
	if _, ok := x.get(k); !ok {
		return false
	}
	b := x.own(e, k)
	for i := range b.kv {
		if b.kv[i].k == k {
			last := len(b.kv) - 1
			b.kv[i], b.kv[last] = b.kv[last], entry[K, V]{} // no stale pointer
			b.kv = b.kv[:last]
			x.n--
			break
		}
	}
	return true
}

// grow doubles the number of buckets, or makes the first ones.
func (x *index[K, V]) grow(e edit) {
	old := *x
	x.buckets, x.n = pages[bucket[K, V]]{}, 0
	if x.size *= 2; x.size == 0 {
		x.seed, x.size = maphash.MakeSeed(), indexMinSize
	}
	for i := range x.size / pageSize {
		x.buckets.own(e, i*pageSize)
	}
	old.each(func(k K, v V) bool {
		b := x.own(e, k)
		b.kv = append(b.kv, entry[K, V]{k, v})
		x.n++
		return true
	})
}
