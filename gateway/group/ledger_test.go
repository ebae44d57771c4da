package group

import (
	"slices"
	"testing"

	"sluice.dev/sluice/flowtable/conn"
	"sluice.dev/sluice/nat/header"
)

// pairing is a ledger with one member, and the member's copies in a table that may be full.
type pairing struct {
	*Ledger
	copies *Copies
	table  map[header.Tuple]Record
	full   bool
	age    Age               // of the last datagram of each copy
	flows  map[uint32]Record // of the owner
	now    int64
	freed  map[uint32]int64 // by slot: the argument of Free

	removed int // calls of Remove
}

func replyOf(port uint16) header.Tuple { return header.Tuple{DstPort: port + 1} }

// numberOf returns the record of the copy with a reply tuple: there is one for each port.
func numberOf(reply header.Tuple) uint32 { return uint32(reply.DstPort) }

func (p *pairing) Find(r *Record) uint32 {
	if _, found := p.table[r.Reply]; !found {
		return 0
	}
	return numberOf(r.Reply)
}

func (p *pairing) Put(n uint32, r *Record) (uint32, Refusal) {
	if p.full {
		p.Remove(n)
		return 0, TableFull
	}
	p.table[r.Reply] = *r
	return numberOf(r.Reply), Accepted
}

func (p *pairing) CopyState(uint32) conn.CopyState { return conn.CopyState{} }

func (p *pairing) Remove(n uint32) Age {
	delete(p.table, header.Tuple{DstPort: uint16(n)})
	p.removed++
	return p.age
}

func newPairing(window int) *pairing {
	p := &pairing{table: map[header.Tuple]Record{}, flows: map[uint32]Record{}, freed: map[uint32]int64{}}
	p.Ledger = NewLedger(Config{Members: One(0), Slots: 8, Window: window,
		Free: func(slot uint32, forwarded int64) { p.freed[slot] = forwarded }}, true)
	p.copies = NewCopies(1, NewIndex(100), p)
	p.copies.Connected(1)
	p.Connected(0)
	return p
}

func (p *pairing) begin(slot uint32, client, port uint16) {
	p.flows[slot] = Record{Client: header.Tuple{SrcPort: client}, Reply: replyOf(port)}
	p.Begin(slot)
}

func (p *pairing) end(slot uint32) {
	reply := p.flows[slot].Reply
	delete(p.flows, slot)
	p.End(slot, reply)
}

// exchange sends, applies and acknowledges until there is nothing to send, and returns the
// messages.
func (p *pairing) exchange() (all []Message) {
	for {
		msgs := p.Send(0, func(slot uint32) (Record, bool) { r, ok := p.flows[slot]; return r, ok }, nil, 100)
		if len(msgs) == 0 {
			return all
		}
		var remarks []Remark
		for i := range msgs {
			if why, age := p.copies.Apply(&msgs[i]); why != Accepted || age != 0 {
				remarks = append(remarks, Remark{Seq: msgs[i].Seq, Reason: why, Forwarded: age.Before(p.now)})
			}
		}
		all = append(all, msgs...)
		p.Applied(0, msgs[len(msgs)-1].Seq, remarks)
	}
}

func TestVerdict(t *testing.T) {
	p := newPairing(0)
	p.begin(1, 100, 1)
	if v := p.Verdict(1); v != NoMember {
		t.Errorf("before AllDone the verdict is %d, want NoMember", v)
	}
	p.exchange()
	if v := p.Verdict(1); v != Protected {
		t.Errorf("after the acknowledgement the verdict is %d, want Protected", v)
	}
	p.begin(2, 200, 2)
	if v := p.Verdict(2); v != Wait {
		t.Errorf("before the acknowledgement the verdict is %d, want Wait", v)
	}
	p.full = true
	p.exchange()
	if v := p.Verdict(2); v != RefusedByMember {
		t.Errorf("with a full table the verdict is %d, want RefusedByMember", v)
	}
	if len(p.table) != 1 || !p.copies.InStep() {
		t.Errorf("the member has %d copies, in step %t", len(p.table), p.copies.InStep())
	}
	p.Lost(0)
	if v := p.Verdict(1); v != NoMember {
		t.Errorf("without a member the verdict is %d, want NoMember", v)
	}
}

