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

// Find returns the slot of the own flow with a reply tuple. If one has ended and holds its port,
// the Ledger knows the end when Find returns.
func (f *Flows) Find(reply header.Tuple) (slot uint32, found bool) {
	f.enter()
	r := f.find(&reply, flowtable.ReplySide)
	if r == 0 || !f.handle.Tracked(r) {
		if ended := f.handle.PortHolder(&reply, f.now()); ended != 0 {
			f.see(ended)
		}
		return 0, false
	}
	slot = f.table.Slot(r)
	if !f.ledger.Live(slot) && f.handle.Tell(r) {
		f.ledger.Begin(slot)
	}
	return slot, f.ledger.Live(slot)
}

// Make makes an own flow that another gateway has kept.
func (f *Flows) Make(record *group.Record) (slot uint32, ok bool) {
	f.enter()
	r, s := f.handle.Restore(f.now(), record)
	if s != flowtable.Created || !f.handle.Tell(r) {
		return 0, false
	}
	return f.table.Slot(r), true
}

// Hold holds the port of an own flow that another gateway has, and that the table has no room for.
func (f *Flows) Hold(record *group.Record) (slot uint32, ok bool) {
	f.enter()
	r, ok := f.handle.HoldPort(f.now(), record)
	if !ok {
		return 0, false
	}
	return f.table.Slot(r), true
}

// Saw updates an own flow by what another gateway has found for its copy.
func (f *Flows) Saw(s group.Sighting) {
	f.enter()
	r := f.table.AtSlot(s.Slot)
	if r != 0 && f.ledger.Live(s.Slot) && f.handle.Live(r) {
		f.handle.Incomplete(r)
		f.handle.Saw(r, s.Sighting, f.now())
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

// slotOf returns the number of a copy, or 0 if the flow is no copy of the owner.
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
		if of := s.Flows.copies[s.owner-1]; !of.InStep() || of.Refused() > 0 { // it may be offered again
			s.handle.MarkEarlier(at)
		}
		return s.table.Slot(at), group.Accepted
	case flowtable.Exists: // a worker has just made a flow of the client
		return 0, group.OtherFlow
	}
	return 0, group.TableFull
}

// resolve decides between a record and the flow that the table has for its client, and ends that
// flow if it yields.
func (s store) resolve(r *group.Record) group.Refusal {
	at := s.find(&r.Client, flowtable.ClientSide)
	if at == 0 {
		return group.Accepted
	}
	h, owner := s.handle, s.handle.OwnerOf(at)
	if owner == s.owner || owner == 0 && (h.Closing(at) || h.Forsaken(at)) || h.Outdated(at, s.now()) {
		h.DeleteFor(at, flowtable.EndReopened) // the client has opened it by another gateway
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
			return s.refuse(at) // its answer has just left
		}
	}
	return group.Accepted
}

// refuse keeps an own flow instead of another gateway's. A gateway that had a copy of the own flow
// has deleted it for the flow that it now ends, so it gets the record again. One that had none has
// refused the record, or will get it: if it were told again, two gateways could tell each other
// without end.
func (s store) refuse(own flowtable.Ref) group.Refusal {
	slot := s.table.Slot(own)
	if s.handle.Told(own) && s.ledger.Acknowledged(group.Member(s.owner-1), slot) {
		s.againLater(slot)
	}
	return group.OtherFlow
}

// opening returns the state of an own flow.
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

// Sight returns the Sighting of a copy.
func (s store) Sight(n uint32) flowtable.Sighting {
	s.enter()
	return s.handle.Sight(s.table.AtSlot(n))
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
