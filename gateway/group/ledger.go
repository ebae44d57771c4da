package group

import "sluice.dev/sluice/nat/header"

// View is the state of an owner's stream to a member.
type View uint8

const (
	// Out: there is no stream, and no SYN-ACK waits for the member.
	Out View = iota
	// Unheard: this process has just started, and the member may be in step with the previous
	// process. SYN-ACKs wait for the member until Lost or Connected is called.
	Unheard
	// Sending: all records are being sent to the member. No SYN-ACK waits for it.
	Sending
	// Waited: AllDone was sent. SYN-ACKs wait for the member, because it is in step as soon as it
	// reads AllDone.
	Waited
	// InStep: the member has acknowledged AllDone.
	InStep
)

// Ledger records, for an owner, which members may have copies of its flows. Slots are below
// Config.Slots.
//
// Invariant: a port of which a member may have a record is in use or held.
type Ledger struct {
	members   Members
	complete  bool // this owner knows all flows of its source addresses
	slots     []slotNotes
	peers     [MaxMembers]peer
	held      map[header.Tuple]*held // by reply tuple
	heldSlots map[uint32][]*held
	refusals  [MaxMembers]int // slots with the member in refused
	window    int
	freed     func(slot uint32, forwarded int64)
}

// slotNotes has the state of one slot: 8 bytes.
type slotNotes struct {
	generation uint16 // counts the flows of the slot
	flow       flowState
	mayHave    Members // that may have the flow's record
	sent       Members // to which it was sent on their present stream
	acked      Members // that have acknowledged it on their present stream
	refused    Members // that have refused it: they have no room, or another flow of the client
	changed    Members // to which the present record is to be sent
}

// flowState is the state of the flow in a slot.
type flowState uint8

const (
	none flowState = iota
	live
	yielding // the flow must end: another member keeps its own flow of the client
)

// held is the port of an ended flow.
type held struct {
	reply      header.Tuple
	slot       uint32
	generation uint16
	by         Members // that may have the record
	sent       Members // to which it was sent on their present stream, and that have not acknowledged the end
	forwarded  int64   // the latest Remark.Forwarded, or Unknown
}

// peer is the stream to a member.
type peer struct {
	view         View
	reached      bool // the owner has taken back its records of earlier incarnations
	allSent      bool // All was sent
	completeSent bool // Complete was sent
	next         uint32
	changes      queue[uint32] // slots with the member's bit in changed, each once
	unacked      queue[sentMessage]
	lastSeq      uint64 // of the last message sent
	firstSeq     uint64 // of unacked's first message
}

// sentMessage is a message that is not acknowledged.
type sentMessage struct {
	kind       Kind
	slot       uint32
	generation uint16
}

// Config are the sizes of a Ledger.
type Config struct {
	Members Members // that get copies
	Slots   uint32  // number of records of the flow table
	// Free is called when no member can have the record of an ended flow any more: the port is
	// free. forwarded is the latest Remark.Forwarded of a member, or Unknown. Free may be nil.
	Free   func(slot uint32, forwarded int64)
	Window int // messages that may be sent to a member before one is acknowledged; 0 is DefaultWindow
}

// DefaultWindow bounds how many messages can be ahead of a beat on a stream: during a
// resynchronisation with seven owners a member must read the windows of all of them within a lease,
// although a message may take 2 us. It also bounds the memory of a stream to a member that reads
// slowly: 12 bytes a message.
const DefaultWindow = 1 << 12

// NewLedger returns the ledger of an owner that has no flows. complete means that no member can
// have a record with its source addresses, as in a new group or without members; otherwise the
// ledger is complete once all members were reached.
func NewLedger(c Config, complete bool) *Ledger {
	if c.Window == 0 {
		c.Window = DefaultWindow
	}
	if c.Free == nil {
		c.Free = func(uint32, int64) {}
	}
	l := &Ledger{
		members: c.Members, complete: complete || c.Members == 0, slots: make([]slotNotes, c.Slots), window: c.Window,
		freed: c.Free,
		held:  map[header.Tuple]*held{}, heldSlots: map[uint32][]*held{},
	}
	for m := range Member(MaxMembers) {
		if c.Members.Has(m) {
			l.peers[m].view = Unheard
		}
	}
	return l
}

// Begin adds a flow that the owner made, or took back, in a slot that has none.
func (l *Ledger) Begin(slot uint32) {
	n := &l.slots[slot]
	*n = slotNotes{generation: n.generation + 1, flow: live, changed: n.changed}
	l.Changed(slot)
}

// Has reports whether there is a slot with a number.
func (l *Ledger) Has(slot uint32) bool { return slot < uint32(len(l.slots)) }

// Acknowledged reports whether a member has acknowledged the record of a slot that was last sent to
// it, so it has or had a copy.
func (l *Ledger) Acknowledged(m Member, slot uint32) bool { return l.slots[slot].acked.Has(m) }

// Live reports whether the ledger has a flow in a slot.
func (l *Ledger) Live(slot uint32) bool { return l.slots[slot].flow != none }

// Changed is called when the record of a slot has changed, so that it is sent.
func (l *Ledger) Changed(slot uint32) {
	n := &l.slots[slot]
	for m := range Member(MaxMembers) {
		p := &l.peers[m]
		if p.view < Sending || n.changed.Has(m) || p.view == Sending && slot >= p.next {
			continue // no stream, already queued, or the walk over all slots (message) will read it
		}
		n.changed.add(m)
		p.changes.push(slot)
	}
}

// End removes the flow of a slot, which has ended; reply is its reply tuple. The slot may have
// another flow at once. The port is held as long as a member may have the record.
func (l *Ledger) End(slot uint32, reply header.Tuple) {
	n := &l.slots[slot]
	h := &held{reply: reply, slot: slot, generation: n.generation, by: n.mayHave, sent: n.sent}
	for m := Member(0); n.refused != 0; m++ {
		l.setRefused(n, m, false)
	}
	*n = slotNotes{generation: n.generation, changed: n.changed}
	l.Changed(slot)
	l.hold(h)
}
