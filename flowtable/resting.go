package flowtable

import "sync/atomic"

// resting remembers reply keys whose backend is in TIME_WAIT although their flow
// is gone: deleted, reopened towards another backend, or shed. Another client's
// SYN from that source and port would be judged against the old connection: the backend accepts it
// only if its timestamp or sequence number is higher (RFC 6191 section 2). So Create takes such a
// port last.
//
// It is a hint, kept in fixed memory: a later key may take an earlier one's word,
// and it is empty after a restart. Each word is the upper half of the key's hash and
// the tick at which its rest is over.
type resting [1 << 14]atomic.Uint64

func (r *resting) at(hash uint64) *atomic.Uint64 { return &r[hash%uint64(len(r))] }

// begin notes a key, unless another key uses its word for longer. If two handles store at once,
// either may win. It publishes nothing but the word.
func (r *resting) begin(hash uint64, until ticks) {
	w := r.at(hash)
	if until.since(ticks(w.Load())) > 0 {
		w.Store(hash>>32<<32 | uint64(until))
	}
}

func (r *resting) has(hash uint64, now ticks) bool {
	w := r.at(hash).Load()
	return w>>32 == hash>>32 && ticks(w).since(now) >= 0
}
