package flowtable

import (
	"encoding/binary"
	"sync/atomic"
	"time"

	"sluice.dev/sluice/flowtable/conn"
	"sluice.dev/sluice/nat/header"
)

// Copy makes a copy of an owner's flow, with the record's source port. Only one goroutine may make
// copies, and it must have removed a flow with the record's reply tuple. The result is Exists, with
// the flow, if the client already has a flow; TableFull if the owner's share, the table or a chain
// is full; PortsExhausted if the reply tuple is in use.
func (h *Handle) Copy(at Time, owner int, r *conn.Record) (Ref, Status) {
	g, f := &h.t.group, family(r.Client.V6)
	if g.copies[owner][f].Load() >= g.share[f] {
		return 0, TableFull
	}
	mark := uint32(owner)<<markOwnerShift | uint32(r.State.Ends())<<markEndsShift
	if Proven(r.State) {
		mark |= markProven
	}
	if r.Reset {
		mark |= markReset
	}
	ref, s := h.place(at, r, mark)
	if s == Created {
		h.countCopy(f, owner, r.State)
	}
	return ref, s
}

// Restore makes a flow of this gateway of which another gateway has kept a copy. It is like Copy,
// but the flow is tracked, and its answer has left.
func (h *Handle) Restore(at Time, r *conn.Record) (Ref, Status) {
	return h.place(at, r, markTracked|markLeft)
}

// place makes a flow with the source port of a record.
func (h *Handle) place(at Time, r *conn.Record, mark uint32) (Ref, Status) {
	a, now := h.arena(r.Client.V6), at.Ticks()
	var client key
	client.from(&r.Client)
	clientHash := h.secret.hash(a.v6, &client)
	if slot := a.find(clientHash, &client); slot != 0 && !h.expire(a, slotIndex(slot), now) {
		return h.existing(a, slot)
	}
	i, s := h.copyRecord(a, at)
	if s != Created {
		return 0, s
	}
	h.write(a, i, &client, r, mark, now)
	replyHash, s := h.insertReply(a, i, r, now)
	if s != Created {
		h.abort(a, i)
		return 0, s
	}
	ref, s := h.finish(a, i, &client, clientHash, replyHash, now)
	if s == Created {
		h.count(a.v6, r.State, 1)
		h.resetNew(ref, r, now)
	}
	return ref, s
}

// resetNew gives a new flow the record's notes about an RST.
func (h *Handle) resetNew(ref Ref, r *conn.Record, now Ticks) {
	for f, notes := h.Flow(ref), r.Meta(now)&conn.MetaResetNotes; notes != 0; {
		m := f.load()
		if !m.Live() {
			return
		}
		if f.swap(m, m|notes) {
			h.updating = true // its owner knows
			h.moved(ref, m, m|notes)
			h.updating = false
			return
		}
	}
}

// MarkCopy makes a live flow of an earlier process a copy of an owner's flow. If the flow is older
// than a flow without proof of its handshake can be, its owner knows of the proof. If the record
// has a sequence number in place of its time, the proof is reported to the owner again. The owner
// counts as knowing the ends of the connection, so that it can revoke them.
func (h *Handle) MarkCopy(r Ref, owner int, now Time) {
	m, mark := h.Flow(r).load(), uint32(owner)<<markOwnerShift
	s, unproven := m.State(), h.t.lifetimes[conn.MakeMeta(SynRecv, header.ProtoTCP, 0).Life()]
	if Proven(s) && !m.KeepsISN() && now.Ticks().Since(Ticks(h.Flow(r).word())) > unproven {
		mark |= markProven
	}
	h.t.markOf(r).Store(mark | uint32(s.Ends())<<markEndsShift)
	h.countCopy(family(r&refV6 != 0), owner, s)
}

// MarkEarlier marks a new copy as made before this gateway was in step with its owner.
func (h *Handle) MarkEarlier(r Ref) { h.t.markOf(r).Or(markEarlier) }

// NewCopy reports whether a UDP flow is a copy of a flow that its owner has made within a time.
func (h *Handle) NewCopy(r Ref, now Time, within time.Duration) bool {
	return h.OwnerOf(r) != 0 && h.t.markOf(r).Load()&markEarlier == 0 &&
		conn.Span(Ticks(h.Flow(r).word()), now.Ticks()) < within
}

