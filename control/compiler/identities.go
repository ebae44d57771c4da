package compiler

import (
	"sluice.dev/sluice/fastpath/services"
)

// Owners is notified of the assignment of numbers to backends and services, so that counts by
// number can be attributed to their owners.
type Owners interface {
	// Open is called when a ref is assigned, before a published snapshot has it.
	Open(services.BackendRef)
	// Retire is called when a backend is removed. The snapshot without it is published later.
	Retire(services.BackendRef, services.ServiceID)
	// Close is called when no snapshot in use has the ref any more.
	Close(services.BackendRef, services.ServiceID)
	// Forget is called when no snapshot in use has the service port any more.
	Forget(services.ServiceID)
}

// identities assigns numbers to services and backends, and frees a number only when no snapshot in
// use has its old meaning. It first uses the number that has been free for the longest time, so
// that a backend's generation repeats as late as possible.
type identities struct {
	owners      Owners                         // or nil
	busy        func(services.BackendRef) bool // reports whether flows count under a ref; nil: none do
	waiting     []services.BackendRef          // closed, but busy at the last check
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
		services: recycler[services.ServiceID]{next: 1, limit: 1 << 28},
	}
}

// backend returns a ref that no snapshot in use has; false if there is none.
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

// service returns the number of a service port. There are more numbers than objects in memory.
func (ids *identities) service() services.ServiceID {
	n, _ := ids.services.take()
	return services.ServiceID(n)
}

// retireBackend returns a ref: snapshots from generation on do not have it.
func (ids *identities) retireBackend(r services.BackendRef, of services.ServiceID, generation uint64) {
	if ids.owners != nil {
		ids.owners.Retire(r, of)
	}
	ids.backends.retire(retiredBackend{r, of}, generation)
}

// retireService returns a service port's number likewise.
func (ids *identities) retireService(id services.ServiceID, generation uint64) {
	ids.services.retire(id, generation)
}

// release frees the numbers that no snapshot from generation oldest on has, first of backends and
// then of services. The index of a busy backend waits.
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

// maxRecheck bounds the waiting indexes that one release checks again, because a flow can live for
// days.
const maxRecheck = 64

// recheck frees waiting indexes that are no longer busy; the others go to the back.
func (ids *identities) recheck() {
	n := min(len(ids.waiting), maxRecheck)
	checked := ids.waiting[:n]
	ids.waiting = ids.waiting[n:]
	for _, ref := range checked {
		if ids.busy(ref) {
			ids.waiting = append(ids.waiting, ref)
		} else {
			ids.backends.free = append(ids.backends.free, ref.Index())
		}
	}
}

// recycler assigns numbers below a limit, and reuses freed ones.
type recycler[T any] struct {
	next, limit uint32
	free        []uint32
	retired     []retired[T] // in order of generation
}

// retired is a number that snapshots from generation on do not have.
type retired[T any] struct {
	what       T
	generation uint64
}

// left reports whether a number is free.
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

// release frees the numbers that were retired in generations up to oldest: every snapshot in use is
// of that generation or a later one. If number returns false, its owner frees the number later.
func (r *recycler[T]) release(oldest uint64, number func(T) (uint32, bool)) {
	n := 0
	for n < len(r.retired) && r.retired[n].generation <= oldest {
		if i, ok := number(r.retired[n].what); ok {
			r.free = append(r.free, i)
		}
		n++
	}
	if n > len(r.retired)/2 { // else moving the others would cost more than was released
		r.retired = append(r.retired[:0], r.retired[n:]...)
	} else {
		r.retired = r.retired[n:]
	}
}
