package maglev

import "slices"

// uneven reports whether most turns of fill would take no slot, because the heaviest weight is far
// above the mean.
func uneven(turns []turn) bool {
	heaviest, sum := uint64(0), uint64(0)
	for i := range turns {
		heaviest = max(heaviest, uint64(turns[i].weight))
		sum += uint64(turns[i].weight)
	}
	return heaviest*uint64(len(turns)) > 8*sum
}

// fillByRound has the same result as fill, and is as fast with unequal weights as with equal ones:
// instead of visiting every backend in every round, it keeps the next turns in a heap. A backend
// takes its k-th slot in the first round in which its total credit reaches k times the heaviest
// weight.
func fillByRound(table []uint16, turns []turn) {
	size := uint32(len(table))
	taken := make([]uint64, (size+63)/64)
	heaviest := uint64(0)
	for i := range turns {
		heaviest = max(heaviest, uint64(turns[i].weight))
	}
	h := make([]due, len(turns))
	for i := range turns {
		h[i] = due{ceil(heaviest, uint64(turns[i].weight)), uint32(i), 1}
	}
	slices.SortFunc(h, func(a, b due) int { // a sorted slice is a heap
		if a.before(b) {
			return -1
		}
		return 1
	})
	for filled := range size {
		yield(filled + 1)
		d := &h[0]
		t := &turns[d.turn]
		slot := t.next
		for taken[slot>>6]>>(slot&63)&1 != 0 {
			slot = step(slot, t.skip, size)
		}
		taken[slot>>6] |= 1 << (slot & 63)
		table[slot] = t.position
		t.next = step(slot, t.skip, size)
		d.slots++
		d.round = ceil(heaviest*uint64(d.slots), uint64(t.weight))
		sink(h)
	}
}

// due has a turn, and the round of fill in which it takes its next slot. Products are less than
// 2^54: weights are less than 2^32, and slots less than 2^22.
type due struct {
	round       uint64
	turn, slots uint32
}

func (d due) before(o due) bool { return d.round < o.round || d.round == o.round && d.turn < o.turn }

func ceil(a, b uint64) uint64 { return (a + b - 1) / b }

// sink restores the heap after the round of its first element was increased.
func sink(h []due) {
	d, at := h[0], 0
	for {
		child := 2*at + 1
		if child >= len(h) {
			break
		}
		if next := child + 1; next < len(h) && h[next].before(h[child]) {
			child = next
		}
		if !h[child].before(d) {
			break
		}
		h[at] = h[child]
		at = child
	}
	h[at] = d
}
