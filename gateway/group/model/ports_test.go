package model

import (
	"hash/maphash"

	"sluice.dev/sluice/gateway/group"
)

// Greatest sizes. The arrays of a state have these lengths; bounds says how much of them is used.
const (
	maxMembers = 2
	maxPorts   = 3
	maxSlots   = 3
	maxQueue   = 3
	addresses  = 2 // source addresses of an owner and a family
)

// bounds are the sizes of one exploration of portModel.
type bounds struct {
	members  int            // members that have copies of the owner's flows
	slots    int            // records of the owner
	ports    [addresses]int // source ports of each source address
	queue    int            // messages that are sent and not acknowledged, for each member
	failures int            // failures in one history; any number if it is negative
}

// portModel is the owner of two source addresses, the members that have copies of its flows, the
// streams between them, and the connections of one backend. There is one backend because two flows
// can only be confused if their reply keys are equal, and so few ports that nearly every new flow
// takes the port of an earlier one. Clients are interchangeable; a new flow is of a client that
// nothing in the state names.
type portModel struct {
	bounds
	without rule // the rule that is taken out
}

func (m *portModel) follows(r rule) bool { return m.without != r }

// record is a flow as a Set message carries it: its client and its source port. Client 0 is no
// flow.
type record struct{ client, port uint8 }

// set is a set of members, a bit each.
type set uint8

func one(member int) set            { return 1 << member }
func (s set) has(member int) bool   { return s&one(member) != 0 }
func (s *set) add(member int)       { *s |= one(member) }
func (s *set) remove(member int)    { *s &^= one(member) }
func (m *portModel) everybody() set { return 1<<m.members - 1 }

// slot is a record of the owner's flow table.
type slot struct {
	record
	left  bool // the SYN-ACK has left to the client
	sent  set  // members that may have the record
	acked set  // members that have acknowledged the record
}

// held is a port whose flow has ended; by is empty for a port that is not held.
type held struct {
	by   set   // members that may still have the record
	slot uint8 // of the flow that has ended
}

// owner is the gateway that alone takes ports of its two source addresses.
type owner struct {
	alive     bool
	complete  bool // it knows all flows of its addresses that a member has
	slots     [maxSlots]slot
	held      [maxPorts]held
	addresses group.Addresses // on the owner's disk
}

// view says how far the owner has got with a member.
type view uint8

const (
	out     view = iota // no stream; not waited for
	unheard             // the owner has just started, and the member may be in step with the process before: waited for
	sending             // All was sent; not waited for
	waited              // AllDone was sent: a SYN-ACK waits for the member's acknowledgement
	inStep              // AllDone was acknowledged
)

// kind is the kind of a message from the owner to a member.
type kind uint8

const (
	noMessage    kind = iota
	allKind           // the first message of a stream: marks all copies as stale
	setRecord         // the record of a slot
	clearRecord       // the slot has no flow
	allDone           // removes the copies that are stale still
	completeTold      // the owner has taken back its flows from all members
)

type message struct {
	kind kind
	slot uint8
	record
}

// copied is a member's copy of a record, by its port: the reply key of a flow is unique in a table.
type copied struct {
	client uint8
	slot   uint8 // on the present stream; 0 if it is stale
	old    bool  // made by an incarnation of the owner that has lost its memory
	stale  bool  // not repeated since All
}

// member is a gateway with copies, and the owner's stream to it: queue has the messages that are
// sent and not acknowledged, of which the member has applied the first ones.
type member struct {
	alive   bool
	copies  [maxPorts]copied
	leased  bool // the member takes itself for in step: it applied AllDone, and its lease has not run out
	resets  bool // the owner has said that it is complete: the member answers unknown segments with RST
	stream  bool // messages on their way arrive
	lapsed  bool // the lease of the stream has run out: its AllDone does not bring the member in step any more
	old     bool // the stream is of an incarnation of the owner that has lost its memory
	queue   [maxQueue]message
	length  uint8
	applied uint8

	// The owner's notes about the member.
	view    view
	told    [maxSlots]record // as the member has it after all messages
	said    bool             // complete was sent
	reached bool             // its copies were taken back by this incarnation
}

// standing says whether a connection must survive one failure.
type standing uint8

