package flowtable

import (
	"errors"
	"fmt"
	"sync/atomic"

	"sluice.dev/sluice/flowtable/conn"
	"sluice.dev/sluice/nat/header"
)

// ErrLayout means that the memory has a table of another version or size, or none: its flows cannot
// be recovered.
var ErrLayout = errors.New("flowtable: another layout")

// Recovery counts the previous process's flows by their outcome.
type Recovery struct {
	Recovered int // live again, with binding 0 and no owner
	Expired   int // dropped
	Torn      int // half-written, damaged, or two with one key: dropped
	// Damaged counts torn records that were not half-written: an earlier process had a flow, or
	// held a port, that is lost.
	Damaged int
	Fresh   bool
	Why     string // why Fresh, or why Kept

	// Moved: the flows were in a table of another size, FoundFlows (IPv4 and IPv6), or of another
	// version, FoundVersion.
	Moved        bool
	FoundFlows   [2]uint32
	FoundVersion uint32
	// Kept: the table keeps the size it had, because the flows did not fit in the configured size.
	Kept bool
	// Lost counts flows that did not fit, as the caller accepted (Resize).
	Lost int
	// Unread: Fresh, because the flows of an existing table could not be read or counted.
	Unread bool
	// Missing: Fresh, although the caller knows that an earlier process had a table.
	Missing bool
	// Unnoted: in a table of a group, an earlier Recovery was Fresh, or had Damaged or Lost, and
	// NoteLosses was not called after it.
	Unnoted bool
}

// Recover recovers the table that a dead process left in mem. It uses only the records and rebuilds
// the index from them, so the process may have died at any instruction. It keeps a record if its
// state is possible, if it has not expired and was not last seen in the future, and if its keys
// hash to the sum that its creator stored. No other process may use the memory. If the memory holds
// another version or size, Recover fails with ErrLayout and changes nothing.
func Recover(mem []byte, c Config, now Time) (*Table, Recovery, error) {
	t, err := openView(mem, c)
	if err != nil {
		return nil, Recovery{}, err
	}
	t.head.incarnation++
	rec := Recovery{Unnoted: t.head.incarnation&unnoted != 0}
	for f := range t.arenas {
		t.recoverArena(&t.arenas[f], now.Ticks(), &rec)
	}
	return t, rec, nil
}

// openView returns the table in mem, which must have this version and c's size, and changes
// nothing. Otherwise it fails with ErrLayout.
func openView(mem []byte, c Config) (*Table, error) { return openVersion(mem, c, headVersion) }

// openVersion is openView for a table of the given version, to move its flows.
func openVersion(mem []byte, c Config, version uint32) (*Table, error) {
	t, err := view(mem, &c)
	if err != nil {
		return nil, err
	}
	found, want := *t.head, t.describe(&c)
	want.version, want.secret, want.incarnation = version, found.secret, found.incarnation
	switch {
	case found.magic != want.magic:
		return nil, fmt.Errorf("%w: no flow table here", ErrLayout)
	case found.version != want.version:
		return nil, fmt.Errorf("%w: %s", ErrLayout, wrongVersion(found.version))
	case found != want:
		return nil, fmt.Errorf("%w: made for %d IPv4 and %d IPv6 flows, configured are %d and %d",
			ErrLayout, found.flows[0], found.flows[1], want.flows[0], want.flows[1])
	case found.secret == (HashKey{}):
		return nil, fmt.Errorf("%w: no hash key", ErrLayout)
	}
	t.secret = found.secret
	return t, nil
}

// hashes are the hashes of a record's two keys.
type hashes [2]uint64

// both hashes the two keys of a record.
func (s *HashKey) both(a *arena, i uint32) (hs hashes) {
	for side := range hs {
		k := a.keyOf(i, Side(side))
		hs[side] = s.hash(a.v6, &k)
	}
	return hs
}

func (t *Table) recoverArena(a *arena, now Ticks, rec *Recovery) {
	clear(a.buckets)
	h := &Handle{t: t, secret: &t.secret}
	last, d := uint32(0), finder{}
	for i := uint32(1); i <= a.records && a.flows != 0; i++ {
		f := a.flow(i)
		if o := f.owner.Load(); o&ownerFlags != 0 {
			f.owner.Store(o &^ ownerFlags) // counts begin at 0; Bind, Adopt and Charge count live flows
		}
		switch m := f.load(); {
		case m.Held() && h.recoverHeld(a, i) == inserted:
			last = i
		case m.Held():
			if t.Grouped() {
				t.torn(rec, m)
			}
			f.meta.Store(0)
		case !m.Held() && m.State() != None && h.recoverFlow(a, i, now, rec):
			last = i
			d.note(t, a, i, f.load())
		}
	}
	a.fresh.Store(last + 1)
	t.refree(a, last)
	t.leftover[family(a.v6)] = d.rings(now)
}