// TestRefused: owner and member count refused flows, and the member answers with RST only if there
// is none: each has ended, or was accepted later.
func TestRefused(t *testing.T) {
	p := newPairing(0)
	p.begin(1, 100, 1)
	p.exchange()
	want := func(what string, n int) {
		t.Helper()
		p.exchange()
		if p.Refused(0) != n || p.copies.Refused() != n || p.copies.MayReset() != (n == 0) {
			t.Errorf("%s: the owner counts %d refused flows, the member %d, want %d; may reset %t", what, p.Refused(0),
				p.copies.Refused(), n, p.copies.MayReset())
		}
	}
	p.full = true
	for slot := range uint32(4) {
		p.begin(2+slot, 200, uint16(2+slot))
	}
	want("a full table", 4)
	p.Changed(1)
	want("a change for which there is no room", 5)
	p.end(2)
	want("the end of a flow", 4)
	p.end(3)
	p.begin(3, 300, 3)
	want("another flow in the slot", 4)
	p.Lost(0)
	p.copies.Connected(1)
	p.Connected(0)
	if p.Refused(0)+p.copies.Refused() != 0 {
		t.Errorf("a new stream begins with %d and %d refused flows", p.Refused(0), p.copies.Refused())
	}
	want("a new stream", 4)
	p.full = false
	p.Changed(1)
	p.Changed(3)
	want("room for two", 2)
	p.copies.Refuse(&Message{Slot: 1})
	if n := p.copies.Refused(); n != 3 {
		t.Errorf("after a record of a foreign address the member counts %d refused flows", n)
	}
	p.Changed(1)
	p.end(4)
	p.end(5)
	want("room for all", 0)
	if len(p.copies.pages) != 1 || p.copies.pages[0].used != 2 {
		t.Errorf("pages %v", p.copies.pages)
	}
}

// TestOffer: a refused flow is sent again to the member in step that has refused it, and is
// protected when that one accepts it, although it had another flow of the client.
func TestOffer(t *testing.T) {
	p := newPairing(0)
	p.exchange()
	for slot := range uint32(2) {
		p.begin(slot, uint16(slot), uint16(slot))
	}
	read := func(slot uint32) (Record, bool) { r, ok := p.flows[slot]; return r, ok }
	p.Send(0, read, nil, 9)
	first := p.peers[0].lastSeq - 1
	p.Applied(0, first+1, []Remark{{Seq: first, Reason: OtherFlow}})
	if v, other := p.Verdict(0), p.Verdict(1); v != Yield || other != Protected {
		t.Errorf("verdicts %d and %d, want Yield, Protected", v, other)
	}
	if !p.Offers() || !p.Offer(0) || p.Offer(1) || p.Offer(2) {
		t.Error("not the refused flow is offered")
	}
	msgs := p.exchange()
	if len(msgs) != 1 || msgs[0].Slot != 0 || p.Verdict(0) != Protected || p.Offers() || p.Offer(0) {
		t.Errorf("messages %+v, verdict %d, offered %t", msgs, p.Verdict(0), p.Offers())
	}
}

// TestStateNotEvents: the changes of a slot between two calls of Send are one message.
func TestStateNotEvents(t *testing.T) {
	p := newPairing(0)
	p.exchange()
	for client := range uint16(100) {
		p.begin(3, client, client%2)
		p.Changed(3)
		p.end(3)
	}
	p.begin(3, 777, 1)
	if p.HeldPorts() != 0 {
		t.Errorf("%d ports are held that no member was told", p.HeldPorts())
	}
	msgs := p.exchange()
	if len(msgs) != 1 || msgs[0].Kind != Set || p.table[replyOf(1)].Client.SrcPort != 777 {
		t.Errorf("messages %+v, copies %v: want one, for the last client", msgs, p.table)
	}
}

// TestWindow: a member that acknowledges nothing costs Window messages.
func TestWindow(t *testing.T) {
	p := newPairing(2)
	for slot := range uint32(8) {
		p.begin(slot, 1, uint16(slot))
	}
	read := func(slot uint32) (Record, bool) { return p.flows[slot], true }
	if n := len(p.Send(0, read, nil, 100)); n != 2 {
		t.Errorf("%d messages were sent, want 2", n)
	}
	p.exchange()
	p.Applied(0, 2, nil)
	p.exchange()
	if !p.Settled() {
		t.Error("not all was sent after the acknowledgement")
	}
}

// TestRemoved: a member that was removed for good holds no port.
func TestRemoved(t *testing.T) {
	p := newPairing(0)
	p.begin(1, 100, 1)
	p.exchange()
	p.Lost(0)
	p.end(1)
	if !p.Held(replyOf(1)) {
		t.Error("the port is not held for the lost member")
	}
	p.Removed(0)
	if p.Held(replyOf(1)) {
		t.Error("the port is held for a removed member")
	}
}

