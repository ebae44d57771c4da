package flowtable

import (
	"sync/atomic"

	"sluice.dev/sluice/nat/header"
)

// The flags of the owner word, besides counted. A service with limits charges each flow to two
// counts: the count of the flow's source, and the count of its service.
//
//	enrolled  the flow has reached an assured state (State.Assured), and its service has limits
//	charged   the flow is in the count of its service
//	sourced   the flow is also in the count of its source
//
// The counts are exact by the protocol of counted (L1-L3): charged and sourced are set and cleared
// in one compare-and-swap of the owner word; the counts are incremented before they are set and
// decremented after they are cleared; and after a swap of meta that changes whether an enrolled
// flow is charged, the handle calls bookCharge.

// MaxServices bounds the numbers of services with counts: flows of services with higher numbers are
// not counted.
const MaxServices = 1 << 20

// serviceUse is the used part of a service's limits.
type serviceUse struct {
	flows atomic.Int32
	_     uint32
	due   atomic.Uint64 // of takeToken
}

// Rates are the new connections per second that a service allows: from each source, and in total; 0
// means no limit.
type Rates struct{ Source, Service uint32 }

// Use is the used part of a limit: the number of assured flows (State.Assured), and the time at
// which the allowance of new ones is full again (Spent).
type Use struct {
	Flows uint32
	Due   Time
}

// Charge must be called when a flow of a service with limits reaches an assured state (Observe).
// From then on until it ends, the flow counts for its source and its service. Charge also takes a
// token of each rate.
func (h *Handle) Charge(r Ref, n Rates, now Time) {
	a, i := h.arena(r&refV6 != 0), r.index()
	f := a.flow(i)
	o := f.owner.Load()
	for o&enrolled == 0 {
		if f.owner.CompareAndSwap(o, o|enrolled) {
			break
		}
		o = f.owner.Load()
	}
	h.t.bookCharge(a, i, now)
	service := serviceOf(o)
	if n.Source != 0 {
		h.t.sources.take(h.t.sourceOf(a, i, service), n.Source, now)
	}
	if u := h.t.serviceUse(service); n.Service != 0 && u != nil {
		takeToken(&u.due, n.Service, now)
	}
}

// Charged reports whether a flow is in the count of its service.
func (h *Handle) Charged(r Ref) bool { return h.Flow(r).owner.Load()&charged != 0 }

// SourceUse returns how much of a service's limits a client's source uses.
func (t *Table) SourceUse(client *header.Addr, v6 bool, service uint32) Use {
	flows, due := t.sources.count(t.sources.idOf(client, v6, service))
	return Use{flows, due}
}

// ServiceUse returns how much of a service's limits all clients use.
func (t *Table) ServiceUse(service uint32) Use {
	u := t.serviceUse(service)
	if u == nil {
		return Use{}
	}
	return Use{uint32(max(0, u.flows.Load())), Time(u.due.Load())}
}

// Table returns the handle's table.
func (h *Handle) Table() *Table { return h.t }

func (t *Table) serviceUse(service uint32) *serviceUse {
	if service >= MaxServices {
		return nil
	}
	return &t.serviceUses[service]
}

func (t *Table) sourceOf(a *arena, i, service uint32) uint64 {
	var client header.Tuple
	a.tuple(i, ClientSide, &client)
	return t.sources.idOf(&client.Src, a.v6, service)
}

// bookCharge charges an enrolled flow, or ends its charge, according to its meta (L3).
func (t *Table) bookCharge(a *arena, i uint32, now Time) {
	for f := a.flow(i); ; {
		want := f.load().Charges()
		o := f.owner.Load()
		if o&enrolled == 0 || o&charged != 0 == want {
			return
		}
		if !want {
			if f.owner.CompareAndSwap(o, o&^(charged|sourced)) {
				t.refund(a, i, o)
			}
			continue
		}
		next := o | charged
		if t.sources.add(t.sourceOf(a, i, serviceOf(o)), now) {
			next |= sourced
		}
		if u := t.serviceUse(serviceOf(o)); u != nil {
			u.flows.Add(1)
		}
		if !f.owner.CompareAndSwap(o, next) {
			t.refund(a, i, next)
		}
	}
}

// refund ends the charge of a flow whose owner word was o.
func (t *Table) refund(a *arena, i uint32, o uint64) {
	if o&sourced != 0 {
		t.sources.sub(t.sourceOf(a, i, serviceOf(o)))
	}
	if u := t.serviceUse(serviceOf(o)); o&charged != 0 && u != nil {
		u.flows.Add(-1)
	}
}
