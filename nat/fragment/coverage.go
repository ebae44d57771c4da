package fragment

// coverage says which bytes of a datagram have come, in units of 8 bytes, however many fragments
// there are and in whatever order.
//
// Each place in a datagram has a secret mark. A fragment adds the mark of its end and takes away
// that of its start. Where fragments meet, end and start cancel, so the sum is the mark of the
// datagram's end less that of its start if the fragments tile the datagram. A gap, an overlap or a
// duplicate leaves marks that nothing cancels: such a datagram is taken for complete by a chance of
// 2^-56. That errs to the safe side, as an incomplete context lives until it expires.
//
// So that duplicates are not added, the runs of bytes that have come are remembered, as far as
// there is room: one run where fragments come in order. Of fragments that do not touch a run the
// fourth and further ones are added and not remembered.
//
//	word 0  63                    8 7       0
//	        [ sum of marks        | protocol ]
//	word 1  63        48 47         32 31         16 15    14        0
//	        [ run 0: to | run 0: from | total units | again | first's to ]
//	word 2  [ run 2: to | run 2: from | run 1: to   | run 1: from        ]
type coverage struct {
	sum   uint64 // and the protocol
	first uint16 // where the first fragment ends
	total uint16 // where the last fragment ends; 0 as long as it has not come
	runs  [3]run // neither overlap nor touch; empty if to is 0
	// again: the datagram was complete, and at once its first fragment came again. What follows is
	// most likely duplicates, and some may have come before: it need not become complete.
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

// cover is what has come of a datagram with its first fragment.
func (t *Table) cover(d *Datagram) coverage {
	return coverage{
		sum: t.mark(d.To) - t.mark(0) + uint64(d.Proto), first: d.To, runs: [3]run{{0, d.To}},
	}
}

// complete reports whether all bytes of an entry's datagram have come.
func (t *Table) complete(e *entry) bool {
	total := uint16(e[entryCover+1].Load() >> 16)
	return total != 0 && (e[entryCover].Load()^(t.mark(total)-t.mark(0)))>>8 == 0
}

// mark maps a place in a datagram to 56 bits, above 8 zeros. It is the finalizer of SplitMix64
// (Steele, Lea and Flood, 2014) with a secret added.
func (t *Table) mark(unit uint16) uint64 {
	x := t.secret[1] + uint64(unit)
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return (x ^ x>>31) << 8
}

// addition is what add did with a fragment.
type addition uint8

const (
	added addition = iota
	duplicate
	overlaps
)

// add adds a later fragment. Its bytes must be all new or all known, behind the first fragment's,
// and no fragment may reach beyond the last one (RFC 5722 section 4; inet_frag_queue_insert,
// net/ipv4/inet_fragment.c).
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

// fits reports whether a fragment can be of a datagram whose last one has come.
func (c *coverage) fits(d *Datagram) bool {
	if d.Last {
		return d.To == c.total
	}
	return d.To < c.total
}

// remember joins a run with those that it touches, or takes a free place, if there is one.
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
