package flowtable

import (
	"sync/atomic"

	"sluice.dev/sluice/flowtable/conn"
	"sluice.dev/sluice/nat/header"
)

// NewFlow describes a flow to Create.
type NewFlow struct {
	Client      header.Tuple // client to frontend; its family and protocol are the flow's
	Backend     header.Addr
	BackendPort uint16 // ignored for ICMP queries, which have one identifier
	Source      header.Addr
	SourcePort  uint16 // if not zero, tried first, even while it rests (resting): this client had it before
	Ports       Ports  // tried after SourcePort
	Service     uint32 // below 1<<28
	BackendRef  uint32 // the low bits are the backend's index, see MaxBackends; 0: connections are not counted
	// SYN is the sequence number of the TCP SYN that opens the flow, if HasSYN is set: see Foreign.
	SYN    uint32
	HasSYN bool
	// Direct: the flow has direct return, see MakeDirect; SYN is the NodeMark.
	Direct bool
	// Tracked: other gateways of the group shall have copies. The table must have Config.Group.
	Tracked bool
	// Midway: of a Direct flow, it begins in the middle of a connection, in the state Unconfirmed.
	Midway bool
	// Proxied: a PROXY header goes in front of the client's bytes. Only TCP and UDP.
	Proxied bool
}

// Status is the result of a Create.
type Status uint8

const (
	Created Status = iota
	// Exists: another worker made the client's flow first, and the Ref refers to that flow.
	Exists
	// TableFull: the table, or the chain of the client's key, is full, and no flow in it may be
	// shed.
	TableFull
	// HalfOpenLimit: too many half-open flows, all too young to be shed.
	HalfOpenLimit
	// PortsExhausted: none of the ports tried is free towards this backend or held by a flow that
	// may be shed; or the client's own tuple equals the reply key of a flow.
	PortsExhausted
)

var statusNames = [...]string{"created", "exists", "table_full", "half_open_limit", "ports_exhausted"}

// String returns the name used in metrics.
func (s Status) String() string {
	if int(s) < len(statusNames) {
		return statusNames[s]
	}
	return "invalid"
}

// Create makes a flow and finds its source port. It inserts the reply key first: if that key is
// taken, the port is in use for this source address and backend, and Create tries the next one
// (portSearch). The commit of the client key then creates the flow: from then on any handle that
// finds it may act on it.
func (h *Handle) Create(now Time, n *NewFlow) (Ref, Status) {
	r, s := h.create(now, n)
	switch s {
	case Created:
		h.p.created[family(n.Client.V6)].Add(1)
		if h.log != nil {
			h.log.began(h.arena(n.Client.V6), r.index(), now)
		}
	case TableFull, HalfOpenLimit, PortsExhausted:
		h.p.refused[s-TableFull].Add(1)
	}
	return r, s
}

