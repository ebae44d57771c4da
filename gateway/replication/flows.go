package replication

import (
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/gateway/group"
	"sluice.dev/sluice/nat/header"
)

// Read returns the record of a slot of the Ledger.
func (f *Flows) Read(slot uint32) (r group.Record, ok bool) {
	f.enter()
	ok = f.handle.Record(f.table.AtSlot(slot), &r)
	return r, ok
}

// Find returns the slot of this gateway's flow with a reply tuple. If such a flow has ended and
// holds its port, its end was reported to the Ledger when Find returns.
func (f *Flows) Find(reply header.Tuple) (slot uint32, found bool) {
	f.enter()
	r := f.find(&reply, flowtable.ReplySide)
	if r == 0 || !f.handle.Tracked(r) {
		if ended := f.handle.PortHolder(&reply, f.now()); ended != 0 {
			f.recordChanged(ended)
		}
		return 0, false
	}
	slot = f.table.Slot(r)
	if !f.ledger.Live(slot) && f.handle.Report(r) {
		f.ledger.Begin(slot)
	}
	return slot, f.ledger.Live(slot)
}

// Make makes a flow of this gateway that another gateway has kept.
func (f *Flows) Make(record *group.Record) (slot uint32, ok bool) {
	f.enter()
	r, s := f.handle.Restore(f.now(), record)
	if s != flowtable.Created || !f.handle.Report(r) {
		return 0, false
	}
	return f.table.Slot(r), true
}

// Hold holds the port of a flow of this gateway that another gateway has, and for which the table
// has no room.
func (f *Flows) Hold(record *group.Record) (slot uint32, ok bool) {
	f.enter()
	r, ok := f.handle.HoldPort(f.now(), record)
	if !ok {
		return 0, false
	}
	return f.table.Slot(r), true
}

// ApplyCopyState updates a flow of this gateway by the state of another gateway's copy.
func (f *Flows) ApplyCopyState(s group.CopyState) {
	f.enter()
	r := f.table.AtSlot(s.Slot)
	if r != 0 && f.ledger.Live(s.Slot) && f.handle.Live(r) {
		f.handle.Incomplete(r)
		f.handle.ApplyCopyState(r, s.CopyState, f.now())
	}
}

// ReadCopy returns the record of a copy.
func (f *Flows) ReadCopy(n uint32) (r group.Record, ok bool) {
	f.enter()
	ok = f.handle.Record(f.table.AtSlot(n), &r)
	return r, ok
}

// find returns the flow with a tuple on a side, or 0.
func (f *Flows) find(t *header.Tuple, side flowtable.Side) flowtable.Ref {
	if r, on := f.handle.Lookup(f.handle.Hash(t), t, f.now()); on == side {
		return r
	}
	return 0
}

// store is the group.Store of an owner's copies.
type store struct {
	*Flows
	owner int
}

// Find returns the record of the copy with a record's reply tuple.
func (s store) Find(r *group.Record) (n uint32) {
	s.enter()
	return s.slotOf(s.find(&r.Reply, flowtable.ReplySide))
}

// slotOf returns the number of a copy's record, or 0 if the flow is no copy of the owner.
func (s store) slotOf(r flowtable.Ref) uint32 {
	if r == 0 || s.handle.OwnerOf(r) != s.owner {
		return 0
	}
	return s.table.Slot(r)
}

// Put makes or changes a copy.
func (s store) Put(n uint32, r *group.Record) (uint32, group.Refusal) {
	s.enter()
	if at := s.table.AtSlot(n); n != 0 && s.handle.Live(at) {
		var client header.Tuple
		s.handle.Tuple(at, flowtable.ClientSide, &client)
		if client == r.Client {
			s.handle.UpdateCopy(at, r, s.now())
			return n, group.Accepted
		}
		s.handle.Delete(at)
	}
	if refusal := s.resolve(r); refusal != group.Accepted {
		return 0, refusal
	}
	at, status := s.handle.Copy(s.now(), s.owner, r)
	switch status {
	case flowtable.Created:
		if of := s.Flows.copies[s.owner-1]; !of.InStep() || of.Refused() > 0 { // offered again, it may be old
			s.handle.MarkEarlier(at)
		}
		return s.table.Slot(at), group.Accepted
	case flowtable.Exists: // meanwhile a worker made a flow of the client
		return 0, group.OtherFlow
	}
	return 0, group.TableFull
}

// resolve decides between a record and the flow that the table has for the record's client. It ends
// that flow if the record replaces it.
func (s store) resolve(r *group.Record) group.Refusal {
	at := s.find(&r.Client, flowtable.ClientSide)
	if at == 0 {
		return group.Accepted
	}
	h, owner := s.handle, s.handle.OwnerOf(at)
	if owner == s.owner || owner == 0 && (h.Closing(at) || h.Forsaken(at)) || h.Outdated(at, s.now()) {
		h.DeleteFor(at, flowtable.EndReopened) // the client has opened another connection, by another gateway
		return group.Accepted
	}
	own := group.NoFlow
	if owner == 0 {
		own = s.opening(at)
	}
	switch group.Resolve(own, s.others[s.owner-1].Later, owner != 0) {
	case group.Refuse:
		return s.refuse(at)
	case group.Ignore:
		return group.ThirdFlow
	case group.YieldAndApply:
		if !h.GiveUp(at) {
			return s.refuse(at) // its answer left meanwhile
		}
	}
	return group.Accepted
}

// refuse keeps a flow of this gateway, and refuses the record of the owner's flow. If the owner had
// a copy of this gateway's flow, it has deleted the copy for its own flow, which it now ends, so
// the record is sent again. If the owner had no copy, it has refused the record, or will still get
// it; sending it again could make two gateways exchange records endlessly.
func (s store) refuse(own flowtable.Ref) group.Refusal {
	slot := s.table.Slot(own)
	if s.handle.Reported(own) && s.ledger.Acknowledged(group.Member(s.owner-1), slot) {
		s.resendLater(slot)
	}
	return group.OtherFlow
}

// opening returns the state of a flow of this gateway.
func (s store) opening(r flowtable.Ref) group.Opening {
	_, left := s.handle.Answer(r)
	switch {
	case !flowtable.Answered(s.handle.Flow(r).State()):
		return group.Asked
	case left || !s.waits(r):
		return group.Left
	}
	return group.Answered
}

// CopyState returns the state of a copy.
func (s store) CopyState(n uint32) flowtable.CopyState {
	s.enter()
	return s.handle.CopyState(s.table.AtSlot(n))
}

// Remove ends a copy.
func (s store) Remove(n uint32) group.Age {
	s.enter()
	r := s.table.AtSlot(n)
	if !s.handle.Live(r) || s.handle.OwnerOf(r) != s.owner {
		return 1
	}
	ticks, forwarded := s.handle.EndCopy(r, s.now())
	if !forwarded {
		return 0
	}
	return group.AgeOf(ticks)
}