func (h *Handle) countCopy(f, owner int, s State) {
	h.t.group.copies[owner][f].Add(1)
	if s.HalfOpen() {
		h.t.group.halfOpen.Add(1)
	}
	if s.Connection() {
		h.t.group.open.Add(1)
	}
}

// HoldPort makes a record that holds the source port of a reply tuple, like the record of a
// reported flow that has ended. It returns false if there is no room, or if the tuple is in use.
func (h *Handle) HoldPort(at Time, r *conn.Record) (Ref, bool) {
	a, now := h.arena(r.Client.V6), at.Ticks()
	i := uint32(0)
	if a.flows != 0 {
		i = h.local[family(a.v6)].get(h.t, a)
	}
	if i == 0 {
		return 0, false
	}
	var client key
	client.from(&r.Client)
	h.write(a, i, &client, r, markTracked|markReported, now)
	hash, s := h.insertReply(a, i, r, now)
	if s != Created {
		h.abort(a, i)
		return 0, false
	}
	f := a.flow(i)
	f.sum = sum(h.secret.hash(a.v6, &client), hash)
	h.t.group.held[family(a.v6)].Add(1)
	f.meta.Store(uint64(f.load().Hold()))
	return a.ref(i), true
}

// copyRecord returns a free record, and makes room for one more flow. It does not apply the cap of
// half-open flows.
func (h *Handle) copyRecord(a *arena, now Time) (uint32, Status) {
	if a.flows == 0 {
		return 0, TableFull
	}
	m := &h.local[family(a.v6)]
	i := m.get(h.t, a)
	if i == 0 {
		return 0, TableFull
	}
	if s := h.room(a, ShedIdle, now); s != Created {
		m.put(h.t, a, a.ref(i))
		return 0, s
	}
	return i, Created
}

// write fills a free record, which becomes pending. It leaves out the notes about an RST: a pending
// record with such notes would be held (conn.Meta.Held).
func (h *Handle) write(a *arena, i uint32, client *key, r *conn.Record, mark uint32, now Ticks) {
	f := a.flow(i)
	m := r.Meta(now)
	if ownerOf(mark) != 0 && r.State.UDP() {
		m = m.At(now - Ticks(unusedTicks))
	}
	f.next.Store(r.Opening) // the record is in no list
	h.t.startMark(a, i, mark)
	f.meta.Store(uint64(m&^conn.MetaResetNotes | conn.MetaPending))
	f.bound.Store(0)
	f.owner.Store(0)
	word := uint32(now)
	if m.KeepsISN() {
		word = r.ISN
	}
	atomic.StoreUint32((*uint32)(&f.created), word) // a reader of an old slot may load it
	a.setAddr(i, ClientSide, client)
	f.ports[ClientSide].Store(client.ports)
	h.exposed = false
}

// unusedTicks is how far in the past the last-seen time of a new copy of a UDP flow is set. So its
// first datagram renews that time, also at a worker whose time is earlier (conn.RefreshTicks).
const unusedTicks = 2 * conn.RefreshTicks

// EndCopy ends a copy. If datagrams were forwarded by it, it returns true, and how many ticks ago
// at least it was last seen (last seen is renewed once a second).
func (h *Handle) EndCopy(r Ref, now Time) (ticks int32, forwarded bool) {
	h.Delete(r)
	f := h.Flow(r)
	m := f.load() // packets no longer change it
	if m.Proto() != header.ProtoUDP || Ticks(f.word()).Since(m.Seen()) >= unusedTicks {
		return 0, false
	}
	return max(0, now.Ticks().Since(m.Seen())-1), true // the ticks of the other gateway begin at other times
}

// insertReply commits the reply key of a record for a pending flow.
func (h *Handle) insertReply(a *arena, i uint32, r *conn.Record, now Ticks) (hash uint64, s Status) {
	var reply key
	reply.from(&r.Reply)
	a.setAddr(i, ReplySide, &reply)
	f := a.flow(i)
	f.ports[ReplySide].Store(reply.ports)
	hash = h.secret.hash(a.v6, &reply)
	switch _, ins := h.insert(a, hash, &reply, slotOf(i, ReplySide), now); ins {
	case taken:
		return 0, PortsExhausted
	case full:
		return 0, TableFull
	}
	out := r.Reply.Reverse()
	f.delta = header.DeltaOf(&r.Client, &out)
	return hash, Created
}

// Proven reports whether the client of a TCP or SCTP flow in this state has proven its handshake,
// and the flow is not closed.
func Proven(s State) bool { return s > SynRecv && s <= TimeWaitBackend }