func (h *Handle) create(at Time, n *NewFlow) (Ref, Status) {
	h.probed = 0
	a, now := h.arena(n.Client.V6), at.Ticks()
	if a.flows == 0 {
		return 0, TableFull
	}
	var client key
	client.from(&n.Client)
	clientHash := h.secret.hash(a.v6, &client)
	if slot := a.find(clientHash, &client); slot != 0 && !h.expire(a, slotIndex(slot), now) {
		return h.existing(a, slot)
	}
	// Get the record first: a Create that gets none must not shed a flow.
	i := h.local[family(a.v6)].get(h.t, a)
	if i == 0 {
		return 0, TableFull // all of the reserve is in limbo
	}
	born := conn.Born(client.proto, now)
	if n.Midway {
		born = conn.MakeMeta(Unconfirmed, client.proto, now)
	}
	if s := h.admit(a, born.State(), at); s != Created {
		h.local[family(a.v6)].put(h.t, a, a.ref(i)) // no other handle has seen it
		return 0, s
	}
	f := a.flow(i)
	if n.HasSYN || n.Direct {
		f.next.Store(n.SYN) // the record is in no list
	}
	if n.HasSYN {
		born |= conn.MetaOpening
	}
	if n.Proxied {
		born |= conn.MetaProxied
	}
	if h.t.group.marks != nil {
		h.t.startMark(a, i, uint32(b2i(n.Tracked))*markTracked)
	}
	f.meta.Store(uint64(born | conn.MetaPending))
	f.bound.Store(0)
	f.owner.Store(packOwner(n.Service, n.BackendRef))
	atomic.StoreUint32((*uint32)(&f.created), uint32(now)) // a reader of an old slot may load it
	a.setAddr(i, ClientSide, &client)
	f.ports[ClientSide].Store(client.ports)

	h.exposed = false
	replyHash, s := h.allocatePort(a, i, n, now)
	if s != Created {
		h.abort(a, i)
		return 0, s
	}
	if h.log != nil {
		f.sum = sum(clientHash, replyHash)
		h.log.open(a, i, at) // before any other handle can find the flow
	}
	if h.waits != nil && !n.Direct { // before any other handle can find the flow
		h.waits.start(a.ref(i), makeClock(a.ref(i), at, false))
	}
	h.t.bookPending(f)
	if r, s := h.finish(a, i, &client, clientHash, replyHash, now); s != Created {
		return r, s
	}
	h.count(a.v6, born.State(), 1)
	if kind := ringOf(born); kind != shedNever {
		h.note(a, i, kind)
	}
	return a.ref(i), Created
}

// finish commits the client key of a pending flow whose reply key is committed, and makes it live.
// If it cannot, it discards the flow.
func (h *Handle) finish(a *arena, i uint32, client *key, clientHash, replyHash uint64, now Ticks) (Ref, Status) {
	f := a.flow(i)
	f.sum = sum(clientHash, replyHash)
	slot, ins := h.insert(a, clientHash, client, slotOf(i, ClientSide), now)
	for ins == full && h.makeRoom(a, clientHash, now) {
		slot, ins = h.insert(a, clientHash, client, slotOf(i, ClientSide), now)
	}
	if ins != inserted {
		f.meta.Store(uint64(f.load().Dead()))
		h.t.book(f)
		a.remove(replyHash, slotOf(i, ReplySide))
		h.retire(a.ref(i))
		if ins == full {
			return 0, TableFull
		}
		return h.existing(a, slot)
	}
	a.activate(i)
	return a.ref(i), Created
}

// sum folds a flow's hashes into the checksum that recovery uses to recognise an intact record.
func sum(client, reply uint64) uint32 {
	x := client ^ (reply<<1 | reply>>63)
	return uint32(x>>32) ^ uint32(x)
}

// abort discards a pending flow without keys. If it never claimed a slot, no other handle can have
// read it, and its record is free at once: a flood towards a backend whose ports are exhausted must
// not fill limbo.
func (h *Handle) abort(a *arena, i uint32) {
	f := a.flow(i)
	f.meta.Store(uint64(f.load().Dead()))
	if h.exposed {
		h.retire(a.ref(i))
	} else {
		h.local[family(a.v6)].put(h.t, a, a.ref(i))
	}
}

// find returns the slot of the flow, live or pending, that has the key, or 0.
func (a *arena) find(hash uint64, k *key) uint32 {
	home := a.home(hash)
	for ctl := &a.buckets[home].ctl; ; {
		c := ctl.Load()
		slot := a.holder(home, c, uint8(hash), k)
		if slot == 0 || ctl.Load() == c {
			return slot
		}
	}
}

// existing returns the result of a Create whose client key is taken.
func (h *Handle) existing(a *arena, slot uint32) (Ref, Status) {
	i := slotIndex(slot)
	if slotSideOf(slot) == ReplySide {
		return 0, PortsExhausted
	}
	a.activate(i)
	return a.ref(i), Exists
}

