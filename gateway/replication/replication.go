package replication

import (
	"errors"
	"fmt"
	"time"

	"sluice.dev/sluice/fastpath/copies"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/gateway/group"
	"sluice.dev/sluice/gateway/group/exchange"
	"sluice.dev/sluice/nat/header"
)

// This does not compile if a lease is longer than copies.Delay, which workers assume.
const _ = uint(int64(copies.Delay) - group.LeaseNanos)

// Config is the configuration of Flows.
type Config struct {
	Table   *flowtable.Table // with Group
	Workers int
	// Sources are the own source addresses, of both families.
	Sources []header.Addr
	// Others are the other gateways, by their number as a group.Member; see Add.
	Others []Other
	// Removed are the removed gateways whose flows the table may have copies of; see Remove. Their
	// numbers follow the numbers of Others.
	Removed []Other
	// Unowned: another process still uses the table. Recover must be called when this process owns
	// it.
	Unowned bool
	// Complete is the argument of group.NewLedger.
	Complete bool
	// Now is CLOCK_BOOTTIME in nanoseconds, as Exchange has it.
	Now func() int64
}

// Other is another gateway of the group.
type Other struct {
	Sources []header.Addr
	// Later: this gateway comes before the other one in the order of the group.
	Later bool
}

// Flows are the flows of a gateway in a group. It is a session.Flows.
type Flows struct {
	c           Config
	table       *flowtable.Table
	handle      *flowtable.Handle
	board       *copies.Board
	ledger      *group.Ledger
	index       group.Index
	others      [flowtable.MaxOwners]*Other        // by number; nil: the number is unused
	copies      [flowtable.MaxOwners]*group.Copies // the same
	exchange    *exchange.Exchange
	waiting     []uint32 // slots of flows whose answer waits
	wake        func()
	online      bool // the handle is
	walk        walk
	toResend    []uint32                // slots of flows whose records are to be sent again
	resendSince int64                   // when the first of them was added
	outSince    [group.MaxMembers]int64 // when a member got out of step; 0: it is in step
}

// walk is the state of reportUsedCopies.
type walk struct {
	round, next uint32 // number of walks over all slots, and the next slot of this walk
	offer       uint32 // the next slot to offer
	at          int64  // time of the last call
}

// New returns the Flows of a table, which may have flows of an earlier process.
func New(c Config) (*Flows, error) {
	switch {
	case !c.Table.Grouped():
		return nil, errors.New("replication: the flow table was not opened for a group (flowtable.Config.Group)")
	case len(c.Others)+len(c.Removed) > flowtable.MaxOwners:
		return nil, fmt.Errorf("replication: %d other gateways and %d removed ones, %d at most", len(c.Others),
			len(c.Removed), flowtable.MaxOwners)
	}
	h, err := c.Table.Register()
	if err != nil {
		return nil, fmt.Errorf("replication: %w", err)
	}
	f := &Flows{c: c, table: c.Table, handle: h, index: group.NewIndex(c.Table.Slots()), wake: func() {}}
	f.board = copies.NewBoard(c.Workers, func() { f.wake() })
	f.ledger = group.NewLedger(group.Config{
		Members: group.Members(1<<len(c.Others) - 1), Slots: c.Table.Slots(), Free: f.free,
	}, c.Complete)
	for i := range c.Others {
		f.join(i, c.Others[i])
	}
	for i := range c.Removed {
		f.join(len(c.Others)+i, c.Removed[i])
		f.table.FollowClock(len(c.Others)+i+1, true)
	}
	if !c.Unowned {
		f.Recover()
	}
	return f, nil
}

func (f *Flows) join(i int, o Other) {
	f.others[i], f.copies[i] = &o, group.NewCopies(i+1, f.index, store{f, i + 1})
	f.SetOwner(i, false, false)
}

// Add adds another gateway with an unused number. It has no records of this gateway's flows, and
// this gateway has no records of its flows.
func (f *Flows) Add(i int, o Other) {
	f.join(i, o)
	f.ledger.Added(group.Member(i))
}

// Remove removes a gateway from the group for good. Its streams must be closed. From now on the
// copies of its flows expire as other flows.
func (f *Flows) Remove(i int) {
	f.ledger.Removed(group.Member(i))
	f.table.FollowClock(i+1, true)
}

// Return adds a gateway again after Remove, while there are copies of its flows.
func (f *Flows) Return(i int) {
	f.SetOwner(i, false, false)
	f.ledger.Added(group.Member(i))
}

// Free frees the number of a gateway that was removed. It returns false if there are copies of its
// flows.
func (f *Flows) Free(i int) bool {
	if f.table.CopiesOf(i+1) > 0 {
		return false
	}
	f.index.Forget(i + 1)
	f.others[i], f.copies[i] = nil, nil
	return true
}

// Attach joins the streams. It must be called once, before workers and streams run.
func (f *Flows) Attach(x *exchange.Exchange) {
	f.exchange, f.wake = x, x.Wake
	x.OnRest(f.rest)
}