// UpdateCopy changes a copy to the state of a record, which has the copy's tuples. A copy whose
// handshake was proven here stays proven until the owner knows of the proof; a record without proof
// that arrives later describes a new handshake. The copy also keeps facts that only this gateway
// has seen until the owner's record shows them: FINs and the ACK of the last one, an RST, packets
// after the owner's RST, and the acknowledgement of a PROXY header.
func (h *Handle) UpdateCopy(ref Ref, r *conn.Record, now Time) {
	f, mark := h.Flow(ref), h.t.markOf(ref)
	before := mark.Load()
	known, reset := before&markProven != 0, before&markReset != 0
	ends := conn.Ends(before & markEndsMask >> markEndsShift)
	if now := r.State.Ends(); now != ends {
		mark.And(^uint32(markEndsMask))
		mark.Or(uint32(now) << markEndsShift)
	}
	if r.Reset {
		mark.Or(markReset)
	} else if reset {
		mark.And(^uint32(markReset))
	}
	switch m := mark.Load(); {
	case m&markLostReported != 0: // the owner keeps the flow, or sent this record before it knew, and a Clear follows
		mark.And(^uint32(markLost | markLostReported))
	case m&markLost != 0:
		h.change(ref) // the owner does not know
	}
	if proven := Proven(r.State); proven && !known {
		mark.Or(markProven)
	} else if !proven && known {
		mark.And(^uint32(markProven))
	}
	for {
		word, m := f.word(), f.load()
		if !m.Live() {
			return
		}
		s := r.State
		if s == SynRecv && !known && Proven(m.State()) {
			s = m.State()
			h.change(ref) // the owner does not know
		} else if Proven(s) && Proven(m.State()) {
			if s = s.Merge(m.State(), ends); s != r.State {
				h.change(ref) // the owner does not know
			}
		}
		n := m
		switch {
		case s == m.State():
		case s.UDP(): // only packets may renew last seen: EndCopy
			n = m.WithState(s) &^ conn.MetaNotes
		default:
			n = m.WithState(s).At(now.Ticks()) &^ conn.MetaNotes
		}
		if Proven(s) == Proven(r.State) {
			if n = r.ResetCopy(m, n, reset, now.Ticks()); n.Reset() != r.Reset && s.Connection() {
				h.change(ref) // the owner does not know
			}
		}
		acked := r.Meta(0) & (conn.MetaHeaderAcked | conn.MetaHasISN)
		switch {
		case acked != 0:
			n |= acked
		case Proven(s) && r.ISN == word && m.HeaderAcked() && n.HeaderSent():
			h.change(ref) // the owner does not know
		default:
			n &^= conn.MetaHeaderAcked | conn.MetaHasISN
		}
		if n != m && !f.swap(m, n) {
			continue
		}
		switch {
		case n.KeepsISN() && r.ISN != 0:
			f.swapWord(word, r.ISN)
		case m.KeepsISN() && !n.KeepsISN():
			f.swapWord(word, uint32(now.Ticks()))
		}
		if (n^m)&conn.MetaAccounted != 0 {
			h.updating = true // its owner knows
			h.moved(ref, m, n)
			h.updating = false
		}
		return
	}
}

// Record sets r to a flow's record for other gateways. It returns false if the flow has ended, or
// if its backend has not answered: only answered flows are copied.
func (h *Handle) Record(ref Ref, r *conn.Record) bool {
	a, i := h.arena(ref&refV6 != 0), ref.index()
	f := a.flow(i)
	word, m := f.word(), f.load()
	if !m.Live() || !Answered(m.State()) {
		return false
	}
	*r = conn.Record{State: m.State(), Proxied: m.Proxied(), HeaderAcked: m.HeaderAcked() && m.HeaderSent()}
	if r.Reset = m.Reset() && m.State().Connection(); r.Reset {
		r.ResetBy = m.ResetBy()
	}
	if m.KeepsISN() {
		r.ISN = word
	}
	if m.Proxied() && m.Proto() == header.ProtoTCP {
		r.Opening = f.next.Load()
	}
	a.tuple(i, ClientSide, &r.Client)
	a.tuple(i, ReplySide, &r.Reply)
	return true
}

// Answered reports whether the backend of a flow in this state has answered.
func Answered(s State) bool { return s != None && s != SynSeen && s != UDPNew && s != ICMPEcho }

