package group

import "sluice.dev/sluice/flowtable/conn"

// Store is a member's flow table, as Copies changes it. It numbers its records, from 1 on.
type Store interface {
	// Find returns the record of the owner's copy with a record's reply tuple, or 0.
	Find(r *Record) (n uint32)
	// Put makes the flow of a copy, or changes the one in record n, and returns the number of the
	// copy's record. If n is not 0, its copy has the same reply tuple; after a refusal it is gone.
	Put(n uint32, r *Record) (uint32, Refusal)
	// Sight returns the Sighting of record n, with the state None if its flow has ended.
	Sight(n uint32) conn.Sighting
	// Remove ends the flow of the owner's copy in record n, if the record still has it, and returns
	// the age of its last datagram, or 1 if the flow has ended before.
	Remove(n uint32) Age
}

// Copies are the records of one owner that a member has, beside its flow table. They stay while the
// owner is not heard.
//
//	pages   owner's slot ──► record of the member's table, or refused
//	index   record       ──► owner, slot, pass
//
// Invariant: a slot in pages and the entry of its record name each other.
type Copies struct {
	owner    uint32 // its number in the index
	store    Store
	index    Index
	pages    map[uint32]*page // of slots of the present incarnation
	refusals int              // slots that are refused
	present  uint64           // incarnation of the owner that sends on the stream
	pass     uint32           // counts All; a copy with another pass was not repeated since
	inStep   bool
	complete bool
	lapsed   bool     // the lease of the stream has run out: its AllDone comes too late
	seen     []uint32 // records of copies that packets have changed, for the owner
}

// Index says for each record of a member's flow table which copy it is: 8 bytes a record. All
// Copies of a member share one.
type Index []entry

// NewIndex returns the index of a table with a number of records.
func NewIndex(records uint32) Index { return make(Index, records) }

// Owner returns the owner whose copy a record is, or 0.
func (x Index) Owner(n uint32) int { return int(x[n].word & entryOwner) }

// Forget removes the entries of an owner, whose number may be another one's then.
func (x Index) Forget(owner int) {
	for n := range x {
		if x.Owner(uint32(n)) == owner {
			x[n] = entry{}
		}
	}
}

// entry is a record's copy; the zero value is none.
//
//	31   5      4      3   0
//	[ pass ][ present ][ owner ]
//
// present: slot is a number of the present incarnation.
type entry struct {
	slot uint32
	word uint32
}

const (
	entryOwner   = 15
	entryPresent = 16
	entryPass    = 5

	maxPass = 1<<(32-entryPass) - 1
)

const pageBits = 9

// refused is in a page in place of a record: the owner has a flow in the slot, and the member has
// refused its record.
const refused = ^uint32(0)

// page has the records of the copies of 512 slots.
type page struct {
	records [1 << pageBits]uint32
	used    int
}

// NewCopies returns the copies of an owner of whom the member has none. Owners have different
// numbers, from 1 to MaxMembers.
func NewCopies(owner int, index Index, s Store) *Copies {
	return &Copies{owner: uint32(owner), store: s, index: index, pages: map[uint32]*page{}}
}

// Recovered notes a copy that was in the table when this process started: its slot is not known.
func (c *Copies) Recovered(n uint32) { c.index[n] = entry{word: c.owner} }

// Connected notes that a new stream of an incarnation of the owner replaces the stream before: the
// member is out of step. It returns the records of copies of earlier incarnations, which the owner
// takes back.
func (c *Copies) Connected(incarnation uint64) (earlier []uint32) {
	c.inStep, c.complete, c.lapsed, c.seen = false, false, false, nil
	c.forgetRefused()
	if incarnation != c.present {
		clear(c.pages)
	}
	for n := range c.index {
		e := &c.index[n]
		if e.word&entryOwner != c.owner {
			continue
		}
		if incarnation != c.present {
			e.word &^= entryPresent
		}
		if e.word&entryPresent == 0 {
			earlier = append(earlier, uint32(n))
		}
	}
	c.present = incarnation
	return earlier
}

// Incarnation returns the incarnation of the owner on the last stream, or 0 if there was none.
func (c *Copies) Incarnation() uint64 { return c.present }

// Lost notes that the lease has run out: the member is out of step until the next stream, and keeps
// its copies.
func (c *Copies) Lost() { c.inStep, c.complete, c.lapsed = false, false, true }

// InStep reports whether the member has all that the owner sent, as far as its lease holds.
func (c *Copies) InStep() bool { return c.inStep }

// Refused returns the number of flows that the owner has sent on the present stream, and that the
// member has refused.
func (c *Copies) Refused() int { return c.refusals }

// MayReset reports whether the member may answer segments of unknown connections with RST, as far
// as this owner goes and its lease holds.
func (c *Copies) MayReset() bool { return c.inStep && c.complete && c.refusals == 0 }

