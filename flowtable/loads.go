package flowtable

import "sync/atomic"

// MaxBackends is the maximum number of backends: the low bits of a BackendRef are its index, as in
// services.BackendRef.
const MaxBackends = 1 << 20

// counted is the bit of a flow's owner word that is set while the flow is in its backend's load.
// These rules keep the loads exact without a lock:
//
//	L1  The handle that sets the bit adds one, the handle that clears it subtracts one, and the
//	    handle that changes the backend under the bit does both. Each is one compare-and-swap of
//	    the owner word, so each happens once.
//	L2  The bit is set before the flow is live (Create), or by Bind or Adopt, which then
//	    call book (L3).
//	L3  After a swap of meta that changes whether the flow counts, the handle calls book: book
//	    sets the bit according to meta, and after a change of the bit loads meta again.
//
// Why L3 holds: after the last such swap the handle loads the final meta and sets the bit to match.
// A handle that loaded an older meta and changes the bit later loads meta again (both words are
// sequentially consistent) and undoes its change. So while no handle is inside book, a flow is in
// the load of its backend if and only if it counts and was made, bound or adopted by this process.
// The load is incremented before the bit is set and decremented after it is cleared: it may be too
// high for a moment, but never too low.

// Loads returns how many connections each backend has, by the index of its BackendRef: flows that
// are live and not over (LAST_ACK, TIME_WAIT, closed). A connection that was reset does not count
// until a later packet clears the reset. A connection that both sides have closed does not count
// until both have sent data since. A flow of an earlier process counts from its Bind or Adopt on.
// An expired flow counts until it is swept. A flow towards a removed backend counts at that
// backend's index, even if the index belongs to another backend now. Only the table writes the
// loads.
func (t *Table) Loads() []atomic.Int32 { return t.loads }

func (t *Table) loadOf(owner uint64) *atomic.Int32 { return &t.loads[owner&(MaxBackends-1)] }

// bookPending counts a flow that is about to be live. No other handle can change its owner word
// yet.
func (t *Table) bookPending(f *Flow) {
	if o := f.owner.Load(); uint32(o) != 0 {
		t.loadOf(o).Add(1)
		f.owner.Store(o | counted)
	}
}

// book adds a flow to its backend's load if it counts, and removes it if not (L3).
func (t *Table) book(f *Flow) {
	for {
		counts := f.load().Counts()
		o := f.owner.Load()
		switch {
		case uint32(o) == 0 || o&counted != 0 == counts:
			return
		case counts:
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

// assign gives a flow another owner, and moves its count to the new backend. Its charge ends if the
// new owner is another service.
func (t *Table) assign(a *arena, i, service, backendRef uint32) {
	want := packOwner(service, backendRef)
	for f := a.flow(i); ; {
		o := f.owner.Load()
		if o&^ownerFlags == want {
			return
		}
		next, left := want, o&charges
		if serviceOf(o) == service {
			next, left = next|left, 0
		}
		if o&counted != 0 && backendRef != 0 {
			next |= counted
			t.loadOf(next).Add(1)
		}
		if f.owner.CompareAndSwap(o, next) {
			if o&counted != 0 {
				t.loadOf(o).Add(-1)
			}
			if left != 0 {
				t.refund(a, i, o)
			}
			return
		}
		if next&counted != 0 {
			t.loadOf(next).Add(-1)
		}
	}
}

// Bind stores the values that depend on this process and its current snapshot: the flow's owner,
// whose load includes the flow from now on, and its hops. Several workers may call Bind at once,
// with different snapshots. The last store of bound wins; it has the binding and hops of one
// snapshot. If that is the older snapshot, the next packet finds the old binding and binds again.
func (h *Handle) Bind(r Ref, binding, service, backendRef uint32, nhBackend, nhClient uint16) {
	f := h.Flow(r)
	h.t.assign(h.arena(r&refV6 != 0), r.index(), service, backendRef)
	h.t.book(f)
	f.BindHops(binding, nhBackend, nhClient)
}

// Adopt sets the owner of a flow of an earlier process, whose load includes the flow from now on,
// and leaves the flow unbound. It is for a walk of the table while workers call Bind. It does not
// replace an owner that a worker stored, because the worker's snapshot may be newer. It reports
// whether it set the owner.
func (h *Handle) Adopt(r Ref, service, backendRef uint32) bool {
	f := h.Flow(r)
	if f.Binding() != 0 || !f.owner.CompareAndSwap(0, packOwner(service, backendRef)) {
		return false
	}
	h.t.book(f)
	return true
}
