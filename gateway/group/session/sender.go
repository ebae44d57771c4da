package session

import (
	"fmt"
	"slices"

	"sluice.dev/sluice/gateway/group"
	"sluice.dev/sluice/gateway/group/wire"
	"sluice.dev/sluice/nat/header"
)

// Flows is the owner's flow table.
type Flows interface {
	// Read returns the present record of a slot, and whether the slot has a flow.
	Read(slot uint32) (group.Record, bool)
	// Find returns the slot of the flow with a reply tuple.
	Find(reply header.Tuple) (slot uint32, found bool)
	// Make makes a flow that a member returns. ok is false if the table has no room, or has another
	// flow of the client.
	Make(r *group.Record) (slot uint32, ok bool)
	// Hold makes a record, without a flow, that keeps its reply tuple from new flows until the
	// Ledger frees the port. ok is false if the table has no room.
	Hold(r *group.Record) (slot uint32, ok bool)
	// ApplyCopyState updates a flow by the state of a member's copy. The slot may have no flow.
	ApplyCopyState(s group.CopyState)
}

// Owner is a Sender's configuration.
type Owner struct {
	Self    wire.Greeting
	Sources []header.Addr // own source addresses
	Ledger  *group.Ledger
	Flows   Flows
	Member  group.Member
	Name    string            // of the member
	Lease   *group.OwnerLease // about the member: it outlives streams
}

// Sender is the owner's end of a stream to a member.
type Sender struct {
	c       Owner
	phase   phase
	lastSeq uint64 // of the last message sent
	applied uint64 // of the last message that the member has applied
	echo    int64  // Sent of the last Applied
	heard   bool   // an Applied has arrived
	beaten  bool   // a beat was sent
	beat    int64  // when the last beat was sent
	remarks []group.Remark
	refusal [group.MaxRefusal + 1]uint64
	buffer  []group.Message
	mine    []group.Record
	seen    []group.CopyState
	answer  wire.Acknowledgement
}

type phase uint8

const (
	opening    phase = iota // Sender: its Hello is to be sent
	greeted                 // Sender: the member's Hello is awaited
	takingBack              // Sender: Mine is awaited; Receiver: it is to be sent
	running
)

// NewSender returns the owner's end of a new stream.
func NewSender(c Owner) *Sender { return &Sender{c: c} }

// Running reports whether records were sent on this stream. Before the first record, the member has
// already marked itself as out of step.
func (s *Sender) Running() bool { return s.phase == running }

// Receive handles a frame of the member. After an error the stream must be closed.
func (s *Sender) Receive(frame []byte, now int64) error {
	switch s.phase {
	case greeted:
		g, err := wire.ReadHello(frame)
		if err == nil && g.Name != s.c.Name {
			err = fmt.Errorf("the Hello is of %q, the member is %q", g.Name, s.c.Name)
		}
		s.phase = takingBack
		return err
	case takingBack:
		return s.takeBack(frame, now)
	case running:
		if wire.KindOf(frame) == wire.CopyStates {
			return s.copyStates(frame)
		}
		return s.acknowledged(frame, now)
	}
	return ErrUnexpected
}

// takeBack takes back the flows of a Mine. After the last Mine, all records are sent to the member.
func (s *Sender) takeBack(frame []byte, now int64) error {
	records, last, err := wire.ReadMine(frame, s.mine[:0])
	if err != nil {
		return err
	}
	s.mine = records
	for i := range records {
		if source := records[i].Reply.Dst; !slices.Contains(s.c.Sources, source) {
			return fmt.Errorf("%s returns a flow with source address %s, which is not this gateway's", s.c.Name, source)
		}
	}
	for i := range records {
		if !s.takeBackOne(&records[i]) {
			return fmt.Errorf("the flow table has no room for a flow that %s returns: the stream begins again when "+
				"there is room", s.c.Name)
		}
	}
	if last {
		s.c.Ledger.Connected(s.c.Member)
		s.c.Lease.Renew(now)
		s.phase, s.mine = running, nil
	}
	return nil
}

func (s *Sender) takeBackOne(r *group.Record) bool {
	slot, live := s.c.Flows.Find(r.Reply)
	if s.c.Ledger.TakeBack(s.c.Member, slot, live, r.Reply) {
		return true
	}
	if slot, ok := s.c.Flows.Make(r); ok {
		s.c.Ledger.Begin(slot)
		s.c.Ledger.TakeBack(s.c.Member, slot, true, r.Reply)
		return true
	}
	slot, ok := s.c.Flows.Hold(r)
	if ok { // the member has the record until it has read AllDone
		s.c.Ledger.RecoveredHeld(slot, r.Reply)
	}
	return ok
}

// copyStates handles the states of the member's copies. A member that has a copy of a slot has not
// acknowledged the end of the flow, so the slot still has that flow, or its ended record.
func (s *Sender) copyStates(frame []byte) error {
	seen, err := wire.ReadCopyStates(frame, s.seen[:0])
	if err != nil {
		return err
	}
	s.seen = seen
	for _, sighting := range seen {
		if !s.c.Ledger.Has(sighting.Slot) {
			return ErrUnexpected
		}
	}
	for _, sighting := range seen {
		s.c.Flows.ApplyCopyState(sighting)
	}
	return nil
}

func (s *Sender) acknowledged(frame []byte, now int64) error {
	a := &s.answer
	if err := wire.ReadApplied(frame, a); err != nil {
		return err
	}
	if a.Seq < s.applied || a.Seq > s.lastSeq || s.heard && a.Sent < s.echo {
		return ErrUnexpected
	}
	s.remarks = s.remarks[:0]
	for _, r := range a.Remarks {
		seq := a.Seq - uint64(r.Back)
		if seq <= s.applied {
			return ErrUnexpected
		}
		s.remarks = append(s.remarks, group.Remark{Seq: seq, Reason: r.Reason, Forwarded: r.Age.Before(now)})
	}
	for _, r := range a.Remarks {
		if r.Reason != group.Accepted {
			s.refusal[r.Reason]++
		}
	}
	s.applied, s.echo, s.heard = a.Seq, a.Sent, true
	s.c.Lease.Renew(now)
	s.c.Ledger.Applied(s.c.Member, a.Seq, s.remarks)
	return nil
}

// Next appends the next frame to transmit. It appends nothing if no frame is due: then the caller
// must call it again after Receive, after a change in the Ledger, and within BeatNanos.
func (s *Sender) Next(now int64, to []byte) []byte {
	switch {
	case s.phase == opening:
		s.phase = greeted
		return wire.AppendHello(to, s.c.Self)
	case s.phase != running:
		return to
	case s.heard && (!s.beaten || now-s.beat >= BeatNanos):
		s.beaten, s.beat = true, now
		return wire.AppendBeat(to, s.echo)
	}
	s.buffer = s.c.Ledger.Send(s.c.Member, s.c.Flows.Read, s.buffer[:0], wire.MaxMessages)
	if len(s.buffer) == 0 {
		return to
	}
	s.lastSeq = s.buffer[len(s.buffer)-1].Seq
	return wire.AppendRecords(to, s.buffer)
}