// Tuple sets out to a tuple of a record. The flow may have ended and hold its port.
func (h *Handle) Tuple(ref Ref, side Side, out *header.Tuple) {
	h.arena(ref&refV6 != 0).tuple(ref.index(), side, out)
}

// SourceOf returns the source address of a record's packets to the backend.
func (h *Handle) SourceOf(ref Ref) header.Addr {
	a, i := h.arena(ref&refV6 != 0), ref.index()
	var to header.Addr
	if a.v6 {
		binary.BigEndian.PutUint64(to[:8], a.six[i].addr[ReplySide][2])
		binary.BigEndian.PutUint64(to[8:], a.six[i].addr[ReplySide][3])
		return to
	}
	to = header.AddrFrom4([4]byte{})
	binary.BigEndian.PutUint32(to[12:], uint32(a.four[i].addr[ReplySide]))
	return to
}

// PortHolder returns the record of an ended flow that holds the port of a reply tuple, or 0. If the
// tuple's flow has expired, PortHolder ends it first.
func (h *Handle) PortHolder(reply *header.Tuple, now Time) Ref {
	a := h.arena(reply.V6)
	var k key
	k.from(reply)
	slot := a.find(h.secret.hash(a.v6, &k), &k)
	if slot == 0 || slotSideOf(slot) != ReplySide {
		return 0
	}
	i := slotIndex(slot)
	h.expire(a, i, now.Ticks())
	client := a.keyOf(i, ClientSide)
	if !a.flow(i).load().Held() || a.find(h.secret.hash(a.v6, &client), &client) == slotOf(i, ClientSide) {
		return 0 // no port is held, or the handle that ends the flow has not removed the client's key yet
	}
	return a.ref(i)
}

// UsedInterval is the interval in which Used must be called for each copy.
const UsedInterval = 5 * time.Second

const usedTicks = int32(UsedInterval / conn.Tick)

// Used reports whether the state of a copy is due to be sent to its owner because packets use the
// copy: the packets may not pass the owner, whose clock ends the flow. round counts the walks over
// all copies, each of which takes UsedInterval. The state of a copy in use is due about four times
// in its timeout.
func (h *Handle) Used(r Ref, round uint32, now Time) bool {
	m := h.Flow(r).load()
	if s := m.State(); !m.Live() || m.Reset() || m.Asked() || s.HalfOpen() || s.Over() {
		return false
	}
	every := max(1, h.t.lifetimes[m.Life()]/4/usedTicks)
	return (round+h.t.Slot(r))%uint32(every) == 0 && now.Ticks().Since(m.Seen()) < (every+1)*usedTicks
}

// outlived is called when packets that have passed another gateway have shown that a reset
// connection lives on. It removes the reset.
func (h *Handle) outlived(r Ref, now Time) {
	for f := h.Flow(r); ; {
		m := f.load()
		if !m.Live() || !m.Reset() || m.State().Over() {
			return
		}
		if n := m.Refreshed(now.Ticks()); f.swap(m, n) {
			h.moved(r, m, n)
			return
		}
	}
}

// Refresh renews the last-seen time of a flow for packets that have passed another gateway, unless
// the connection is over or reset.
func (h *Handle) Refresh(r Ref, now Time) {
	for f, t := h.Flow(r), now.Ticks(); ; {
		m := f.load()
		if !m.Live() || m.Reset() || m.State().Over() || t.Since(m.Seen()) < conn.RefreshTicks || f.swap(m, m.At(t)) {
			return
		}
	}
}

// CopyState returns the state of a copy, for its owner; State is None if the flow has ended.
func (h *Handle) CopyState(ref Ref) (s CopyState) {
	m, mark := h.Flow(ref).load(), h.t.markOf(ref).Load()
	if !m.Live() {
		return s
	}
	if mark&markLost != 0 {
		h.t.markOf(ref).Or(markLostReported)
	}
	s = CopyState{State: m.State(), Proof: Proven(m.State()) && mark&markProven == 0, Asked: m.Asked(),
		Lost: mark&markLost != 0, HeaderAcked: m.HeaderAcked() && m.HeaderSent()}
	switch {
	case !m.State().Connection():
	case m.Reset():
		s.Reset, s.ResetBy = true, m.ResetBy()
	default:
		s.Outlived = mark&markReset != 0
	}
	return s
}

