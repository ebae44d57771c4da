package flowtable

import "sync/atomic"

// MaxBackends is how many backends there can be: the low bits of a BackendRef are its
// index, as in services.BackendRef.
const MaxBackends = 1 << 20

// counted is the bit of a flow's owner word that says that the flow is in its
// backend's load. How the loads stay exact without a lock:
//
//	L1  Whoever sets the bit adds one, whoever clears it takes one away, and who changes the
//	    backend under the bit does both. Each is one compare-and-swap of the owner word, so
//	    each happens once.
//	L2  The bit is set before the flow is live (Create), or by Bind or Adopt, which then book (L3).
//	L3  Whoever's swap of meta changes whether the flow bears on its backend books afterwards
//	    (book): he makes the bit what meta says, and after a change of it looks at meta again.
//
// L3: after the last such swap its maker looks at meta, finds what stays, and makes the bit so.
// Whoever had looked at an older meta and changes the bit after that, looks again, as both words are
// sequentially consistent, and takes his change back. So when nobody is in between, a
// flow is in the load of its backend if and only if it bears on it, and was bound or adopted by this
// process, or made by it. One is added before the bit is set and taken away after it is cleared: a
// load may be too high for a moment, and never too low.
const counted = 1 << 63

// Loads returns how many connections each backend has, by the index of its BackendRef: flows that
// are live and not over (LAST_ACK, TIME_WAIT, closed). A connection that was reset does not count
// until a packet takes that back. A flow of an earlier process
// counts from its Bind or Adopt on. An expired flow counts until it is swept, and one towards a backend that is gone
// counts where its index says, also when that index has a new owner. The
// loads are the table's to write.
func (t *Table) Loads() []atomic.Int32 { return t.loads }

func (t *Table) loadOf(owner uint64) *atomic.Int32 { return &t.loads[owner&(MaxBackends-1)] }

// over says whether the connection has ended on both sides.
func (s State) over() bool { return s >= LastAckClient && s <= Closed }

// bears says whether a flow in this condition is a connection of its backend.
func (m meta) bears() bool { return m.live() && !m.state().over() && !m.reset() }

// bookEmbryo counts a flow that is about to be live. Nobody else has its owner word yet.
func (t *Table) bookEmbryo(f *Flow) {
	if o := f.owner.Load(); uint32(o) != 0 {
		t.loadOf(o).Add(1)
		f.owner.Store(o | counted)
	}
}

// book counts a flow if it bears on its backend, and else counts it no more (L3).
func (t *Table) book(f *Flow) {
	for {
		bears := f.load().bears()
		o := f.owner.Load()
		switch {
		case uint32(o) == 0 || o&counted != 0 == bears:
			return
		case bears:
			t.loadOf(o).Add(1)
			if !f.owner.CompareAndSwap(o, o|counted) {
				t.loadOf(o).Add(-1)
			}
		default:
			if f.owner.CompareAndSwap(o, o&^counted) {
				t.loadOf(o).Add(-1)
			}
		}
	}
}

// assign gives a flow another owner, and its count to the new backend.
func (t *Table) assign(f *Flow, service, backendRef uint32) {
	want := packOwner(service, backendRef)
	for {
		o := f.owner.Load()
		if o&^counted == want {
			return
		}
		if o&counted == 0 {
			if f.owner.CompareAndSwap(o, want) {
				return
			}
			continue
		}
		next := want
		if backendRef != 0 {
			next |= counted
			t.loadOf(next).Add(1)
		}
		if f.owner.CompareAndSwap(o, next) {
			t.loadOf(o).Add(-1)
			return
		}
		if backendRef != 0 {
			t.loadOf(next).Add(-1)
		}
	}
}

// Bind stores what depends on this process and its current snapshot: the flow's
// owner, whose load it counts to from now on, and its hops. Workers may bind at once, with different
// snapshots: the last store of bound wins, with number and hops of one snapshot, and if that
// is the older one, its number is old and the next packet renews it.
func (h *Handle) Bind(r Ref, binding, service, backendRef uint32, nhBackend, nhClient uint16) {
	f := h.Flow(r)
	h.t.assign(f, service, backendRef)
	h.t.book(f)
	f.BindHops(binding, nhBackend, nhClient)
}

// Adopt gives a flow of an earlier process its owner, whose load it counts to from now on, and
// leaves it unbound. It is for who walks the table while workers Bind: what a worker stored stays,
// as its snapshot may be newer. It says whether the flow took the owner.
func (h *Handle) Adopt(r Ref, service, backendRef uint32) bool {
	f := h.Flow(r)
	if f.Binding() != 0 || !f.owner.CompareAndSwap(0, packOwner(service, backendRef)) {
		return false
	}
	h.t.book(f)
	return true
}