// Board returns the Board that the workers share with f. Any goroutine may call it.
func (f *Flows) Board() *copies.Board { return f.board }

// Ledger returns the Ledger of this gateway's flows.
func (f *Flows) Ledger() *group.Ledger { return f.ledger }

// Copies returns the copies of another gateway's flows.
func (f *Flows) Copies(i int) *group.Copies { return f.copies[i] }

// Close ends the use of the table. Run must have ended.
func (f *Flows) Close() { f.handle.Close() }

func (f *Flows) now() flowtable.Time { return flowtable.Time(f.c.Now()) }

// enter takes the handle online, until rest.
func (f *Flows) enter() {
	if !f.online {
		f.online = true
		f.handle.Enter(f.now())
	}
}

// rest takes the handle offline. Exchange.Run calls it before it waits: while the handle is online,
// no record of the table can be reused.
func (f *Flows) rest() {
	f.online = false
	f.handle.Leave()
}

// source is a source address and the number of its gateway, 0 for this one.
type source struct {
	header.Addr
	owner int
}

// sources returns the source addresses of all gateways.
func (f *Flows) sources() (list []source) {
	for _, a := range f.c.Sources {
		list = append(list, source{a, 0})
	}
	for i, o := range f.others {
		for k := 0; o != nil && k < len(o.Sources); k++ {
			list = append(list, source{o.Sources[k], i + 1})
		}
	}
	return list
}

// ownerOf returns the number of the gateway whose source address a is, or -1.
func ownerOf(list []source, a header.Addr) int {
	for i := range list {
		if list[i].Addr == a {
			return list[i].owner
		}
	}
	return -1
}

// Recover adds the flows and held ports of the table to the Ledger and the Copies. No worker may
// run. After a hand-over, packets wait until it returns (BenchmarkRecover).
func (f *Flows) Recover() {
	f.enter()
	defer f.rest()
	sources, now := f.sources(), f.now()
	for slot := range f.table.Slots() {
		r := f.table.AtSlot(slot)
		if r == 0 || !f.table.WasUsed(r) {
			continue
		}
		held, live := f.handle.Held(r), f.handle.Live(r)
		if !held && !live {
			continue
		}
		owner := ownerOf(sources, f.handle.SourceOf(r))
		switch {
		case held && owner == 0:
			var reply header.Tuple
			f.handle.Tuple(r, flowtable.ReplySide, &reply)
			f.ledger.RecoveredHeld(slot, reply)
		case held:
			f.handle.Release(r, now)
		case owner == 0:
			if !f.c.Unowned { // while no process ran here, packets passed other gateways
				f.handle.Refresh(r, now)
			}
			if f.handle.Track(r) {
				f.ledger.Recovered(slot)
			}
		case owner > 0:
			f.handle.MarkCopy(r, owner, now)
			f.copies[owner-1].Recovered(slot)
		}
	}
}

// Step reports changed flows to the Ledger and the Copies, and decisions to the workers.
// Exchange.Run calls it.
func (f *Flows) Step() {
	f.online = true
	f.handle.Enter(f.now()) // also if it is online: the refs of earlier calls are not used any more
	f.board.Rest()          // before the rings are read: a later change wakes the goroutine again
	if f.table.Changed(f.recordChanged) {
		f.wake() // for the next Step
	}
	f.reportOutOfStep()
	f.reportUsedCopies()
	f.resend()
	f.decide()
	if f.exchange != nil {
		f.board.SetResetsUntil(uint64(f.exchange.ResetsUntil()))
	}
}

// reportOutOfStep sets the time since which a member is out of step in the table: the latest one,
// if several are.
func (f *Flows) reportOutOfStep() {
	out, latest := f.ledger.OutOfStep(), int64(0)
	for m := range group.Member(group.MaxMembers) {
		switch at := &f.outSince[m]; {
		case !out.Has(m):
			*at = 0
		case *at == 0:
			*at = f.c.Now()
		}
		latest = max(latest, f.outSince[m])
	}
	f.table.OutOfStepSince(flowtable.Time(latest))
}

// walkInterval is the time between two parts of the walk over the copies. The parts are short, so
// that a SYN-ACK waits for few copies.
const walkInterval = int64(10 * time.Millisecond)

// reportUsedCopies walks over the copies, reports to their owners which ones packets use, and
// offers flows of this gateway again.
func (f *Flows) reportUsedCopies() {
	l, now := &f.walk, f.c.Now()
	passed := now - l.at
	if passed < walkInterval {
		return
	}
	l.at = now
	slots := f.table.Slots()
	due := int64(slots)*min(passed, int64(flowtable.UsedInterval))/int64(flowtable.UsedInterval) + 1
	for end := min(slots, l.next+uint32(due)); l.next < end; l.next++ {
		owner := f.index.Owner(l.next)
		if owner != 0 && f.handle.Used(f.table.AtSlot(l.next), l.round, flowtable.Time(now)) {
			f.copies[owner-1].Seen(l.next)
		}
	}
	if l.next == slots {
		l.next = 0
		l.round++
	}
	f.offer(due)
}