// TestLateAllDone: an AllDone that is read after the lease has run out does not bring the member in
// step; the next stream does.
func TestLateAllDone(t *testing.T) {
	p := newPairing(0)
	p.copies.Lost()
	p.exchange()
	if p.copies.InStep() || p.copies.MayReset() {
		t.Error("the member is in step after its lease has run out")
	}
	p.copies.Connected(1)
	p.Connected(0)
	p.exchange()
	if !p.copies.InStep() || !p.copies.MayReset() {
		t.Error("the member is out of step on its next stream")
	}
}

// TestLeases: the member's side of a lease ends before the owner's if their clocks differ.
func TestLeases(t *testing.T) {
	const ahead = int64(1e12) // of the owner's clock before the member's
	var m MemberLease
	var o OwnerLease
	sent := int64(5e9)
	arrived := sent + 40e6
	o.Renew(arrived + ahead)
	m.Renew(sent)
	for now := sent; now < sent+2*LeaseNanos; now += 1e6 {
		if m.Holds(now) && o.Ended(now+ahead) {
			t.Fatalf("%d ms after the message the owner's side has ended, the member's has not", (now-sent)/1e6)
		}
	}
	if m.Holds(sent+LeaseNanos) || !o.Ended(arrived+ahead+LeaseNanos+driftNanos) {
		t.Error("a side of the lease does not end")
	}
}

// TestReleasedByLastMessage: the acknowledgement of a Clear that was sent before a flow began does
// not free the flow's port.
func TestReleasedByLastMessage(t *testing.T) {
	p := newPairing(0)
	p.begin(0, 100, 1)
	p.exchange()
	last := p.peers[0].lastSeq
	read := func(slot uint32) (Record, bool) { r, ok := p.flows[slot]; return r, ok }
	p.end(0)
	p.Send(0, read, nil, 1) // Clear, last+1
	p.begin(0, 200, 2)
	p.Send(0, read, nil, 1) // Set, last+2
	p.end(0)
	for _, c := range []struct {
		seq  uint64
		held bool
	}{{last + 1, true}, {last + 2, true}, {last + 3, false}} {
		p.Send(0, read, nil, 1)
		p.Applied(0, c.seq, nil)
		if p.Held(replyOf(2)) != c.held || p.Held(replyOf(1)) {
			t.Errorf("after message %d: port 2 held %t, want %t", c.seq, p.Held(replyOf(2)), c.held)
		}
	}
}

// TestForwarded: the owner learns when a member has forwarded the last datagram by the copy of an
// ended flow. It does not know if the copy had ended before, or was removed at AllDone.
func TestForwarded(t *testing.T) {
	const now = int64(1e15)
	for _, c := range []struct {
		name  string
		age   Age
		ended bool // the copy, before the flow
		lost  bool // the stream, after the end of the flow
		want  int64
	}{
		{"none", 0, false, false, 0}, {"just now", AgeOf(0), false, false, now},
		{"5 s ago", AgeOf(50), false, false, now - 5e9}, {"no copy", 0, true, false, now},
		{"long ago", AgeOf(1 << 30), false, false, now - (1<<16-2)*1e8}, {"a new stream", 0, false, true, Unknown},
	} {
		p := newPairing(0)
		p.now, p.age = now, c.age
		p.begin(1, 100, 1)
		p.exchange()
		if c.ended {
			p.copies.Ended(numberOf(replyOf(1)))
		}
		p.end(1)
		if c.lost {
			p.Lost(0)
			p.copies.Connected(1)
			p.Connected(0)
		}
		p.exchange()
		if got, ok := p.freed[1]; got != c.want || !ok {
			t.Errorf("%s: %d, %t, want %d", c.name, got, ok, c.want)
		}
	}
}

