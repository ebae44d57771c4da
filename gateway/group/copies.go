package group

import "sluice.dev/sluice/flowtable/conn"

// Store is a member's flow table, as Copies changes it. It numbers its records, from 1 on.
type Store interface {
	// Find returns the record of the owner's copy with a record's reply tuple, or 0.
	Find(r *Record) (n uint32)
	// Put makes the flow of a copy, or changes the flow in record n, and returns the number of the
	// copy's record. If n is not 0, its copy has the same reply tuple; a refusal ends that copy.
	Put(n uint32, r *Record) (uint32, Refusal)
	// CopyState returns the state of the copy in record n; State is None if its flow has ended.
	CopyState(n uint32) conn.CopyState
	// Remove ends the flow of the owner's copy in record n, if the record still has it, and returns
	// the age of its last datagram, or 1 if the flow has ended before.
	Remove(n uint32) Age
}

// Copies maps the slots of one owner to the records of a member's flow table. The copies stay while
// the owner sends nothing.
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
	refusals int              // number of refused slots
	present  uint64           // incarnation of the owner that sends on the stream
	pass     uint32           // counts All messages; a copy with another pass was not sent since the last All
	inStep   bool
	complete bool
	lapsed   bool     // the lease of the stream has run out: AllDone on it no longer brings the member in step
	seen     []uint32 // records of copies that packets have changed and whose state is not sent yet
}

// Index has, for each record of a member's flow table, the owner and slot of its copy: 8 bytes a
// record. All Copies of a member share one.
type Index []entry

// NewIndex returns the index of a table with a number of records.
func NewIndex(records uint32) Index { return make(Index, records) }

// Owner returns the owner whose copy a record is, or 0.
func (x Index) Owner(n uint32) int { return int(x[n].word & entryOwner) }

// Forget removes the entries of an owner. Its number may then be given to another owner.
func (x Index) Forget(owner int) {
	for n := range x {
		if x.Owner(uint32(n)) == owner {
			x[n] = entry{}
		}
	}
}

// entry describes the copy in a record; the zero value means no copy.
//
//	31   5      4      3   0
//	[ pass ][ present ][ owner ]
//
// present: slot is a number of the owner's present incarnation.
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

// refused marks a slot in a page, in place of a record number: the owner has a flow in the slot,
// and the member has refused its record.
const refused = ^uint32(0)

// page has the records of the copies of 512 slots.
type page struct {
	records [1 << pageBits]uint32
	used    int
}

// NewCopies returns the empty Copies of an owner. Owners have different numbers, from 1 to
// MaxMembers.
func NewCopies(owner int, index Index, s Store) *Copies {
	return &Copies{owner: uint32(owner), store: s, index: index, pages: map[uint32]*page{}}
}

// Recovered adds a copy that was in the table when this process started: its slot is not known.
func (c *Copies) Recovered(n uint32) { c.index[n] = entry{word: c.owner} }

// Connected is called when a new stream of an incarnation of the owner replaces the previous one:
// the member is out of step. It returns the records of copies of earlier incarnations, which the
// owner takes back.
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

// Lost is called when the lease has run out: the member is out of step until the next stream, and
// keeps its copies.
func (c *Copies) Lost() { c.inStep, c.complete, c.lapsed = false, false, true }

// InStep reports whether the member has applied all records of the owner. It is valid only while
// the lease holds.
func (c *Copies) InStep() bool { return c.inStep }

// Refused returns how many flows of the present stream the member has refused.
func (c *Copies) Refused() int { return c.refusals }

// MayReset reports whether this owner allows the member to answer segments of unknown connections
// with RST. It is valid only while the lease holds.
func (c *Copies) MayReset() bool { return c.inStep && c.complete && c.refusals == 0 }

// Apply applies the next message of the stream. After a refusal there is no copy of the slot. For a
// Clear it returns the age of the last datagram of the copy. If the flow table had already ended
// the copy, the age is 1.
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

// Refuse handles a Set that must not be applied, for example with another owner's source address.
// As after each refusal, there is no copy of its slot.
func (c *Copies) Refuse(msg *Message) {
	c.Apply(&Message{Kind: Clear, Slot: msg.Slot, Seq: msg.Seq})
	c.note(msg.Slot, refused)
}

// set makes or changes a copy. It replaces a copy of the slot that has another port, and a copy of
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
	c.Ended(n) // the record may have had another copy, whose end was not reported yet
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
		return 0 // the record now has another owner's copy
	}
	return n
}

// note sets the record of the copy of a slot; 0 means no copy.
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

// forgetRefused removes the marks of refused slots: the owner sends their records again on its next
// stream.
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
// n. It ends the copy, and returns the age of its last datagram. If the owner has not sent the
// copy's record on this stream, the copy only loses its slot: the owner may have a table of another
// size, in which the flow has another slot. Then the flow's own record, or AllDone, follows.
func (c *Copies) replaced(n uint32) Age {
	e := c.index[n]
	if n == 0 || c.current(e) {
		return c.remove(n)
	}
	c.Ended(n)
	c.index[n] = entry{word: e.word &^ entryPresent}
	return 1
}

// remove ends the copy in record n, if n is not 0, and returns the age of its last datagram.
func (c *Copies) remove(n uint32) Age {
	if n == 0 {
		return 0
	}
	c.Ended(n)
	return c.store.Remove(n)
}

// maxSeen bounds the copies whose state waits to be sent to the owner. The states of further copies
// are not sent: then the owner knows only the packets that have passed the owner.
const maxSeen = 1 << 16

// current reports whether the owner has sent the record of a copy on the present stream. If so, the
// slot of the copy's entry is valid, also while the records of other flows are sent.
func (c *Copies) current(e entry) bool { return e.word == c.pass<<entryPass|entryPresent|c.owner }

// Seen is called when packets have changed the copy in record n, so that its state is sent. Changes
// from before the owner sent the record on the present stream are left to Put.
func (c *Copies) Seen(n uint32) {
	if c.current(c.index[n]) && len(c.seen) < maxSeen {
		c.seen = append(c.seen, n)
	}
}

// CopyStates appends the states of up to max copies that packets have changed.
func (c *Copies) CopyStates(to []CopyState, max int) []CopyState {
	n := min(len(c.seen), max)
	for _, at := range c.seen[:n] {
		e := c.index[at]
		if !c.current(e) {
			continue
		}
		if s := c.store.CopyState(at); s.State != conn.None {
			to = append(to, CopyState{e.slot, s})
		}
	}
	c.seen = c.seen[:copy(c.seen, c.seen[n:])]
	return to
}

// Ended is called when record n no longer has a copy of this owner. As the keeper of their source
// address, the flow table ends copies by itself.
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
