package compiler

import (
	"sluice.dev/sluice/fastpath/services"
)

// Owners hears whose numbers of backends and services are, so that counts by
// number can be told apart by owner.
type Owners interface {
	// Open: a ref is given out; no snapshot that is published knows it.
	Open(services.BackendRef)
	// Close: no snapshot in use knows the ref any more.
	Close(services.BackendRef, services.ServiceID)
	// Forget: no snapshot in use knows the service port any more.
	Forget(services.ServiceID)
}

// identities gives numbers to services and backends, and takes them back only
// when no snapshot that knows their old meaning is in use. Numbers are used in
// turn, the longest unused first, so that a backend's generation repeats as late
// as can be.
type identities struct {
	owners      Owners                         // or nil
	busy        func(services.BackendRef) bool // flows of its owner still count; nil: never
	waiting     []services.BackendRef          // closed, but busy when they were last asked after
	backends    recycler[retiredBackend]
	generations []uint16 // of each backend index's latest use
	services    recycler[services.ServiceID]
}

type retiredBackend struct {
	ref     services.BackendRef
	service services.ServiceID
}

func newIdentities() identities {
	return identities{
		backends: recycler[retiredBackend]{next: 1, limit: services.MaxBackends}, // 0: services.Snapshot.Serves
		services: recycler[services.ServiceID]{next: 1, limit: 1 << 31},
	}
}

// backend returns a ref that no snapshot in use knows; false if there is none.
func (ids *identities) backend() (services.BackendRef, bool) {
	i, ok := ids.backends.take()
	if !ok {
		return 0, false
	}
	for int(i) >= len(ids.generations) {
		ids.generations = append(ids.generations, 0)
	}
	g := ids.generations[i] + 1
	if g == services.BackendGenerations {
		g = 1
	}
	ids.generations[i] = g
	ref := services.MakeBackendRef(i, uint32(g))
	if ids.owners != nil {
		ids.owners.Open(ref)
	}
	return ref, true
}

// service returns the number of a service port. There are more than objects fit
// into memory.
func (ids *identities) service() services.ServiceID {
	n, _ := ids.services.take()
	return services.ServiceID(n)
}

// retireBackend gives a ref back: snapshots from generation on do not know it.
func (ids *identities) retireBackend(r services.BackendRef, of services.ServiceID, generation uint64) {
	ids.backends.retire(retiredBackend{r, of}, generation)
}

// retireService gives a service port's number back likewise.
func (ids *identities) retireService(id services.ServiceID, generation uint64) {
	ids.services.retire(id, generation)
}

// release takes back what no snapshot from generation oldest on knows, backends
// before the services they were of. The index of a backend that is busy waits.
func (ids *identities) release(oldest uint64) {
	ids.recheck()
	ids.backends.release(oldest, func(b retiredBackend) (uint32, bool) {
		if ids.owners != nil {
			ids.owners.Close(b.ref, b.service)
		}
		if ids.busy != nil && ids.busy(b.ref) {
			ids.waiting = append(ids.waiting, b.ref)
			return 0, false
		}
		return b.ref.Index(), true
	})
	ids.services.release(oldest, func(id services.ServiceID) (uint32, bool) {
		if ids.owners != nil {
			ids.owners.Forget(id)
		}
		return uint32(id), true
	})
}

// maxRecheck bounds the indexes that one release asks after again, because a flow can
// live for days.
const maxRecheck = 64

// recheck frees waiting indexes that are no longer busy; the others go to the back.
func (ids *identities) recheck() {
	n := min(len(ids.waiting), maxRecheck)
	asked := ids.waiting[:n]
	ids.waiting = ids.waiting[n:]
	for _, ref := range asked {
		if ids.busy(ref) {
			ids.waiting = append(ids.waiting, ref)
		} else {
			ids.backends.free = append(ids.backends.free, ref.Index())
		}
	}
}

// recycler hands out numbers below a limit, and again those given back.
type recycler[T any] struct {
	next, limit uint32
	free        []uint32
	retired     []retired[T] // in order of generation
}

// retired is what snapshots from generation on do not know.
type retired[T any] struct {
	what       T
	generation uint64
}

// left says whether there is a number to take.
func (r *recycler[T]) left() bool { return len(r.free) > 0 || r.next < r.limit }

func (r *recycler[T]) take() (uint32, bool) {
	if len(r.free) > 0 {
		n := r.free[0]
		r.free = r.free[1:]
		return n, true
	}
	if r.next == r.limit {
		return 0, false
	}
	r.next++
	return r.next - 1, true
}

func (r *recycler[T]) retire(what T, generation uint64) {
	r.retired = append(r.retired, retired[T]{what, generation})
}

// release frees what was retired in generations up to oldest, unless number says
// that somebody else will: every snapshot in use is that one or a later one.
func (r *recycler[T]) release(oldest uint64, number func(T) (uint32, bool)) {
	n := 0
	for n < len(r.retired) && r.retired[n].generation <= oldest {
		if i, ok := number(r.retired[n].what); ok {
			r.free = append(r.free, i)
		}
		n++
	}
	r.retired = r.retired[n:]
}