// ApplyCopyState updates a flow of this gateway by the state of another gateway's copy: which sides
// have closed or reset the connection, and that packets use it. A state without proof does not
// apply to a handshake that has begun since. A flow whose backend has lost the connection ends,
// unless packets have just passed here.
func (h *Handle) ApplyCopyState(ref Ref, seen CopyState, now Time) {
	f, s := h.Flow(ref), seen.State
	switch {
	case seen.Lost && h.InUse(ref):
		h.change(ref) // the other gateway gets the record, and keeps its copy
		return
	case seen.Lost:
		h.DeleteFor(ref, EndReopened)
		return
	}
	observe := func(from Side, flags uint8) {
		h.Observe(ref, from, conn.Segment{Flags: flags, Ack: f.word() + 1}, now)
	}
	if f.State() == SynRecv && !seen.Proof {
		if seen.Reset && s == SynRecv {
			observe(seen.ResetBy, header.TCPRST)
		}
		if seen.Asked && s == SynRecv {
			h.Repeated(ref, now, true)
		}
		return
	}
	if seen.HeaderAcked { // after the proof
		defer h.HeaderAcked(ref)
	}
	if seen.Asked { // after the other changes, which revoke it
		defer h.Repeated(ref, now, true)
	}
	switch { // not before its state is s
	case s.HalfOpen():
	case seen.Reset:
		defer observe(seen.ResetBy, header.TCPRST)
	case seen.Outlived:
		defer h.outlived(ref, now)
	case seen.Asked:
	default:
		defer h.Refresh(ref, now)
	}
	if s == UDPAssured && f.State() == UDPReplied {
		observe(ClientSide, 0)
	}
	if !Proven(s) {
		return
	}
	if f.State() == SynRecv {
		observe(ClientSide, header.TCPACK)
	}
	if s >= Established && f.State() == Unconfirmed { // SCTP
		observe(ReplySide, header.TCPACK)
	}
	const fin = header.TCPFIN | header.TCPACK
	if s != Established && f.State() == Established {
		observe(s.FirstFIN(), fin)
	}
	if s >= LastAckClient && (f.State() == FinClient || f.State() == FinBackend) {
		observe(ReplySide-Side(b2i(f.State() == FinBackend)), fin)
	}
	if s >= TimeWaitClient && (f.State() == LastAckClient || f.State() == LastAckBackend) {
		observe(Side(b2i(f.State() == LastAckBackend)), header.TCPACK)
	}
}

// EndLost ends a flow whose backend has no connection with the flow's sequence numbers. A copy ends
// only when its owner has learned of that. Until then a SYN opens another connection (Closing).
func (h *Handle) EndLost(r Ref) {
	if h.OwnerOf(r) == 0 {
		h.DeleteFor(r, EndReopened)
		return
	}
	h.t.markOf(r).And(^uint32(markLostReported))
	h.t.markOf(r).Or(markLost)
	h.change(r)
}

// lost reports whether a flow is a copy for which EndLost was called.
func (h *Handle) lost(r Ref) bool {
	return h.t.group.marks != nil && h.t.markOf(r).Load()&markLost != 0
}

// copyEnded is called after the end of a flow that is not tracked.
func (h *Handle) copyEnded(a *arena, i uint32, m conn.Meta) {
	owner := ownerOf(h.t.mark(a, i).Load())
	if owner == 0 {
		return
	}
	h.t.group.copies[owner][family(a.v6)].Add(-1)
	h.t.group.halfOpen.Add(-int32(b2i(m.State().HalfOpen())))
	h.t.group.open.Add(-int32(b2i(m.State().Connection())))
	h.change(a.ref(i))
}

// movedInGroup is called after a change of a live flow's conn.MetaAccounted.
func (h *Handle) movedInGroup(r Ref, before, after conn.Meta) {
	mark := h.t.markOf(r).Load()
	if mark&markTracked != 0 || ownerOf(mark) != 0 && !h.updating {
		h.change(r)
	}
	if ownerOf(mark) == 0 {
		return
	}
	was, is := before.State(), after.State()
	if was.HalfOpen() != is.HalfOpen() {
		h.t.group.halfOpen.Add(int32(b2i(is.HalfOpen()) - b2i(was.HalfOpen())))
	}
	if was.Connection() != is.Connection() {
		h.t.group.open.Add(int32(b2i(is.Connection()) - b2i(was.Connection())))
	}
}

// heldBeyond returns how many held records of an arena take room from flows: the records beyond
// half of the reserve.
func (t *Table) heldBeyond(a *arena) int32 {
	return max(0, t.group.held[family(a.v6)].Load()-int32(reserve(a.flows)/2))
}
