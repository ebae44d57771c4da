package fastpath

import (
	"crypto/rand"
	mrand "math/rand/v2"
)

// draws has the random numbers for new flows, a pair for each, numbered in the order of the draws.
// peek reads a pair in advance; take returns the pairs in the same order, with and without peek.
type draws struct {
	source       *mrand.ChaCha8
	drawn, taken uint64
	pairs        [2 * groupSize][2]uint64
}

// peek returns the pair of a draw, which must be less than 2*groupSize ahead.
func (d *draws) peek(draw uint64) *[2]uint64 {
	for d.drawn <= draw {
		d.pairs[d.drawn%uint64(len(d.pairs))] = [2]uint64{d.source.Uint64(), d.source.Uint64()}
		d.drawn++
	}
	return &d.pairs[draw%uint64(len(d.pairs))]
}

// take draws the next pair.
func (d *draws) take() [2]uint64 {
	d.taken++
	return *d.peek(d.taken - 1)
}

func newRandom(seed [32]byte) *mrand.ChaCha8 {
	if seed == ([32]byte{}) {
		rand.Read(seed[:]) // never fails (crypto/rand)
	}
	return mrand.NewChaCha8(seed)
}
