package session

import (
	"fmt"
	"slices"

	"sluice.dev/sluice/gateway/group"
	"sluice.dev/sluice/gateway/group/wire"
	"sluice.dev/sluice/nat/header"
)

// Member is a Receiver's configuration.
type Member struct {
	Self    wire.Greeting
	Owner   string        // the owner's name in its certificate
	Sources []header.Addr // the owner's source addresses: it may send records of no others
	Copies  *group.Copies // they outlive streams
	// Read returns the contents of a copy by the number of its record in the flow table.
	Read func(n uint32) (group.Record, bool)
}

// Receiver is the member's end of a stream from an owner.
type Receiver struct {
	c       Member
	phase   phase
	greeted bool // Hello was sent
	earlier []uint32
	lease   group.MemberLease
	started int64  // when the first Applied was sent
	sent    int64  // when the last Applied was sent
	waiting bool   // an Applied was sent: started and sent are valid
	lastSeq uint64 // of the last message applied
	acked   uint64 // of the last message acknowledged
	remarks []remark
	refusal [group.MaxRefusal + 1]uint64
	buffer  []group.Message
	mine    []group.Record
	seen    []group.CopyState
	answer  wire.Acknowledgement
}

// remark is a remark about a message that is not acknowledged yet.
type remark struct {
	seq    uint64
	reason group.Refusal
	age    group.Age
}

// NewReceiver returns the member's end of a new stream. It changes nothing until a Hello arrives.
func NewReceiver(c Member) *Receiver { return &Receiver{c: c} }

// InStep reports whether the member has applied all records that the owner sent until less than a
// lease ago.
func (r *Receiver) InStep(now int64) bool { return r.c.Copies.InStep() && r.lease.Holds(now) }

// MayReset reports whether this owner allows the member to answer segments of unknown connections
// with RST.
func (r *Receiver) MayReset(now int64) bool { return r.c.Copies.MayReset() && r.lease.Holds(now) }

// ResetsUntil returns the time at which MayReset ends without a further beat, or 0.
func (r *Receiver) ResetsUntil() int64 {
	if !r.c.Copies.MayReset() {
		return 0
	}
	return r.lease.Until()
}

// Lapsed reports whether the lease has run out. Then the caller calls Copies.Lost and closes the
// stream. The first beat of a new stream may take as long as a lease.
func (r *Receiver) Lapsed(now int64) bool {
	return r.waiting && !r.lease.Holds(now) && now-r.started >= group.LeaseNanos
}

// Receive handles a frame of the owner. After an error the stream must be closed; no part of the
// frame was applied.
func (r *Receiver) Receive(frame []byte) error {
	switch {
	case r.phase == opening:
		return r.hello(frame)
	case r.phase != running:
	case wire.KindOf(frame) == wire.Records:
		return r.apply(frame)
	case wire.KindOf(frame) == wire.Beat:
		echo, err := wire.ReadBeat(frame)
		if err == nil && (!r.waiting || echo < r.started || echo > r.sent) {
			return fmt.Errorf("%w: a beat echoes a time at which this gateway sent no message", ErrUnexpected)
		}
		if err == nil {
			r.lease.Renew(echo)
		}
		return err
	}
	return ErrUnexpected
}

// newer is the format of the reason with which a member refuses an outdated process of an owner.
const newer = "a newer process of %s has connected: it has incarnation %d, this one %d"

// Newer returns the later incarnation in the reason with which a member has refused this process.
// ok is false if the member has refused it for another reason.
func Newer(reason string) (incarnation uint64, ok bool) {
	var name string
	var own uint64
	n, _ := fmt.Sscanf(reason, newer, &name, &incarnation, &own)
	return incarnation, n == 3
}

func (r *Receiver) hello(frame []byte) error {
	g, err := wire.ReadHello(frame)
	switch {
	case err != nil:
		return err
	case g.Name != r.c.Owner:
		return fmt.Errorf("the Hello is of %q, the certificate is of %q", g.Name, r.c.Owner)
	case g.Sources != r.c.Self.Sources: // else two gateways could take ports of an address that moves
		return fmt.Errorf("group.members of %s and of %s differ in source addresses of these two: give both the "+
			"same list, and restart the one that runs with the earlier list", g.Name, r.c.Self.Name)
	case g.Incarnation < r.c.Copies.Incarnation():
		return fmt.Errorf(newer, g.Name, r.c.Copies.Incarnation(), g.Incarnation)
	}
	r.earlier, r.phase = r.c.Copies.Connected(g.Incarnation), takingBack
	return nil
}

// apply applies the messages of Records.
func (r *Receiver) apply(frame []byte) error {
	messages, err := wire.ReadRecords(frame, r.buffer[:0])
	if err != nil {
		return err
	}
	r.buffer = messages
	for i := range messages {
		if m := &messages[i]; m.Seq != r.lastSeq+1+uint64(i) || (m.Kind == group.All) != (m.Seq == 1) {
			return ErrUnexpected
		}
	}
	for i := range messages {
		m, refusal, age := &messages[i], group.ForeignAddress, group.Age(0)
		if m.Kind == group.Set && !slices.Contains(r.c.Sources, m.Record.Reply.Dst) {
			r.c.Copies.Refuse(m)
		} else {
			refusal, age = r.c.Copies.Apply(m)
		}
		if refusal != group.Accepted {
			r.refusal[refusal]++
		}
		if refusal != group.Accepted || age != 0 {
			r.remarks = append(r.remarks, remark{m.Seq, refusal, age})
		}
	}
	r.lastSeq += uint64(len(messages))
	return nil
}

// Next appends the next frame to transmit. It appends nothing if no frame is due: then the caller
// must call it again after Receive, and within BeatNanos.
func (r *Receiver) Next(now int64, to []byte) []byte {
	switch {
	case r.phase == opening:
		return to
	case !r.greeted:
		r.greeted = true
		return wire.AppendHello(to, r.c.Self)
	case r.phase == takingBack:
		return r.nextMine(to)
	case r.acked == r.lastSeq && r.waiting && now-r.sent < BeatNanos:
		if r.seen = r.c.Copies.CopyStates(r.seen[:0], wire.MaxMessages); len(r.seen) > 0 {
			return wire.AppendCopyStates(to, r.seen)
		}
		return to
	}
	if !r.waiting {
		r.waiting, r.started = true, now
	}
	r.sent = now
	r.acked = min(r.lastSeq, r.acked+wire.MaxMessages)
	a := &r.answer
	a.Sent, a.Seq, a.Remarks = now, r.acked, a.Remarks[:0]
	n := 0
	for ; n < len(r.remarks) && r.remarks[n].seq <= r.acked; n++ {
		m := r.remarks[n]
		a.Remarks = append(a.Remarks, wire.Remark{Back: uint16(r.acked - m.seq), Reason: m.reason, Age: m.age})
	}
	r.remarks = slices.Delete(r.remarks, 0, n)
	return wire.AppendApplied(to, a)
}

// nextMine appends the next Mine.
func (r *Receiver) nextMine(to []byte) []byte {
	r.mine = r.mine[:0]
	n := min(len(r.earlier), wire.MaxMessages)
	for _, n := range r.earlier[:n] {
		if record, ok := r.c.Read(n); ok {
			r.mine = append(r.mine, record)
		}
	}
	if r.earlier = r.earlier[n:]; len(r.earlier) > 0 {
		return wire.AppendMine(to, r.mine, false)
	}
	to = wire.AppendMine(to, r.mine, true)
	r.phase, r.earlier, r.mine = running, nil, nil
	return to
}
