package services

import "hash/maphash"

// pages is a persistent array: a root of fixed-size pages. A copy shares all
// pages; a writer copies the root and the pages it touches, once per edit.
type pages[T any] struct {
	root []*page[T]
}

const pageSize = 128

type page[T any] struct {
	edit *edit // who may write it in place; compared by identity
	v    [pageSize]T
}

// edit is the identity of one Builder. It must not have size zero: equal
// addresses would make pages of finished snapshots look writable.
type edit struct{ _ byte }

func (p *pages[T]) at(i uint32) *T {
	if n := i / pageSize; n < uint32(len(p.root)) {
		return &p.root[n].v[i%pageSize]
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

// fork returns a copy whose root may be written.
func (p *pages[T]) fork() pages[T] { return pages[T]{root: append([]*page[T](nil), p.root...)} }

// set writes one element for edit e, copying the page if e does not own it yet.
func (p *pages[T]) set(e *edit, i uint32, v T) {
	n := int(i / pageSize)
	for n >= len(p.root) {
		p.root = append(p.root, &page[T]{edit: e})
	}
	if p.root[n].edit != e {
		c := *p.root[n]
		c.edit = e
		p.root[n] = &c
	}
	p.root[n].v[i%pageSize] = v
}

// index is a persistent hash table: buckets of a few entries, copied when
// touched. Its size doubles when buckets hold more than indexLoad on average.
type index[K comparable, V any] struct {
	root []*bucket[K, V] // length is a power of two; nil root means empty
	n    int
}

const (
	indexLoad    = 4
	indexMinSize = 64
)

type bucket[K comparable, V any] struct {
	edit *edit
	kv   []entry[K, V]
}

type entry[K comparable, V any] struct {
	k K
	v V
}

var indexSeed = maphash.MakeSeed()

func (x *index[K, V]) slot(k K) int {
	return int(maphash.Comparable(indexSeed, k)) & (len(x.root) - 1)
}

func (x *index[K, V]) get(k K) (v V, ok bool) {
	if x.n == 0 {
		return v, false
	}
	b := x.root[x.slot(k)]
	if b == nil {
		return v, false
	}
	for i := range b.kv {
		if b.kv[i].k == k {
			return b.kv[i].v, true
		}
	}
	return v, false
}

func (x *index[K, V]) each(f func(K, V) bool) {
	for _, b := range x.root {
		if b == nil {
			continue
		}
		for i := range b.kv {
			if !f(b.kv[i].k, b.kv[i].v) {
				return
			}
		}
	}
}

func (x *index[K, V]) fork() index[K, V] {
	return index[K, V]{root: append([]*bucket[K, V](nil), x.root...), n: x.n}
}

// own returns the bucket of k, writable for e.
func (x *index[K, V]) own(e *edit, k K) *bucket[K, V] {
	i := x.slot(k)
	b := x.root[i]
	if b == nil {
		b = &bucket[K, V]{edit: e}
		x.root[i] = b
	} else if b.edit != e {
		b = &bucket[K, V]{edit: e, kv: append([]entry[K, V](nil), b.kv...)}
		x.root[i] = b
	}
	return b
}

func (x *index[K, V]) set(e *edit, k K, v V) {
	if x.n >= len(x.root)*indexLoad {
		x.grow(e)
	}
	b := x.own(e, k)
	for i := range b.kv {
		if b.kv[i].k == k {
			b.kv[i].v = v
			return
		}
	}
	b.kv = append(b.kv, entry[K, V]{k, v})
	x.n++
}

func (x *index[K, V]) delete(e *edit, k K) {
	if _, ok := x.get(k); !ok {
		return
	}
	b := x.own(e, k)
	for i := range b.kv {
		if b.kv[i].k == k {
			b.kv = append(b.kv[:i], b.kv[i+1:]...)
			x.n--
			return
		}
	}
}

func (x *index[K, V]) grow(e *edit) {
	old := *x
	x.root, x.n = make([]*bucket[K, V], max(indexMinSize, 2*len(old.root))), 0
	old.each(func(k K, v V) bool {
		b := x.own(e, k)
		b.kv = append(b.kv, entry[K, V]{k, v})
		x.n++
		return true
	})
}
