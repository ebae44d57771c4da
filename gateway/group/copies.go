package group

import "sluice.dev/sluice/nat/header"

// Store is a member's flow table, as Copies changes it.
type Store interface {
	// Put makes the flow of a copy, or changes it. Copies calls Remove after each refusal.
	Put(r *Record) Refusal
	// Remove ends the flow of a copy, if the table has one. It must not end any other flow.
	Remove(reply header.Tuple)
}

// Copies are the records of one owner that a member has, beside its flow table. They stay while the
// owner is not heard.
//
// Invariant: bySlot and byReply have the same copies, because a table has one flow for each reply
// tuple.
type Copies struct {
	store    Store
	bySlot   map[slotKey]header.Tuple
	byReply  map[header.Tuple]copied
	present  uint64 // incarnation of the owner that sends on the stream
	pass     uint64 // counts All; a copy whose pass is lower was not repeated since
	inStep   bool
	complete bool
	lapsed   bool // the lease of the stream has run out: its AllDone comes too late
}

// slotKey is a slot, as an incarnation of the owner numbers its slots.
type slotKey struct {
	incarnation uint64
	slot        uint32
}

type copied struct {
	slotKey
	pass uint64
}

// NewCopies returns the copies of an owner of whom the member has none.
func NewCopies(s Store) *Copies {
	return &Copies{store: s, bySlot: map[slotKey]header.Tuple{}, byReply: map[header.Tuple]copied{}}
}

// Connected notes that a new stream of an incarnation of the owner replaces the stream before: the
// member is out of step. It returns the reply tuples of copies of earlier incarnations, which the
// owner takes back.
func (c *Copies) Connected(incarnation uint64) (earlier []header.Tuple) {
	c.inStep, c.complete, c.lapsed = false, false, false
	c.present = incarnation
	for reply, k := range c.byReply {
		if k.incarnation != incarnation {
			earlier = append(earlier, reply)
		}
	}
	return earlier
}

// Incarnation returns the incarnation of the owner on the last stream, or 0 if there was none.
func (c *Copies) Incarnation() uint64 { return c.present }

// Lost notes that the lease has run out: the member is out of step until the next stream, and keeps
// its copies.
func (c *Copies) Lost() { c.inStep, c.complete, c.lapsed = false, false, true }

// InStep reports whether the member has all that the owner sent, as far as its lease holds.
func (c *Copies) InStep() bool { return c.inStep }

// MayReset reports whether the member may answer segments of unknown connections with RST, as far
// as this owner goes and its lease holds.
func (c *Copies) MayReset() bool { return c.inStep && c.complete }

// Apply applies the next message of the stream. After a refusal there is no copy of the slot.
func (c *Copies) Apply(msg *Message) Refusal {
	key := slotKey{c.present, msg.Slot}
	switch msg.Kind {
	case All:
		c.pass++
	case Set:
		return c.set(key, &msg.Record)
	case Clear:
		if reply, found := c.bySlot[key]; found {
			c.remove(reply)
		}
	case AllDone:
		for reply, k := range c.byReply {
			if k.pass < c.pass {
				c.remove(reply)
			}
		}
		c.inStep = !c.lapsed
	case Complete:
		c.complete = true
	}
	return Accepted
}

// Refuse handles a Set that must not be applied, for example of another owner's source address: as
// after each refusal there is no copy of its slot.
func (c *Copies) Refuse(msg *Message) {
	c.Apply(&Message{Kind: Clear, Slot: msg.Slot, Seq: msg.Seq})
}

// set makes or changes a copy. It replaces a copy of the slot with another port, and the copy of
// the port that an earlier incarnation made.
func (c *Copies) set(key slotKey, r *Record) Refusal {
	if reply, found := c.bySlot[key]; found && reply != r.Reply {
		c.remove(reply)
	}
	if k, found := c.byReply[r.Reply]; found && k.slotKey != key {
		delete(c.bySlot, k.slotKey)
	}
	c.bySlot[key], c.byReply[r.Reply] = r.Reply, copied{key, c.pass}
	refusal := c.store.Put(r)
	if refusal != Accepted {
		c.remove(r.Reply)
	}
	return refusal
}

func (c *Copies) remove(reply header.Tuple) {
	c.Ended(reply)
	c.store.Remove(reply)
}

// Ended notes that the flow table has ended the flow of a copy, as the keeper of its source
// address.
func (c *Copies) Ended(reply header.Tuple) {
	delete(c.bySlot, c.byReply[reply].slotKey)
	delete(c.byReply, reply)
}
