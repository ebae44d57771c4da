package model

import (
	"fmt"
	"hash/maphash"
)

// counter is a number from 0 to 99 that events increase; one number is a violation.
type counter struct{ broken int }

func (counter) initial() int { return 0 }

func (counter) next(n *int, to *steps[int]) {
	if *n < 99 {
		to.add(*n+1, "add 1")
	}
	if *n > 0 && *n < 50 {
		to.add(2**n, "double to #", uint8(2**n))
	}
}

func (counter) hash(n *int, seed maphash.Seed) uint64 { return maphash.Comparable(seed, *n) }

func (c counter) violation(n *int) string {
	if *n != c.broken {
		return ""
	}
	return fmt.Sprintf("BROKEN: %d", *n)
}
