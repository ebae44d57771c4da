package fastpath

import "sluice.dev/sluice/flowtable"

// groupSize is the number of packets in a stage: enough to keep as many cache misses in flight as
// the processor can, and few enough that prefetches are rarely dropped, or their lines evicted
// before use.
const groupSize = 16

// searches is the number of searches in memory: those needed by the three groups in flight, rounded
// up to a power of two. All of them stay in the first-level cache.
const searches = 4 * groupSize

// batch has the packets of a batch, in one array per field, so that each pass reads only the fields
// it needs.
type batch struct {
	desc   [BatchSize]Desc
	search [searches]flowtable.Search // of the packets between inspect and finish, by index modulo searches
	origin                            // of all packets
	fetch  prefetches
	pkt    packet // the current packet, unless the lookahead parsed it
}

// group is the part of a batch that passes a stage together.
type group struct {
	desc   *[groupSize]Desc
	search *[groupSize]flowtable.Search
}

// group returns the group that begins with packet first.
func (b *batch) group(first int) group {
	return group{(*[groupSize]Desc)(b.desc[first:]), (*[groupSize]flowtable.Search)(b.search[first%searches:])}
}

// searchOf returns the search of packet i, which has not left finish.
func (b *batch) searchOf(i int) *flowtable.Search { return &b.search[i%searches] }