const (
	unprotected standing = iota
	protected            // the SYN-ACK left after the copy, or all members have been in step since
)

// connection is the backend's connection at a source port; client 0 is none.
type connection struct {
	client   uint8
	standing standing
	failures uint8 // since the flow was made, or since all members were in step: 0, 1 or 2 for more
}

// portState is the state of portModel. It has no padding and no pointer.
type portState struct {
	owner    owner
	members  [maxMembers]member
	backend  [maxPorts]connection
	failures uint8 // in this history
}

// initial returns the state with all members in step, without flows, and the first address open.
func (m *portModel) initial() (s portState) {
	s.owner.alive, s.owner.complete = true, true
	s.owner.addresses = group.Addresses{group.Open, group.Spare}
	for i := range m.members {
		s.members[i] = member{
			alive: true, leased: true, resets: true, stream: true, view: inStep, said: true, reached: true,
		}
	}
	return s
}

// next appends the states after each event that can happen now.
func (m *portModel) next(s *portState, to *steps[portState]) {
	m.newFlow(s, to)
	m.synAckLeaves(s, to)
	m.flowEnds(s, to)
	m.ownerFails(s, to)
	m.ownerStarts(s, to)
	for i := range m.members {
		m.ownerSends(s, i, to)
		m.ownerHears(s, i, to)
		m.ownerStopsWaiting(s, i, to)
		m.memberConnects(s, i, to)
		m.memberApplies(s, i, to)
		m.memberLeaseEnds(s, i, to)
		m.memberEndsFlow(s, i, to)
		m.memberFails(s, i, to)
		m.streamBreaks(s, i, to)
	}
}

// address returns the source address of a port.
func (m *portModel) address(port int) int {
	if port < m.ports[0] {
		return 0
	}
	return 1
}

func (m *portModel) portCount() int { return m.ports[0] + m.ports[1] }

// slotOf returns the slot of the flow at a port, or -1.
func (o *owner) slotOf(port int) int {
	for i := range o.slots {
		if o.slots[i].client != 0 && int(o.slots[i].port) == port {
			return i
		}
	}
	return -1
}

// freeSlot returns a slot without a flow, or -1.
func (m *portModel) freeSlot(o *owner) int {
	for i := range m.slots {
		if o.slots[i].client == 0 {
			return i
		}
	}
	return -1
}

// clients calls f with each place of the state that names a client.
func (s *portState) clients(f func(*uint8)) {
	for i := range s.owner.slots {
		f(&s.owner.slots[i].client)
	}
	for i := range s.backend {
		f(&s.backend[i].client)
	}
	for i := range s.members {
		m := &s.members[i]
		for k := range m.copies {
			f(&m.copies[k].client)
		}
		for k := range m.told {
			f(&m.told[k].client)
		}
		for k := range m.queue {
			f(&m.queue[k].client)
		}
	}
}

// newClient returns a client that nothing in the state names.
func (s *portState) newClient() uint8 {
	var named uint32
	s.clients(func(c *uint8) { named |= 1 << *c })
	for c := uint8(1); ; c++ {
		if named>>c&1 == 0 {
			return c
		}
	}
}

// hash names clients by their first place in the state, and takes the lower hash of both orders of
// two members: neither clients nor members have names that matter.
func (m *portModel) hash(s *portState, seed maphash.Seed) uint64 {
	a := *s
	a.rename()
	h := maphash.Comparable(seed, a)
	if m.members == 2 {
		b := *s
		b.swapMembers()
		b.rename()
		h = min(h, maphash.Comparable(seed, b))
	}
	return h
}

func (s *portState) rename() {
	var names [32]uint8
	last := uint8(0)
	s.clients(func(c *uint8) {
		if *c == 0 {
			return
		}
		if names[*c] == 0 {
			last++
			names[*c] = last
		}
		*c = names[*c]
	})
}

func (s *portState) swapMembers() {
	swap := func(x *set) { *x = *x&1<<1 | *x>>1&1 }
	for i := range s.owner.slots {
		swap(&s.owner.slots[i].sent)
		swap(&s.owner.slots[i].acked)
	}
	for i := range s.owner.held {
		swap(&s.owner.held[i].by)
	}
	s.members[0], s.members[1] = s.members[1], s.members[0]
}
