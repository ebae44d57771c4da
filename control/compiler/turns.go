package compiler

import (
	"cmp"
	"slices"
)

// turns returns the backend of each turn of a round, as positions in weights, with the turns of
// each backend as far apart as possible: the k-th turn of weight w is at (2k-1)/2w of the round.
// Weights are divided by their greatest common divisor. If a round would be longer than limit,
// weights are scaled and rounded to about limit turns, with at least one turn for each backend, so
// it has at most limit + len(weights) turns. No weight may be 0.
func turns(weights []uint16, limit int) []uint16 {
	counts, sum := reduce(weights)
	if sum > limit {
		counts, sum = shorten(counts, sum, limit)
	}
	type turn struct {
		at       uint64 // place in the round, in parts of 1<<40
		position uint16
	}
	round := make([]turn, 0, sum)
	for i, n := range counts {
		for k := range n {
			round = append(round, turn{uint64(2*k+1) << 40 / uint64(2*n), uint16(i)})
		}
	}
	slices.SortFunc(round, func(a, b turn) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.position, b.position))
	})
	table := make([]uint16, len(round))
	for i, t := range round {
		table[i] = t.position
	}
	return table
}

func reduce(weights []uint16) (counts []int, sum int) {
	divisor := 0
	for _, w := range weights {
		divisor = gcd(divisor, int(w))
	}
	for _, w := range weights {
		counts = append(counts, int(w)/divisor)
		sum += int(w) / divisor
	}
	return counts, sum
}

func shorten(counts []int, sum, limit int) (short []int, total int) {
	for _, n := range counts {
		n = max(1, (n*limit+sum/2)/sum)
		short = append(short, n)
		total += n
	}
	return short, total
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