// TestOtherNumbers: an owner whose process has ended has the same flows in other slots: its table
// has another size. No copy ends for that, and the age of its last datagram stays. Copies that
// have lost their slot are returned on the next stream, and end at AllDone if their flow has ended.
func TestOtherNumbers(t *testing.T) {
	const now = int64(1e15)
	p := newPairing(0)
	p.now, p.age = now, AgeOf(50)
	for slot := range uint32(4) {
		p.begin(slot, uint16(100+slot), uint16(slot))
	}
	p.exchange()
	p.Ledger = NewLedger(Config{Members: One(0), Slots: 8, Free: p.Ledger.freed}, true)
	before := p.flows
	p.flows = map[uint32]Record{}
	for slot, was := range []uint32{1, 0, 3} { // flow 2 has ended
		p.flows[uint32(slot)] = before[was]
		p.Recovered(uint32(slot))
	}
	read := func(slot uint32) (Record, bool) { r, ok := p.flows[slot]; return r, ok }
	p.RecoveredHeld(5, replyOf(2))
	p.copies.Connected(1)
	p.Connected(0)
	for _, msg := range p.Send(0, read, nil, 2) {
		p.copies.Apply(&msg)
	}
	p.Lost(0)
	if earlier := p.copies.Connected(1); len(earlier) != 1 || earlier[0] != numberOf(replyOf(0)) {
		t.Errorf("the copies without a slot are %v, want %d", earlier, numberOf(replyOf(0)))
	}
	p.Connected(0)
	msgs := p.Send(0, read, nil, 9)
	for i := range msgs {
		if p.copies.Apply(&msgs[i]); p.removed > 0 && msgs[i].Kind == Set {
			t.Fatalf("%d copies have ended before AllDone", p.removed)
		}
		if msgs[i].Kind == All {
			if _, age := p.copies.Apply(&Message{Kind: Clear, Slot: 3}); age != 1 || p.removed > 0 {
				t.Errorf("a Clear of a former slot: age %d, %d copies have ended", age, p.removed)
			}
		}
	}
	p.Applied(0, msgs[len(msgs)-1].Seq, nil)
	if p.exchange(); p.removed != 1 || len(p.table) != 3 || p.freed[5] != Unknown || p.HeldPorts() != 0 {
		t.Errorf("%d copies have ended, %d are left, freed %v", p.removed, len(p.table), p.freed)
	}
	p.end(0)
	if p.exchange(); p.freed[0] != now-5e9 || len(p.table) != 2 {
		t.Errorf("freed %v, %d copies are left", p.freed, len(p.table))
	}
}

// TestReleasedAfterAllDone: a copy of an earlier incarnation is removed at AllDone. Its port is
// held until then, even if the slot has another flow, which the member has acknowledged.
func TestReleasedAfterAllDone(t *testing.T) {
	p := newPairing(0)
	p.begin(1, 100, 1)
	p.exchange()

	p.Ledger = NewLedger(Config{Members: One(0), Slots: 8}, false)
	delete(p.flows, 1)
	earlier := p.copies.Connected(2)
	if len(earlier) != 1 || earlier[0] != numberOf(replyOf(1)) || p.TakeBack(0, 0, false, replyOf(1)) {
		t.Fatalf("earlier copies %v, want one, which the owner does not know", earlier)
	}
	p.begin(0, 100, 1)
	p.TakeBack(0, 0, true, replyOf(1))
	p.Connected(0)
	p.end(0)
	p.begin(0, 200, 2)
	read := func(slot uint32) (Record, bool) { r, ok := p.flows[slot]; return r, ok }
	msgs := p.Send(0, read, nil, 2)
	for i := range msgs {
		p.copies.Apply(&msgs[i])
	}
	p.Applied(0, 2, nil)
	if !p.Held(replyOf(1)) || len(p.table) != 2 {
		t.Errorf("before AllDone: held %t, %d copies, want held, 2", p.Held(replyOf(1)), len(p.table))
	}
	p.exchange()
	if p.Held(replyOf(1)) || len(p.table) != 1 || !p.Complete() {
		t.Errorf("after AllDone: held %t, %d copies, want not held, 1", p.Held(replyOf(1)), len(p.table))
	}
}

// TestJoiner: a SYN-ACK waits for a member that was sent AllDone, before it is acknowledged.
// Complete is sent when the owner has reached all members.
func TestJoiner(t *testing.T) {
	l := NewLedger(Config{Members: One(0) | One(1), Slots: 8}, false)
	live := map[uint32]bool{3: true}
	read := func(slot uint32) (Record, bool) { return Record{}, live[slot] }
	kinds := func(m Member) (k []Kind) {
		for _, msg := range l.Send(m, read, nil, 100) {
			k = append(k, msg.Kind)
		}
		return k
	}
	l.Begin(3)
	if v := l.Verdict(3); v != Wait {
		t.Errorf("before the leases have run out the verdict is %d, want Wait", v)
	}
	l.Lost(1)
	l.Connected(0)
	if v := l.Verdict(3); v != NoMember {
		t.Errorf("before AllDone is sent the verdict is %d, want NoMember", v)
	}
	if got, want := kinds(0), []Kind{All, Set, AllDone}; !slices.Equal(got, want) {
		t.Errorf("messages %v, want %v", got, want)
	}
	if v := l.Verdict(3); v != Wait {
		t.Errorf("after AllDone is sent the verdict is %d, want Wait", v)
	}
	l.Connected(1)
	if got, want := kinds(0), []Kind{Complete}; !slices.Equal(got, want) {
		t.Errorf("messages %v after all members were reached, want %v", got, want)
	}
}