// Apply applies the next message of the stream. After a refusal there is no copy of the slot. Of a
// Clear it returns the age of the last datagram of the copy. If the slot had no copy any more, the
// flow table has ended it, and the age is 1.
func (c *Copies) Apply(msg *Message) (Refusal, Age) {
	switch msg.Kind {
	case All:
		c.pass = c.pass%maxPass + 1
	case Set:
		return c.set(msg.Slot, &msg.Record), 0
	case Clear:
		n := c.at(msg.Slot)
		c.note(msg.Slot, 0)
		if n == 0 {
			return Accepted, 1
		}
		return Accepted, c.replaced(n)
	case AllDone:
		for n := range c.index {
			if e := c.index[n]; e.word&entryOwner == c.owner && e.word>>entryPass != c.pass {
				c.remove(uint32(n))
			}
		}
		c.inStep = !c.lapsed
	case Complete:
		c.complete = true
	}
	return Accepted, 0
}

// Refuse handles a Set that must not be applied, for example of another owner's source address: as
// after each refusal there is no copy of its slot.
func (c *Copies) Refuse(msg *Message) {
	c.Apply(&Message{Kind: Clear, Slot: msg.Slot, Seq: msg.Seq})
	c.note(msg.Slot, refused)
}

// set makes or changes a copy. It replaces a copy of the slot with another port, and the copy of
// the port that an earlier incarnation made.
func (c *Copies) set(slot uint32, r *Record) Refusal {
	before := c.store.Find(r)
	if n := c.at(slot); n != before {
		c.replaced(n)
	}
	n, refusal := c.store.Put(before, r)
	c.Ended(before)
	if refusal != Accepted {
		c.note(slot, refused)
		return refusal
	}
	c.Ended(n) // another copy had the record, and nobody has said that it ended
	c.note(slot, n)
	c.index[n] = entry{slot, c.pass<<entryPass | entryPresent | c.owner}
	return Accepted
}

// at returns the record of the copy of a slot, or 0.
func (c *Copies) at(slot uint32) uint32 {
	p := c.pages[slot>>pageBits]
	if p == nil {
		return 0
	}
	n := p.records[slot%(1<<pageBits)]
	if n == refused {
		return 0
	}
	if e := c.index[n]; e.slot != slot || e.word&(entryOwner|entryPresent) != c.owner|entryPresent {
		return 0 // another owner's copy has the record by now
	}
	return n
}

// note sets the record of the copy of a slot; 0 is none.
func (c *Copies) note(slot, n uint32) {
	p := c.pages[slot>>pageBits]
	if p == nil {
		if n == 0 {
			return
		}
		p = new(page)
		c.pages[slot>>pageBits] = p
	}
	at := &p.records[slot%(1<<pageBits)]
	if *at == refused {
		c.refusals--
	}
	if n == refused {
		c.refusals++
	}
	if *at == 0 {
		p.used++
	}
	if *at = n; n == 0 {
		p.used--
	}
	if p.used == 0 {
		delete(c.pages, slot>>pageBits)
	}
}

// forgetRefused forgets which slots are refused: the owner offers their flows on its next stream.
func (c *Copies) forgetRefused() {
	for first, p := range c.pages {
		for i := 0; c.refusals > 0 && i < len(p.records); i++ {
			if p.records[i] == refused {
				c.note(first<<pageBits+uint32(i), 0)
			}
		}
	}
}

// replaced is called when another record or a Clear has arrived for the slot of the copy in record
// n. It ends the copy, and returns the age of its last datagram. A copy that is not current only
// loses its slot: the owner may have a table of another size, in which the flow has another slot.
// Then the flow's own record, or AllDone, is still to come.
func (c *Copies) replaced(n uint32) Age {
	e := c.index[n]
	if n == 0 || c.current(e) {
		return c.remove(n)
	}
	c.Ended(n)
	c.index[n] = entry{word: e.word &^ entryPresent}
	return 1
}

// remove ends the copy in record n, and returns the age of its last datagram; 0 is none.
func (c *Copies) remove(n uint32) Age {
	if n == 0 {
		return 0
	}
	c.Ended(n)
	return c.store.Remove(n)
}

// maxSeen bounds the sightings that wait for the stream to the owner. Others are lost: then the
// owner knows its own sightings only.
const maxSeen = 1 << 16

// current reports whether the owner has sent the record of a copy on the present stream. If so, the
// flow has the slot of the copy's entry, also while the records of other flows are sent.
func (c *Copies) current(e entry) bool { return e.word == c.pass<<entryPass|entryPresent|c.owner }

// Seen notes that packets have changed the copy in record n. Put notes changes from before the
// owner sent its record on the present stream.
func (c *Copies) Seen(n uint32) {
	if c.current(c.index[n]) && len(c.seen) < maxSeen {
		c.seen = append(c.seen, n)
	}
}

// Sightings appends up to max Sightings of copies that packets have changed.
func (c *Copies) Sightings(to []Sighting, max int) []Sighting {
	n := min(len(c.seen), max)
	for _, at := range c.seen[:n] {
		e := c.index[at]
		if !c.current(e) {
			continue
		}
		if s := c.store.Sight(at); s.State != conn.None {
			to = append(to, Sighting{e.slot, s})
		}
	}
	c.seen = c.seen[:copy(c.seen, c.seen[n:])]
	return to
}

// Ended notes that record n has no copy of this owner any more. The flow table ends copies as the
// keeper of their source address.
func (c *Copies) Ended(n uint32) {
	e := c.index[n]
	if n == 0 || e.word&entryOwner != c.owner {
		return
	}
	numbered := e.word&entryPresent != 0 && c.at(e.slot) == n
	c.index[n] = entry{}
	if numbered {
		c.note(e.slot, 0)
	}
}
