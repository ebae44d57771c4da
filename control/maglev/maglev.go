// Package maglev builds the lookup tables of Maglev hashing (Eisenbud et al., "Maglev: A Fast and
// Reliable Software Network Load Balancer", NSDI 2016, section 3.4): every backend gets an equal
// share of the slots, and when a backend is added or removed, few slots move between the others.
//
// Each backend has its own order of preference over all slots, derived from its name and the seed.
// Backends take turns; at its turn a backend takes the first free slot in its order:
//
//	backend a prefers 3 0 4 1 …      turn 1: a takes 3
//	backend b prefers 3 1 4 2 …      turn 2: b finds 3 taken, takes 1
//	                                 turn 3: a takes 0 …
//
// A table is a pure function of the names with their weights, the seed and the size. It is the same
// on every host, regardless of the order of the names.
package maglev

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math/bits"
	"runtime"
	"slices"
)

// MaxNames bounds the names of one table: slots hold positions in two bytes.
const MaxNames = 1 << 16

// sizes are primes, each about four times the previous one and just above 100 times a number of
// names (2, 10, 40, 160, 655, 2,621, 10,485, 41,943).
var sizes = [...]int{257, 1009, 4001, 16_001, 65_537, 262_147, 1_048_583, 4_194_319}

// Key converts a seed to the key of Table and of the selection hash (services.Snapshot.SelectKey).
// The key of a seed must never change: gateways of different versions must choose the same
// backends.
func Key(seed string) [2]uint64 {
	sum := sha256.Sum256([]byte("sluice maglev seed:" + seed))
	return [2]uint64{binary.LittleEndian.Uint64(sum[:]), binary.LittleEndian.Uint64(sum[8:])}
}

// Fingerprint returns 8 hexadecimal digits of a hash of the seed, for comparing gateways. 32 bits
// are too few to find a random seed or its Key.
func Fingerprint(seed string) string {
	sum := sha256.Sum256([]byte("sluice maglev fingerprint:" + seed))
	return hex.EncodeToString(sum[:4])
}

// Size returns the size of a table for n names: the smallest class with at least 100 slots per
// name, so that shares differ by about one percent. Classes are coarse because a change of size
// moves nearly every slot. From 41,944 names on it is the largest class, which has 64 slots per
// name at MaxNames.
func Size(n int) int {
	for _, s := range sizes {
		if s >= 100*n {
			return s
		}
	}
	return sizes[len(sizes)-1]
}

// Table returns a table of size slots. Each slot has the position, in names, of its backend. Shares
// are proportional to weights; nil weights are all equal, and a weight of zero gets no slot. size
// must be a prime not smaller than the number of names. Names must be distinct, and at most
// MaxNames. The table is nil if no name has a weight above zero.
func Table(names []string, weights []uint32, seed [2]uint64, size int) []uint16 {
	turns := order(names, weights, seed, size)
	if len(turns) == 0 {
		return nil
	}
	table := make([]uint16, size)
	if len(turns) == 1 {
		for i := range table {
			table[i] = turns[0].position
		}
		return table
	}
	if uneven(turns) {
		fillByRound(table, turns)
	} else {
		fill(table, turns)
	}
	return table
}

// turn is the state of a backend during filling.
type turn struct {
	next, skip uint32 // the next slot to try; the step of its order of preference
	weight     uint32
	credit     uint64 // weight saved for its next slot
	position   uint16
}

// order derives every backend's preferences, and returns the turns sorted by name, so that the
// order of names has no effect.
func order(names []string, weights []uint32, seed [2]uint64, size int) []turn {
	turns := make([]turn, 0, len(names))
	for i, name := range names {
		weight := uint32(1)
		if weights != nil {
			weight = weights[i]
		}
		if weight == 0 {
			continue
		}
		offset, skip := draw(name, seed)
		turns = append(turns, turn{
			// The high half of the product maps a hash to a range with negligible bias.
			next:     uint32(scale(offset, uint64(size))),
			skip:     uint32(scale(skip, uint64(size-1))) + 1,
			weight:   weight,
			position: uint16(i),
		})
	}
	slices.SortFunc(turns, func(a, b turn) int { return cmp.Compare(names[a.position], names[b.position]) })
	return turns
}

// draw hashes a name with the seed. SHA-256 costs 100 ns, and gives the same result on every host.
func draw(name string, seed [2]uint64) (offset, skip uint64) {
	var buf [80]byte
	in := binary.BigEndian.AppendUint64(buf[:0], seed[0])
	in = binary.BigEndian.AppendUint64(in, seed[1])
	sum := sha256.Sum256(append(in, name...))
	return binary.BigEndian.Uint64(sum[:8]), binary.BigEndian.Uint64(sum[8:16])
}

func scale(hash, n uint64) uint64 {
	hi, _ := bits.Mul64(hash, n)
	return hi
}

// fill lets backends take turns until the table is full. The size is prime, so every order of
// preference visits all slots, and each inner loop ends if a slot is free.
func fill(table []uint16, turns []turn) {
	size := uint32(len(table))
	taken := make([]uint64, (size+63)/64) // a bitmap stays in the cache, unlike a large table
	heaviest := uint64(0)
	for i := range turns {
		heaviest = max(heaviest, uint64(turns[i].weight))
	}
	for filled := uint32(0); ; {
		for i := range turns {
			t := &turns[i]
			if t.credit += uint64(t.weight); t.credit < heaviest {
				continue
			}
			t.credit -= heaviest
			slot := t.next
			for taken[slot>>6]>>(slot&63)&1 != 0 {
				slot = step(slot, t.skip, size)
			}
			taken[slot>>6] |= 1 << (slot & 63)
			table[slot] = t.position
			t.next = step(slot, t.skip, size)
			if filled++; filled == size {
				return
			}
			yield(filled)
		}
	}
}

// yield lets other goroutines run after each 2^14 slots, which take about a millisecond: if no
// processor is idle, the Go scheduler preempts only after ten.
func yield(filled uint32) {
	if filled&(1<<14-1) == 0 {
		runtime.Gosched()
	}
}

// step adds modulo size without a division.
func step(slot, skip, size uint32) uint32 {
	if slot += skip; slot >= size {
		slot -= size
	}
	return slot
}
