package fragment

// coverage tracks which bytes of a datagram have arrived, in units of 8 bytes, for any number and
// order of fragments.
//
// Each offset in a datagram has a secret mark. A fragment adds the mark of its end and subtracts
// the mark of its start. Where fragments meet, end and start cancel. So if the fragments tile the
// datagram, the sum is the mark of the datagram's end minus the mark of its start. A gap, an
// overlap or a duplicate leaves marks that do not cancel: such a datagram counts as complete with a
// probability of 2^-56. A context that never becomes complete is harmless: it lives until it
// expires.
//
// To detect duplicates, coverage also keeps the runs of bytes that have arrived, as far as there is
// room. If fragments arrive in order there is one run. A fourth or later run is added to the sum,
// but not kept.
//
//	word 0  63                    8 7       0
//	        [ sum of marks        | protocol ]
//	word 1  63        48 47         32 31         16 15    14        0
//	        [ run 0: to | run 0: from | total units | again | first's to ]
//	word 2  [ run 2: to | run 2: from | run 1: to   | run 1: from        ]
type coverage struct {
	sum   uint64 // and the protocol
	first uint16 // end of the first fragment
	total uint16 // end of the last fragment; 0 until it has arrived
	runs  [3]run // do not overlap or touch; empty if to is 0
	// again: the datagram was complete, and its first fragment arrived again at once. The fragments
	// that follow are most likely duplicates, and some may have arrived before it: the datagram
	// need not become complete.
	again bool
}

type run struct{ from, to uint16 }

const (
	coverWords = 3
	coverAgain = 1 << 15
)

func (e *entry) coverage() (c coverage) {
	one, two := e[entryCover+1].Load(), e[entryCover+2].Load()
	c.sum, c.total = e[entryCover].Load(), uint16(one>>16)
	c.first, c.again = uint16(one)&^coverAgain, one&coverAgain != 0
	c.runs = [3]run{{uint16(one >> 32), uint16(one >> 48)}, {uint16(two), uint16(two >> 16)},
		{uint16(two >> 32), uint16(two >> 48)}}
	return c
}

func (e *entry) setCoverage(c *coverage) {
	word := func(r run) uint64 { return uint64(r.to)<<16 | uint64(r.from) }
	first := uint64(c.first)
	if c.again {
		first |= coverAgain
	}
	e[entryCover].Store(c.sum)
	e[entryCover+1].Store(word(c.runs[0])<<32 | uint64(c.total)<<16 | first)
	e[entryCover+2].Store(word(c.runs[2])<<32 | word(c.runs[1]))
}

// cover returns the coverage of a datagram after its first fragment.
func (t *Table) cover(d *Datagram) coverage {
	return coverage{
		sum: t.mark(d.To) - t.mark(0) + uint64(d.Proto), first: d.To, runs: [3]run{{0, d.To}},
	}
}

// complete reports whether all bytes of an entry's datagram have arrived.
func (t *Table) complete(e *entry) bool {
	total := uint16(e[entryCover+1].Load() >> 16)
	return total != 0 && (e[entryCover].Load()^(t.mark(total)-t.mark(0)))>>8 == 0
}

// mark maps an offset in a datagram to 56 bits, above 8 zero bits. It is the finalizer of
// SplitMix64 (Steele, Lea and Flood, 2014) with a secret added.
func (t *Table) mark(unit uint16) uint64 {
	x := t.secret[1] + uint64(unit)
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return (x ^ x>>31) << 8
}

// addition is the result of add.
type addition uint8

const (
	added addition = iota
	duplicate
	overlaps
)

// add adds a later fragment. Its bytes must be all new or all known, and must follow the first
// fragment's, and no fragment may extend beyond the last one (RFC 5722 section 4;
// inet_frag_queue_insert, net/ipv4/inet_fragment.c).
func (t *Table) add(c *coverage, d *Datagram) addition {
	if d.From < c.first || c.total != 0 && !c.fits(d) {
		return overlaps
	}
	for _, r := range c.runs {
		switch {
		case r.to == 0:
		case r.from <= d.From && d.To <= r.to && (!d.Last || c.total != 0):
			return duplicate
		case d.From < r.to && r.from < d.To, d.Last && d.To < r.to:
			return overlaps
		}
	}
	if d.Last {
		c.total = d.To
	}
	c.sum += t.mark(d.To) - t.mark(d.From)
	c.remember(run{d.From, d.To})
	return added
}

// fits reports whether a fragment can belong to a datagram whose last fragment has arrived.
func (c *coverage) fits(d *Datagram) bool {
	if d.Last {
		return d.To == c.total
	}
	return d.To < c.total
}

// remember joins a run with the runs that it touches, or stores it in a free place, if there is
// one.
func (c *coverage) remember(n run) {
	for i, r := range c.runs {
		if r.to != 0 && (r.to == n.from || r.from == n.to) {
			n = run{min(n.from, r.from), max(n.to, r.to)}
			c.runs[i] = run{}
		}
	}
	for i := range c.runs {
		if c.runs[i].to == 0 {
			c.runs[i] = n
			return
		}
	}
}
