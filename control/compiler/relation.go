package compiler

// relation is a set of pairs (key, unit number). Nearly every key has one number.
// It holds no pointers where K does not, so that the collector never walks it.
type relation[K comparable] struct {
	head  map[K]int32 // index of the key's first pair
	pairs []pair
	free  int32 // first unused pair
}

type pair struct{ num, next int32 }

const none = -1

func newRelation[K comparable]() relation[K] {
	return relation[K]{head: map[K]int32{}, free: none}
}

// add adds a pair, which must not be there yet.
func (r *relation[K]) add(k K, num int32) {
	next, ok := r.head[k]
	if !ok {
		next = none
	}
	at := r.free
	if at == none {
		at = int32(len(r.pairs))
		r.pairs = append(r.pairs, pair{})
	} else {
		r.free = r.pairs[at].next
	}
	r.pairs[at] = pair{num, next}
	r.head[k] = at
}

// remove removes a pair.
func (r *relation[K]) remove(k K, num int32) {
	at, ok := r.head[k]
	if !ok {
		return
	}
	before := int32(none)
	for at != none && r.pairs[at].num != num {
		before, at = at, r.pairs[at].next
	}
	if at == none {
		return
	}
	next := r.pairs[at].next
	switch {
	case before != none:
		r.pairs[before].next = next
	case next == none:
		delete(r.head, k)
	default:
		r.head[k] = next
	}
	r.pairs[at] = pair{none, r.free}
	r.free = at
}

// only returns the number of a key that has one.
func (r *relation[K]) only(k K) (num int32, ok bool) {
	at, ok := r.head[k]
	if !ok || r.pairs[at].next != none {
		return 0, false
	}
	return r.pairs[at].num, true
}

// each calls f for the numbers of a key.
func (r *relation[K]) each(k K, f func(num int32)) {
	at, ok := r.head[k]
	for ok && at != none {
		p := r.pairs[at]
		f(p.num)
		at = p.next
	}
}