// maxOffers bounds the flows that are offered again in one part of the walk: 3,200 a second.
const maxOffers = 32

// offer searches a number of slots for flows of this gateway that another gateway has refused, and
// offers them again: the other gateway may have room by now, or its flow of the client may have
// ended.
func (f *Flows) offer(slots int64) {
	if !f.ledger.Offers() {
		return
	}
	for offered := 0; slots > 0 && offered < maxOffers; slots-- {
		if f.ledger.Offer(f.walk.offer) {
			offered++
		}
		f.walk.offer = (f.walk.offer + 1) % f.table.Slots()
	}
}

// resendDelay is how long after a refusal the record of a flow is sent again: by then the other
// gateway's answer has left, or its flow has ended.
const resendDelay = int64(10 * time.Millisecond)

// maxResends bounds the flows whose records are to be sent again.
const maxResends = 1 << 12

// resendLater adds a flow for resend.
func (f *Flows) resendLater(slot uint32) {
	if len(f.toResend) == 0 {
		f.resendSince = f.c.Now()
	}
	if len(f.toResend) < maxResends {
		f.toResend = append(f.toResend, slot)
	}
}

// resend sends the records of flows again: flows for which this gateway has refused a record
// (store.refuse), and flows whose record another gateway has refused, perhaps because of a copy of
// a third gateway's flow that is about to end.
func (f *Flows) resend() {
	if len(f.toResend) == 0 || f.c.Now()-f.resendSince < resendDelay {
		return
	}
	for _, slot := range f.toResend {
		if f.ledger.Live(slot) {
			f.ledger.Changed(slot)
		}
	}
	f.toResend = f.toResend[:0]
}

// recordChanged reports a record that has changed to the Ledger or to the Copies.
func (f *Flows) recordChanged(r flowtable.Ref) {
	h, slot := f.handle, f.table.Slot(r)
	live := h.Live(r)
	if owner := f.index.Owner(slot); owner != 0 && (!live || h.OwnerOf(r) != owner) {
		f.copies[owner-1].Ended(slot)
	} else if owner != 0 {
		f.copies[owner-1].Seen(slot)
	}
	switch {
	case h.Held(r):
		if f.ledger.Live(slot) {
			var reply header.Tuple
			h.Tuple(r, flowtable.ReplySide, &reply)
			f.ledger.End(slot, reply)
		}
		return
	case !live || !h.Tracked(r) || !flowtable.Answered(h.Flow(r).State()):
		return
	case h.Reported(r):
		f.ledger.Changed(slot)
	case h.Report(r):
		f.ledger.Begin(slot)
	default:
		return
	}
	if said, left := h.Answer(r); said == 0 && !left && f.waits(r) {
		f.waiting = append(f.waiting, slot)
	}
}

// waits reports whether the answer of the backend of a flow waits for copies: the first SYN-ACK of
// a tracked TCP flow.
func (f *Flows) waits(r flowtable.Ref) bool {
	at := f.handle.Flow(r)
	return f.handle.Tracked(r) && at.Proto() == header.ProtoTCP && at.State() == flowtable.SynRecv
}

// outcomes has the outcome for each verdict that lets an answer leave.
var outcomes = map[group.Verdict]copies.Outcome{
	group.Protected: copies.Protected, group.NoMember: copies.NoMember, group.RefusedByMember: copies.Refused,
}

// decide gives the workers decisions about answers that wait.
func (f *Flows) decide() {
	undecided, decided := f.waiting[:0], false
	for _, slot := range f.waiting {
		r := f.table.AtSlot(slot)
		said, left := f.handle.Answer(r)
		if said != 0 || left || !f.ledger.Live(slot) {
			continue
		}
		switch v := f.ledger.Verdict(slot); v {
		case group.Wait:
			undecided = append(undecided, slot)
			continue
		case group.Yield:
			f.handle.GiveUp(r)
		default:
			if v == group.RefusedByMember {
				f.resendLater(slot)
			}
			f.handle.Decide(r, uint8(outcomes[v]))
		}
		decided = true
	}
	if f.waiting = undecided; decided {
		f.board.Decided()
	}
}

// free frees the port of an ended flow of which no other gateway has a copy any more.
func (f *Flows) free(slot uint32, forwarded int64) {
	f.enter()
	f.handle.Release(f.table.AtSlot(slot), flowtable.Time(forwarded))
}

// SetOwner sets the state of another gateway as an owner. away: it is out of step for so long that
// the copies of its flows may be outdated. expires: this gateway then decides when these copies
// expire, because no gateway before this one in the order of the owner's source addresses is in
// step.
func (f *Flows) SetOwner(i int, away, expires bool) {
	f.table.OwnerAway(i+1, away)
	f.table.FollowClock(i+1, away && expires)
}