// torn counts a record, before it is dropped.
func (t *Table) torn(r *Recovery, m conn.Meta) {
	r.Torn++
	if m.Pending() && !m.Held() {
		return
	}
	r.Damaged++
	t.noteLoss()
}

// noteLoss notes, in a table of a group, that a flow will be lost.
func (t *Table) noteLoss() {
	if t.Grouped() {
		atomic.OrUint64(&t.head.incarnation, unnoted)
	}
}

// NoteLosses notes that the group knows of the flows that this Recovery and earlier ones have lost.
func (t *Table) NoteLosses() { atomic.AndUint64(&t.head.incarnation, unnotedMask) }

// recoverFlow makes the flow of one record live, or drops it.
func (h *Handle) recoverFlow(a *arena, i uint32, now Ticks, rec *Recovery) bool {
	f := a.flow(i)
	m := f.load()
	hs := h.secret.both(a, i)
	switch {
	case !f.whole(m, &hs, now):
		h.t.torn(rec, m)
	case h.t.lifetimes.Expired(m, now) && !h.t.Grouped(): // in a group the sweep holds their ports
		rec.Expired++
	case h.reinsert(a, i, &hs) != inserted:
		h.t.torn(rec, m)
	default:
		rec.Recovered++
		h.t.recovered[family(a.v6)][None]++
		h.t.recovered[family(a.v6)][m.State()]++
		f.owner.Store(0) // the owner is a number of the dead process; Adopt accepts only flows whose owner is 0
		f.bound.Store(0)
		f.delta = a.deltaOf(i)
		return true
	}
	f.meta.Store(0)
	return false
}

// recoverHeld keeps the port of an ended flow in use. It returns taken, too, if the record is
// damaged or the table has no Group.
func (h *Handle) recoverHeld(a *arena, i uint32) (ins insertion) {
	f := a.flow(i)
	hs := h.secret.both(a, i)
	ins = taken
	if h.t.Grouped() && f.sum == sum(hs[ClientSide], hs[ReplySide]) {
		k := a.keyOf(i, ReplySide)
		_, ins = h.insert(a, hs[ReplySide], &k, slotOf(i, ReplySide), 0)
	}
	if ins == inserted {
		h.t.group.held[family(a.v6)].Add(1)
	}
	return ins
}

// whole reports whether a record was written completely and is not damaged.
func (f *Flow) whole(m conn.Meta, hs *hashes, now Ticks) bool {
	if m.Pending() || m.Seen() > now {
		return false
	}
	if s := conn.Initial(m.Proto()); (s == SynSeen) != (m.State() <= Closed) ||
		(s == ICMPEcho) != (m.State() == ICMPEcho) {
		return false
	}
	return f.sum == sum(hs[ClientSide], hs[ReplySide])
}

// deltaOf computes a record's checksum delta from its tuples.
func (a *arena) deltaOf(i uint32) header.Delta {
	var client, reply header.Tuple
	a.tuple(i, ClientSide, &client)
	a.tuple(i, ReplySide, &reply)
	out := reply.Reverse()
	return header.DeltaOf(&client, &out)
}

// reinsert puts both keys of a record in the index, or neither. It passes time 0 to insert, so that
// no flow expires meanwhile.
func (h *Handle) reinsert(a *arena, i uint32, hs *hashes) insertion {
	for _, side := range [2]Side{ReplySide, ClientSide} {
		k := a.keyOf(i, side)
		if _, ins := h.insert(a, hs[side], &k, slotOf(i, side), 0); ins != inserted {
			if side == ClientSide {
				a.remove(hs[ReplySide], slotOf(i, ReplySide))
			}
			return ins
		}
	}
	return inserted
}

// refree makes magazines of the dead records below the last live one.
func (t *Table) refree(a *arena, last uint32) {
	var l list
	for i := uint32(1); i <= last; i++ {
		if a.flow(i).load().State() != None {
			continue
		}
		a.flow(i).meta.Store(0)
		l.push(t, a.ref(i))
		if l.n == magazineSize {
			l.give(t, a)
		}
	}
	if l.n != 0 {
		l.give(t, a)
	}
}
