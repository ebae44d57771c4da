package session

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"sluice.dev/sluice/gateway/group"
	"sluice.dev/sluice/gateway/group/grouptest"
	"sluice.dev/sluice/gateway/group/wire"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/test/bed/size"
)

const ms = int64(1e6)

// pair is an owner, a member, and the two ends of a stream between them.
type pair struct {
	t      *testing.T
	now    int64
	ledger *group.Ledger
	lease  group.OwnerLease
	flows  map[uint32]group.Record
	full   bool // the owner's table
	*grouptest.Table
	copies *group.Copies
	*Sender
	*Receiver
}

// ownerFlows are the flows of the owner, as its Sender sees them.
type ownerFlows struct{ *pair }

func (p ownerFlows) Read(slot uint32) (group.Record, bool) { r, ok := p.flows[slot]; return r, ok }

func (p ownerFlows) Find(reply header.Tuple) (slot uint32, found bool) {
	for slot, r := range p.flows {
		if r.Reply == reply {
			return slot, true
		}
	}
	return 0, false
}

func (p ownerFlows) Make(r *group.Record) (slot uint32, ok bool) {
	if p.full {
		return 0, false
	}
	slot = uint32(len(p.flows))
	p.flows[slot] = *r
	return slot, true
}

// Hold has room for each port.
func (p ownerFlows) Hold(*group.Record) (slot uint32, ok bool) { return 0, true }
func (ownerFlows) ApplyCopyState(group.CopyState)              {}

func newPair(t *testing.T) *pair {
	p := &pair{t: t, now: 1000 * ms, flows: map[uint32]group.Record{}, Table: grouptest.NewTable()}
	p.ledger = group.NewLedger(group.Config{Members: group.One(0), Slots: 4096}, true)
	p.copies = group.NewCopies(1, group.NewIndex(5000), p)
	p.open(1)
	return p
}

// open opens a new stream of an incarnation of the owner.
func (p *pair) open(incarnation uint64) {
	p.Sender = NewSender(Owner{
		Self: wire.Greeting{Name: "gw-a", Incarnation: incarnation}, Sources: sources, Ledger: p.ledger,
		Flows: ownerFlows{p},
		Name:  "gw-b", Lease: &p.lease,
	})
	p.Receiver = NewReceiver(Member{
		Self: wire.Greeting{Name: "gw-b"}, Owner: "gw-a", Sources: sources, Copies: p.copies,
		Read: p.Table.Read,
	})
}

func (p *pair) begin(slot uint32, r group.Record) {
	p.flows[slot] = r
	p.ledger.Begin(slot)
}

// exchange passes frames both ways until there are none.
func (p *pair) exchange() {
	p.t.Helper()
	for sent := true; sent; {
		sent = false
		for f := p.Sender.Next(p.now, nil); len(f) > 0; f = p.Sender.Next(p.now, nil) {
			if err := p.Receiver.Receive(f); err != nil {
				p.t.Fatal(err)
			}
			sent = true
		}
		for f := p.Receiver.Next(p.now, nil); len(f) > 0; f = p.Receiver.Next(p.now, nil) {
			if err := p.Sender.Receive(f, p.now); err != nil {
				p.t.Fatal(err)
			}
			sent = true
		}
	}
}

func TestInStep(t *testing.T) {
	p := newPair(t)
	for slot := range uint32(3000) {
		r := recordOf(uint16(slot), 0)
		r.Reply.DstPort = uint16(slot)
		p.begin(slot, r)
	}
	p.exchange()
	if len(p.Records) != 3000 || !p.InStep(p.now) || !p.MayReset(p.now) || !p.ledger.Settled() {
		t.Errorf("%d copies, in step %t, may reset %t, settled %t", len(p.Records), p.InStep(p.now), p.MayReset(p.now),
			p.ledger.Settled())
	}
	for range 20 { // beats keep the lease
		p.now += BeatNanos
		p.exchange()
		if !p.InStep(p.now) || p.Lapsed(p.now) || p.lease.Ended(p.now) {
			t.Fatalf("in step %t, lapsed %t", p.InStep(p.now), p.Lapsed(p.now))
		}
	}
	p.now += group.LeaseNanos
	if p.InStep(p.now) || p.MayReset(p.now) || !p.Lapsed(p.now) || p.lease.Ended(p.now) {
		t.Error("without beats the member's lease does not run out first")
	}
}

