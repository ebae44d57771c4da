package capture

import "sync/atomic"

// rate bounds the records of all workers together. It is a leaky bucket in one word: the time at
// which the bucket would be empty (GCRA, ITU-T I.371). Any worker may spend from it.
type rate struct {
	each  uint64 // nanoseconds that one record adds
	burst uint64 // nanoseconds that the word may be ahead of the time
	empty atomic.Uint64
}

const second = 1e9

// spacing returns each and burst of a rate of at most perSecond records in any second: a tenth of
// them at once, and the others spread. each is 0 if there is no bound.
func spacing(perSecond int) (each, burst uint64) {
	if perSecond <= 0 {
		return 0, 0
	}
	atOnce := max(1, perSecond/10)
	each = second / uint64(max(1, perSecond-atOnce))
	return each, each * uint64(atOnce)
}

// take reports whether n records may be written at a time.
func (r *rate) take(now uint64, n uint64) bool {
	for r.each != 0 {
		old := r.empty.Load()
		next := max(old, now) + n*r.each
		if next > now+max(r.burst, n*r.each) {
			return false
		}
		if r.empty.CompareAndSwap(old, next) {
			break
		}
	}
	return true
}