// activate makes a pending flow live; its client key must be committed. The creator calls it, or
// another Create that finds the flow before the creator has done so.
func (a *arena) activate(i uint32) {
	f := a.flow(i)
	for {
		m := f.load()
		if !m.Pending() || m.Held() || f.swap(m, m&^conn.MetaPending) {
			return
		}
	}
}

func (a *arena) setAddr(i uint32, side Side, k *key) {
	if a.v6 {
		a.six[i].addr[side] = k.addr
	} else {
		a.four[i].addr[side] = k.addr[0]
	}
}

// Delete ends a flow for every worker at once, on both sides. A connection that is opened again
// should keep its source port if it keeps its backend: get the port from Outgoing before Delete,
// and pass it to Create as SourcePort.
func (h *Handle) Delete(r Ref) { h.DeleteFor(r, EndDeleted) }

// DeleteFor is Delete with the reason for the log.
func (h *Handle) DeleteFor(r Ref, why End) {
	a, i := h.arena(r&refV6 != 0), r.index()
	for f := a.flow(i); ; {
		m := f.load()
		if !m.Live() || h.kill(a, i, m, why) {
			return
		}
	}
}

// expire kills a flow if it is live and expired. It reports whether the flow is dead now.
func (h *Handle) expire(a *arena, i uint32, now Ticks) bool {
	f := a.flow(i)
	for {
		m := f.load()
		if m.State() == None {
			return true
		}
		if m.Pending() || !h.t.expired(a, i, m, now) {
			return false
		}
		if h.kill(a, i, m, EndTimeout) {
			return true
		}
	}
}

// kill ends a flow if its meta is still m, and reports whether it did. The swap ends the flow on
// both sides at once; only the handle whose swap succeeds removes the keys from the index.
func (h *Handle) kill(a *arena, i uint32, m conn.Meta, why End) bool {
	hashes := h.hashes(a, i)
	if !h.end(a, i, m, why, &hashes) {
		return false
	}
	h.count(a.v6, m.State(), -1)
	return true
}

// hashes returns the hashes of a record's keys, by side.
func (h *Handle) hashes(a *arena, i uint32) [2]uint64 {
	client, reply := a.keyOf(i, ClientSide), a.keyOf(i, ReplySide)
	return [2]uint64{h.secret.hash(a.v6, &client), h.secret.hash(a.v6, &reply)}
}

// end is kill without the decrement of the counters; the caller passes the hashes of the keys.
func (h *Handle) end(a *arena, i uint32, m conn.Meta, why End, hashes *[2]uint64) bool {
	dead := m.Dead()
	var mark uint32
	if h.t.group.marks != nil {
		mark = h.t.mark(a, i).Load()
	}
	tracked := mark&markTracked != 0
	if tracked {
		dead = m.Hold()
	}
	now := h.now.Ticks()
	if until := h.t.restsUntil(m, now); until.Since(now) > 0 && !a.direct(i) {
		h.t.restingOf(m.Proto()).begin(hashes[ReplySide], until)
	}
	if tracked { // before the flow is seen as held: who finds it ended must find its port counted
		h.t.group.held[family(a.v6)].Add(1)
	}
	if !a.flow(i).swap(m, dead) {
		if tracked {
			h.t.group.held[family(a.v6)].Add(-1)
		}
		return false
	}
	if h.log != nil && ownerOf(mark) == 0 { // the owner logs its flows
		h.log.ended(a, i, m, why, h.now)
	}
	h.t.book(a.flow(i))
	if m.Charges() {
		h.t.bookCharge(a, i, h.now)
	}
	a.remove(hashes[ClientSide], slotOf(i, ClientSide))
	if tracked {
		h.hold(a, i)
		return true
	}
	if h.t.group.marks != nil {
		h.copyEnded(a, i, m)
	}
	a.remove(hashes[ReplySide], slotOf(i, ReplySide))
	h.retire(a.ref(i))
	return true
}