// TestTakeBack: an owner that lost its memory takes its flows back. If its table has no room for a
// flow, the port is held until the member has removed the copy.
func TestTakeBack(t *testing.T) {
	for _, full := range []bool{false, true} {
		p := newPair(t)
		p.begin(7, recordOf(100, 1))
		p.exchange()
		p.flows, p.full = map[uint32]group.Record{}, full
		p.ledger = group.NewLedger(group.Config{Members: group.One(0), Slots: 4096}, false)
		p.open(2)
		for len(p.flows) == 0 && !p.ledger.Held(replyOf(1)) {
			if f := p.Sender.Next(p.now, nil); len(f) > 0 {
				if err := p.Receiver.Receive(f); err != nil {
					t.Fatal(err)
				}
			}
			if err := p.Sender.Receive(p.Receiver.Next(p.now, nil), p.now); err != nil {
				t.Fatal(err)
			}
		}
		if full == (p.flows[0] == recordOf(100, 1)) || p.ledger.Held(replyOf(1)) != full || len(p.Records) != 1 {
			t.Errorf("full %t: the owner has %v, the member %v", full, p.flows, p.Records)
		}
		p.exchange()
		if held := p.ledger.Held(replyOf(1)); held || full == (len(p.Records) == 1) || !p.ledger.Complete() {
			t.Errorf("full %t: held %t, member %v, complete %t", full, held, p.Records, p.ledger.Complete())
		}
	}
}

// TestForeignAddress: a member has no copy of a record of a source address that is not the owner's.
// The flow is unprotected, and a copy that the slot had before is gone.
func TestForeignAddress(t *testing.T) {
	p := newPair(t)
	p.begin(1, recordOf(100, 1))
	p.exchange()
	foreign := recordOf(200, 1)
	foreign.Reply.Dst = header.AddrFrom4([4]byte{10, 9, 0, 3})
	p.flows[1] = foreign
	p.ledger.Changed(1)
	p.exchange()
	sent, received := p.Sender.refusal, p.Receiver.refusal
	if len(p.Records) != 0 || sent[group.ForeignAddress] != 1 || received != sent {
		t.Errorf("copies %v, refusals %v and %v", p.Records, received, sent)
	}
	if v := p.ledger.Verdict(1); v != group.RefusedByMember {
		t.Errorf("verdict %d, want RefusedByMember", v)
	}
}

// TestRefusedFrames: each is an error, and changes nothing.
func TestRefusedFrames(t *testing.T) {
	hello := func(name string, incarnation uint64) []byte {
		return wire.AppendHello(nil, wire.Greeting{Name: name, Incarnation: incarnation})
	}
	version := hello("gw-a", 1)
	version[2]++
	otherList := wire.AppendHello(nil, wire.Greeting{Name: "gw-a", Incarnation: 1, Sources: 1})
	set := func(seq uint64) group.Message {
		return group.Message{Kind: group.Set, Slot: 2, Seq: seq, Record: recordOf(200, 2)}
	}
	records := func(m ...group.Message) []byte { return wire.AppendRecords(nil, m) }
	beyond := set(5)
	beyond.Record.State = 99
	for _, c := range []struct {
		name   string
		opened bool // the stream has had a Hello, and All, Set, AllDone and Complete: numbers 1 to 4
		frame  []byte
		want   string
	}{
		{"another member's name", false, hello("gw-c", 1), `the Hello is of "gw-c", the certificate is of "gw-a"`},
		{"another list of members", false, otherList,
			"group.members of gw-a and of gw-b differ in source addresses of these two"},
		{"another version", false, version, "all gateways of a group must have the same version"},
		{"records before the Hello", false, records(set(1)), "malformed"},
		{"a second Hello", true, hello("gw-a", 1), "out of turn"},
		{"a gap", true, records(set(6)), "out of turn"},
		{"a repeated message", true, records(set(4)), "out of turn"},
		{"All in the middle", true, records(set(5), group.Message{Kind: group.All, Seq: 6}), "out of turn"},
		{"an error after a record", true, records(set(5), beyond), "malformed"},
		{"a beat that returns a future time", true, wire.AppendBeat(nil, 9e18), "out of turn"},
		{"a beat that returns a time before the stream", true, wire.AppendBeat(nil, 0), "out of turn"},
		{"a frame of the other direction", true, wire.AppendMine(nil, nil, true), "out of turn"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPair(t)
			if c.opened {
				p.begin(1, recordOf(100, 1))
				p.exchange()
			}
			copies, inStep := len(p.Records), p.InStep(p.now)
			if err := p.Receiver.Receive(c.frame); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
			if len(p.Records) != copies || p.InStep(p.now) != inStep || p.InStep(p.now+group.LeaseNanos) {
				t.Errorf("copies %v, in step %t, before %d, %t", p.Records, p.InStep(p.now), copies, inStep)
			}
		})
	}
}

// TestOlderProcess: a stream of an earlier incarnation does not replace one of a later incarnation.
func TestOlderProcess(t *testing.T) {
	p := newPair(t)
	p.exchange()
	p.open(3)
	p.exchange()
	p.open(2)
	err := p.Receiver.Receive(p.Sender.Next(p.now, nil))
	if err == nil || !strings.Contains(err.Error(), "a newer process of gw-a has connected") {
		t.Errorf("error %v", err)
	}
	if !p.copies.InStep() {
		t.Error("the refused Hello brought the member out of step")
	}
}

// TestRefusedAnswers: each is an error of the owner's end, and changes nothing.
func TestRefusedAnswers(t *testing.T) {
	applied := func(sent int64, seq uint64, back ...uint16) []byte {
		a := wire.Acknowledgement{Sent: sent, Seq: seq}
		for _, b := range back {
			a.Remarks = append(a.Remarks, wire.Remark{Back: b, Reason: group.TableFull})
		}
		return wire.AppendApplied(nil, &a)
	}
	foreign := recordOf(1, 1)
	foreign.Reply.Dst = header.AddrFrom4([4]byte{10, 9, 0, 3})
	for _, c := range []struct {
		name   string
		frames int // of the member that were read before
		frame  []byte
		want   string
	}{
		{"another member's name", 0, wire.AppendHello(nil, wire.Greeting{Name: "gw-c"}), `the Hello is of "gw-c"`},
		{"an answer before the Hello", 0, applied(1, 0), "malformed"},
		{"a flow of another owner", 1, wire.AppendMine(nil, []group.Record{recordOf(1, 1), foreign}, true),
			"gw-b returns a flow with source address 10.9.0.3, which is not this gateway's"},
		{"messages that were not sent", 9, applied(9e18, 99), "out of turn"},
		{"fewer messages than before", 9, applied(9e18, 1), "out of turn"},
		{"an earlier time", 9, applied(1, 4), "out of turn"},
		{"a refusal after the acknowledgement", 9, applied(9e18, 4, 1), "out of turn"},
		{"a second Hello", 9, wire.AppendHello(nil, wire.Greeting{Name: "gw-b"}), "malformed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPair(t)
			if c.frames == 9 {
				p.begin(1, recordOf(100, 1))
				p.exchange()
			} else if f := p.Sender.Next(p.now, nil); len(f) == 0 {
				t.Fatal("no Hello")
			}
			if c.frames == 1 {
				if err := p.Sender.Receive(wire.AppendHello(nil, wire.Greeting{Name: "gw-b"}), p.now); err != nil {
					t.Fatal(err)
				}
			}
			flows, view, verdict := len(p.flows), p.ledger.View(0), p.ledger.Verdict(1)
			if err := p.Sender.Receive(c.frame, p.now+ms); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
			if len(p.flows) != flows || p.ledger.View(0) != view || p.ledger.Verdict(1) != verdict {
				t.Errorf("flows %v, view %d, before %d, %d", p.flows, p.ledger.View(0), flows, view)
			}
		})
	}
}

// TestRefusedTogether: refusals of more messages than one Applied covers.
func TestRefusedTogether(t *testing.T) {
	p := newPair(t)
	foreign := recordOf(200, 1)
	foreign.Reply.Dst = header.AddrFrom4([4]byte{10, 9, 0, 3})
	for slot := range uint32(4000) {
		p.begin(slot, foreign)
	}
	for f := p.Sender.Next(p.now, nil); len(f) > 0; f = p.Sender.Next(p.now, nil) { // Hello
		if err := p.Receiver.Receive(f); err != nil {
			t.Fatal(err)
		}
	}
	for f := p.Receiver.Next(p.now, nil); !p.Running(); f = p.Receiver.Next(p.now, nil) { // Hello, Mine
		if err := p.Sender.Receive(f, p.now); err != nil {
			t.Fatal(err)
		}
	}
	for f := p.Sender.Next(p.now, nil); len(f) > 0; f = p.Sender.Next(p.now, nil) { // all Records at once
		if err := p.Receiver.Receive(f); err != nil {
			t.Fatal(err)
		}
	}
	p.exchange()
	if n := p.Sender.refusal[group.ForeignAddress]; n != 4000 || !p.ledger.Settled() {
		t.Errorf("%d refusals, settled %t, want 4000", n, p.ledger.Settled())
	}
}

// TestMutatedFrames: a changed frame is refused as a whole, or has records of the owner's addresses
// only. Nothing panics.
func TestMutatedFrames(t *testing.T) {
	mutations := size.Runs(t, 20_000, 10_000)
	seed := rand.Uint64()
	t.Logf("%d mutations, seed %d", mutations, seed)
	r := rand.New(rand.NewPCG(seed, 0))
	hello := wire.AppendHello(nil, wire.Greeting{Name: "gw-a", Incarnation: 1})
	all := []group.Message{{Kind: group.All, Seq: 1}}
	for i := range uint16(4) {
		m := group.Message{Kind: group.Set, Slot: uint32(i), Seq: uint64(i) + 2, Record: recordOf(i, i)}
		all = append(all, m)
	}
	valid := wire.AppendRecords(nil, append(all, group.Message{Kind: group.AllDone, Seq: 6}))
	applied := 0
	p := newPair(t)
	for range mutations {
		p.Table = grouptest.NewTable()
		p.copies = group.NewCopies(1, group.NewIndex(100), p)
		p.open(1)
		if err := p.Receiver.Receive(hello); err != nil {
			t.Fatal(err)
		}
		for range 2 { // Hello, Mine
			p.Receiver.Next(p.now, nil)
		}
		frame := bytes.Clone(valid)
		for range 1 + r.IntN(3) {
			frame[r.IntN(len(frame))] ^= 1 << r.IntN(8)
		}
		err := p.Receiver.Receive(frame)
		if err != nil && (len(p.Records) > 0 || p.copies.InStep()) {
			t.Fatalf("%x: %v, and %d copies were made", frame, err, len(p.Records))
		}
		if err == nil {
			applied++
		}
		for reply := range p.Records {
			if reply.Dst != sources[0] && reply.Dst != sources[1] {
				t.Fatalf("%x: a copy for %s was made", frame, reply.Dst)
			}
		}
		if err != nil && !errors.Is(err, wire.ErrMalformed) && !errors.Is(err, ErrUnexpected) {
			t.Fatalf("%x: %v", frame, err)
		}
	}
	t.Logf("%d were valid frames", applied)
}
